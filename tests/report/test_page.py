"""The report of a run: complete, self-contained, and robust against the contents of its files."""

import base64
import html
import json
import os
import re
import time
import wave
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from harness import Said
from harness import run as run_in_a_process
from quintet.engine.errors import RunError
from quintet.judges.receipt import Receipt
from quintet.media.audio import write_wav
from quintet.media.meshes.files import write_mesh
from quintet.mesh.exhibits import MeshSheet
from quintet.report import ReportSink, script, text, write_page, write_report
from quintet.report.curves import Line, assign_plots, build_plots, svg, thin
from quintet.report.exhibits import MAX_FILE_BYTES, MAX_FILES, MAX_MESHES
from quintet.report.markup import is_finite
from quintet.report.page import event_list
from quintet.report.receipts import apart
from quintet.report.sound import apply_colormap, log_mel, spectrogram_png
from quintet.report.source import Source, load
from toy import ToyRecipe

EVIL = "</script><script>alert('x')</script>"


def make_run(folder: Path, **settings: Any) -> Path:
    """A minimal run folder."""
    folder.mkdir(parents=True)
    about = {"recipe": "image/vqgan_tiny", "processes": 1, "global_batch": 4}
    (folder / "config.json").write_text(
        json.dumps({**about, "settings": {"steps": 20, **settings}})
    )
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def shown(run: Path) -> Path:
    """The folder of its exhibits."""
    folder = run / "exhibits/step-00000002"
    folder.mkdir(parents=True)
    return folder


def report(step: int, **more: Any) -> dict[str, Any]:
    timing = {"samples": 4 * step, "epoch": 0.1, "seconds": 1.5, "waiting": 0.25}
    return {"step": step, **timing, "samples_per_second": 123.456, "vae/loss": 1 / step, **more}


def write(path: Path, *records: Any) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def read(run: Path) -> str:
    return write_report(run).read_text()


def test_a_run_without_reports_has_a_page(run: Path) -> None:
    assert "No reports yet." in read(run)


def test_the_page_shows_the_progress_of_the_run(run: Path) -> None:
    write(run / "metrics.jsonl", report(10), {"step": 10, "val/psnr": 21.5}, report(20))
    write(run / "events.jsonl", {"step": 3, "message": "skipped a.png: is damaged"})
    (run / "best.json").write_text(json.dumps({"metric": "psnr", "value": 21.5, "step": 10}))
    page = html.unescape(read(run))
    for expected in (
        "run · image/vqgan_tiny",
        "<dt>step</dt><dd>20 of 20</dd>",
        "<dt>samples</dt><dd>80 (",
        "123.5 samples per second",
        "<dt>waiting for data</dt><dd>25% of the time</dd>",
        "<dt>global batch</dt><dd>4 on 1 process(es)</dd>",
        "<dt>best checkpoint</dt><dd>psnr 21.5 at step 10</dd>",
        '<th scope="row">psnr</th><td>21.5</td>',
        "<b>step 3</b> skipped a.png: is damaged",
        "<b>vae/loss</b>",
    ):
        assert expected in page, expected


def test_the_newest_exhibits_are_inside_the_page(run: Path) -> None:
    for step, content in ((1, b"old"), (2, b"new")):
        folder = run / f"exhibits/step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "sheet.png").write_bytes(content)
    page = read(run)
    assert base64.b64encode(b"new").decode() in page
    assert base64.b64encode(b"old").decode() not in page


def test_nothing_on_the_page_is_fetched(run: Path) -> None:
    write(run / "metrics.jsonl", report(1), report(2))
    page = read(run)
    assert not re.search(r"https?:|[\"'(=]//[a-z]|<link|@import|url\(", page)
    assert page.count("<script") == 2
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1',
        "null",
        "[]",
        '{"samples_per_second": 1}',
        '{"samples_per_second": null, "step": null}',
        '{"step": "x", "val/psnr": "y"}',
        '{"step": 1, "vae/loss": NaN}',
        '{"step": 1e999, "vae/loss": -1e999}',
        '{"step": true, "vae/loss": false}',
        f'{{"step": {"9" * 400}, "vae/loss": {"9" * 400}, "samples_per_second": {"9" * 400}}}',
        '{"step": 3, "vae/loss": 1e308}',
        '{"step": 3, "vae/loss": -1e308}',
        '{"message": "\\ud800"}',
        '{"a":' * 3000,
        "[" * 200_000,
        '{"val/psnr": {"a": [1]}}',
        "\x00\x01",
    ],
)
def test_an_invalid_line_does_not_break_the_page(line: str, run: Path) -> None:
    write(run / "metrics.jsonl", report(1), report(2))
    with open(run / "metrics.jsonl", "a") as file:
        file.write(f"{line}\n{line}\n")
    (run / "events.jsonl").write_text(f"{line}\n")
    page = read(run)
    assert page.endswith("</html>\n")
    points = "".join(re.findall(r'points="([^"]*)"', page))
    assert points
    assert "nan" not in points
    for traces in re.findall(r'data-plot="([^"]*)"', page):
        assert json.loads(html.unescape(traces), parse_constant=pytest.fail)


def test_settings_that_are_not_an_object_do_not_break_the_page(run: Path) -> None:
    write(run / "metrics.jsonl", report(1))
    (run / "config.json").write_text(json.dumps({"recipe": None, "settings": [1]}))
    assert "custom model" in read(run)


def test_a_name_from_a_file_is_escaped(run: Path, shown: Path) -> None:
    write(
        run / "metrics.jsonl", report(1, **{EVIL: 1}), report(2, **{EVIL: 2, f"val/{EVIL}": EVIL})
    )
    write(run / "events.jsonl", {"step": EVIL, "message": EVIL})
    (shown / "speech-0.txt").write_text(f"{EVIL}\n{EVIL}")
    write_wav(shown / "speech-0-<script>.wav", np.zeros(100, np.float32), 8000)
    about = json.loads((run / "config.json").read_text())
    about |= {"processes": EVIL, "machine": {EVIL: EVIL}, "data": {"train": EVIL}}
    (run / "config.json").write_text(json.dumps(about))
    page = read(run)
    assert page.count("<script") == page.count("</script") == 2  # the page's own
    assert page.count("&lt;script&gt;") >= 10


def test_text_escapes_tags_and_attributes() -> None:
    assert text("<a href=\"x\" id='y'>&") == "&lt;a href=&quot;x&quot; id=&#x27;y&#x27;&gt;&amp;"
    assert text(3) == "3"


# -- curves ---------------------------------------------------------------------------------


def source(*records: dict[str, Any], label: str = "run") -> Source:
    return Source(Path(label), label, {}, records)


def test_validation_metrics_share_a_plot_with_the_training_metric_of_the_same_name() -> None:
    names = [
        "vae/loss",
        "vae/psnr",
        "val/psnr",
        "val_live/psnr",
        "val/psnr_mean_colour",
        "val/ssim",
    ]
    plot_names = assign_plots(names)
    assert {plot_names[name] for name in names if "psnr" in name} == {"vae/psnr"}
    assert plot_names["val/ssim"] == "ssim"
    assert plot_names["vae/loss"] == "vae/loss"


def test_runs_share_a_plot() -> None:
    records = [{"step": 1, "vae/loss": 2.0}, {"step": 2, "vae/loss": 1.0}]
    (plot,) = build_plots([source(*records, label="a"), source(*records, label="b")])
    assert plot.lines == [Line(run, "", "vae/loss", [(1, 2.0), (2, 1.0)]) for run in (0, 1)]


def line(*points: tuple[float, float]) -> dict[str, Any]:
    return {"colour": 0, "x": [x for x, _ in points], "y": [y for _, y in points]}


def test_a_curve_stays_inside_its_frame() -> None:
    drawn = svg([line((0, 5.0), (10, -5.0), (20, 0.0))])
    points = [tuple(map(float, p.split(","))) for p in re.findall(r"[\d.]+,[\d.]+", drawn)]
    assert len(points) == 3
    assert all(0 <= x <= 320 and 0 <= y <= 150 for x, y in points)
    assert points[0][1] < points[2][1] < points[1][1]  # up is less


def test_a_flat_curve_is_a_line() -> None:
    assert "nan" not in svg([line((1, 2.0), (2, 2.0))])
    assert "nan" not in svg([line((1, 2.0), (1, 2.0))])


def test_a_metric_of_one_point_has_no_curve() -> None:
    assert build_plots([source({"step": 1, "loss": 2.0})]) == []


def test_long_curves_are_thinned_and_keep_their_last_point() -> None:
    points = [(float(i), float(i)) for i in range(10_001)]
    thinned = thin(points, 400)
    assert len(thinned) < 900
    assert thinned[0] == points[0]
    assert thinned[-1] == points[-1]
    assert thin(points[:5], 400) == points[:5]


def test_only_finite_numbers_are_plotted() -> None:
    assert is_finite(1)
    assert is_finite(-2.5)
    for value in (float("nan"), float("inf"), None, "1", [1]):
        assert not is_finite(value)


def test_no_events_give_no_list() -> None:
    assert event_list([]) == ""


def test_the_sink_writes_at_evaluations_and_at_the_end(run: Path) -> None:
    sink, page = ReportSink(run), run / "report.html"
    sink.report({"step": 1, "vae/loss": 1.0})
    assert not page.exists()
    sink.report({"step": 1, "val/psnr": 1.0})
    assert page.exists()
    page.unlink()
    sink.close()
    assert page.exists()


def test_a_failed_report_does_not_stop_the_run(run: Path) -> None:
    (run / "report.html").mkdir()
    sink = ReportSink(run)
    sink.close()
    assert sink.error


def test_a_folder_that_is_not_a_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run"):
        write_report(tmp_path)


# -- exhibits -------------------------------------------------------------------------------


def tetrahedron(path: Path) -> None:
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], float)
    write_mesh(path, points, np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]))


def test_a_mesh_is_embedded_with_its_caption(run: Path, shown: Path) -> None:
    tetrahedron(shown / "written-0-validation.glb")
    (shown / "written-texts.txt").write_text("written-0\n  a small pyramid\n")
    page = read(run)
    assert "<b>a small pyramid</b>" in page
    (data,) = re.findall(r'data-mesh="([^"]*)"', page)
    mesh = json.loads(html.unescape(data))
    vertices = np.frombuffer(base64.b64decode(mesh["vertices"]), "<f4").reshape(-1, 3)
    assert mesh["count"] == 4
    assert np.allclose(vertices.max(0), 1)  # z is up again


def test_audio_has_a_spectrogram_and_a_text_is_assigned_by_name(run: Path, shown: Path) -> None:
    for name in ("captions-0.wav", "captions-1.wav"):
        write_wav(shown / name, np.sin(np.arange(4000) / 5).astype(np.float32), 8000)
    (shown / "captions.txt").write_text("captions-0.wav\n  a low tone\n\ncaptions-1.wav\n  same\n")
    page = read(run)
    assert page.count("data:audio/wav") == page.count('class="mel"') == 2
    assert page.index("a low tone") < page.index("data:audio/wav") < page.index("<b>same</b>")


def test_a_video_replaces_the_gif_of_the_same_name(run: Path, shown: Path) -> None:
    for name in ("clip.mp4", "clip.gif", "other.gif"):
        (shown / name).write_bytes(b"x")
    page = read(run)
    assert page.count("data:video/mp4") == page.count("data:image/gif") == 1


def test_a_tone_appears_at_its_frequency() -> None:
    tone = np.sin(2 * np.pi * 3000 * np.arange(8000) / 8000)
    mel = log_mel(tone, 8000)
    assert 60 < mel.mean(1).argmax() < 80
    drawn = apply_colormap(mel)
    assert drawn.sum(-1).mean(1).argmax() < 20  # high frequencies are above


@pytest.mark.parametrize("data", [b"", b"RIFF", b"RIFF\x00\x00\x00\x00WAVEfmt " + b"\xff" * 40])
def test_damaged_audio_has_no_spectrogram(data: bytes) -> None:
    assert spectrogram_png(data) is None


def test_omitted_exhibits_are_listed_by_name(run: Path, shown: Path) -> None:
    with open(shown / "huge.png", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    for number in range(MAX_MESHES + 1):
        tetrahedron(shown / f"solid-{number}.glb")
    (shown / "broken-0.glb").write_bytes(b"glTF")
    page = read(run)
    assert page.count("data-mesh=") == MAX_MESHES
    assert "huge.png is too large for this page" in page
    assert f"solid-{MAX_MESHES} (1 meshes)" in page
    assert "broken-0.glb" in page


def test_the_number_of_embedded_exhibits_is_limited(run: Path, shown: Path) -> None:
    for number in range(300):
        (shown / f"picture-{number}.png").write_bytes(b"x")
    page = read(run)
    assert page.count("<img") == MAX_FILES
    assert "and 210 more" in page


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "best.json", "exhibits"])
def test_links_and_pipes_in_a_run_are_not_followed(name: str, run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "step-00000001").mkdir(parents=True)
    (outside / "step-00000001" / "secret.txt").write_text("secret")
    (outside / "lines").write_text('{"step": 1, "message": "secret", "val/secret": 1}\n')
    (run / name).symlink_to(outside if name == "exhibits" else outside / "lines")
    assert "secret" not in read(run)
    (run / name).unlink()
    os.mkfifo(run / name)
    assert read(run).endswith("</html>\n")


# -- data, health, machine ------------------------------------------------------------------


def test_skipped_files_are_counted_by_reason_separately_from_health(run: Path) -> None:
    write(
        run / "events.jsonl",
        {"step": 0, "message": "starting at step 0"},
        {"step": 1, "message": "skipped a.png: a.png: is damaged; remove it"},
        {"step": 1, "message": "skipped b.png: is damaged; remove it"},
        {"step": 2, "message": "health: vae/loss has stayed"},
    )
    about = json.loads((run / "config.json").read_text())
    machine = {"device": "a fine GPU"}
    (run / "config.json").write_text(
        json.dumps({**about, "data": {"train": 7, "valid": 3}, "machine": machine})
    )
    write(run / "metrics.jsonl", report(1))
    page = read(run)
    assert '<th scope="row">is damaged; remove it</th><td>2</td>' in page
    assert "7 samples" in page
    assert "<dd>a fine GPU</dd>" in page
    health = page[page.index("<h2>Health</h2>") : page.index("<h2>Data</h2>")]
    assert "vae/loss has stayed" in health
    assert "a.png" not in health


def test_a_run_records_its_machine_versions_and_data_sizes(tmp_path: Path) -> None:
    run_in_a_process(ToyRecipe(steps=2, batch_size=4), tmp_path / "run")
    about = json.loads((tmp_path / "run" / "config.json").read_text())
    assert about["machine"]["device"]
    assert about["machine"]["cores"] >= 1
    assert about["versions"]["torch"] == torch.__version__
    assert about["data"]["train"] > about["data"]["valid"] > 0
    page = read(tmp_path / "run")
    assert f"{about['data']['train']} samples" in page
    assert text(about["machine"]["device"]) in page


def test_the_captions_of_a_mesh_sheet_reach_the_page(run: Path, shown: Path) -> None:
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], float)
    faces = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    rows = [[(points, faces)], [(points, faces)]]
    MeshSheet("written", rows, ["written 1"], ["a box", EVIL]).write(shown)
    page = read(run)
    assert "<b>a box</b>" in page
    assert f"<b>{text(EVIL)}</b>" in page


# -- several runs ---------------------------------------------------------------------------


def test_a_comparison_begins_with_configuration_differences(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", rate=0.001, model={"dim": 8})
    two = make_run(tmp_path / "two", rate=0.002, model={"dim": 8})
    write(one / "metrics.jsonl", report(1), report(2, **{"val/psnr": 20.0}))
    write(two / "metrics.jsonl", report(1), report(2, **{"val/psnr": 30.0}))
    page = write_page([one, two], tmp_path / "both.html", opening="<p>Hello.</p>").read_text()
    differs = page[
        page.index("<h2>Configuration differences</h2>") : page.index("<h2>Progress</h2>")
    ]
    assert '<th scope="row">rate</th><td>0.001</td><td>0.002</td>' in differs
    assert "dim" not in differs
    assert "steps" not in differs
    assert '<th scope="row">psnr</th><td>20</td><td>30</td>' in page
    assert page.index("<p>Hello.</p>") < page.index("<h2>Configuration differences</h2>")


def judged(step: int, value: float, receipt: Receipt | None) -> dict[str, Any]:
    numbers = {"step": step, "val/judge/psnr": value, "val/judge/psnr/bicubic": value - 1}
    return numbers | ({"receipts": {"psnr": receipt.as_json()}} if receipt else {})


EIGHT = Receipt("psnr", {"convention": "8 bits"}, "0123456789abcdef", {"size": "32 x 32"}, 8)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (EIGHT, None),
        (replace(EIGHT, count=6), "the count is 8 and 6"),
        (replace(EIGHT, preparation={"size": "64 x 64"}), "size is 32 x 32 and 64 x 64"),
        (None, "a receipt is missing"),
    ],
)
def test_numbers_of_different_receipts_are_shown_apart(
    other: Receipt | None, difference: str | None, tmp_path: Path
) -> None:
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    for run, receipt in zip(runs, (EIGHT, other)):
        write(run / "metrics.jsonl", judged(2, 20.0, receipt), judged(4, 21.0, receipt))
    page = write_page(runs, tmp_path / "both.html").read_text(encoding="utf-8")
    plots = re.findall(r"<figcaption><b>(judge/psnr(?:, receipt [^<]*)?)</b>", page)
    if difference is None:
        assert plots == ["judge/psnr"]
        assert "cannot stand side by side" not in page
        return
    names = [EIGHT.digest, other.digest if other else "of b missing"]
    assert plots == [f"judge/psnr, receipt {name}" for name in names]
    assert f"psnr of a (step 2) and of b (step 2) cannot stand side by side: {difference}" in page
    row = r"judge/psnr/bicubic, receipt [^<]*</th><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td>"
    assert re.findall(row, page) == [("20", "–"), ("–", "20")]


def test_runs_without_receipts_are_not_compared(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    for run in runs:
        write(run / "metrics.jsonl", judged(2, 20.0, None), judged(4, 21.0, None))
    assert len(build_plots(apart(load(runs))[0])) == 4
    assert apart(load(runs[:1]))[1] == []


def test_runs_of_different_recipes_get_separate_sections(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two")
    (two / "config.json").write_text(json.dumps({"recipe": "speech/voicebox_tiny"}))
    page = write_page([one, two], tmp_path / "both.html", title="Six <b>").read_text()
    assert "<title>Six &lt;b&gt;</title>" in page
    assert 'href="#g1"' in page
    assert 'id="g1"' in page
    assert "Configuration differences" not in page


def test_the_report_command_compares_runs(
    tmp_path: Path, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    for run in runs:  # a custom model trained from Python
        (run / "config.json").write_text(json.dumps({"recipe": None, "settings": {}}))
    monkeypatch.chdir(tmp_path)
    assert cli("report", *runs).out.strip() == "report.html"
    assert cli("report", *runs, "--out", tmp_path / "page.html").status == 0
    assert cli("report", runs[0]).out.strip() == str(runs[0] / "report.html")
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "report.html").read_bytes()
    assert "name a run" in cli("report").sentence
    assert "create it" in cli("report", *runs, "--out", tmp_path / "no" / "page.html").sentence


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_file_that_is_not_a_report_is_not_overwritten(
    kind: str, run: Path, tmp_path: Path
) -> None:
    out, mine = tmp_path / "index.html", tmp_path / "mine.html"
    mine.write_text("<!doctype html>mine")
    if kind == "file":
        out.write_text("<!doctype html>mine")
    elif kind == "link":
        out.symlink_to(mine)
    else:
        out.mkdir()
    with pytest.raises(RunError, match=r"index.html exists .* another --out"):
        write_page([run], out)
    assert mine.read_text() == "<!doctype html>mine"
    assert not list(tmp_path.glob(".*"))


# -- cost, and missing plotly -----------------------------------------------------


def test_without_plotly_the_page_has_static_curves_and_a_note(
    run: Path, shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "plotly", lambda: None)
    Image.new("RGB", (8, 8)).save(shown / "sheet.png")
    write(run / "metrics.jsonl", report(1), report(2))
    page = read(run)
    assert "pip install plotly" in page
    assert "<polyline" in page
    assert "data:image/png" in page
    assert len(page) < 60_000


def test_a_long_run_renders_quickly_with_all_its_evaluations(run: Path) -> None:
    with open(run / "metrics.jsonl", "w") as file:
        for step in range(1, 100_001):
            file.write(json.dumps(report(step)) + "\n")
            if step in (500, 70_001, 100_000):
                file.write(json.dumps({"step": step, "val/loss": step}) + "\n")
    write_report(run)  # compresses plotly, once
    begun = time.process_time()
    page = html.unescape(read(run))
    assert time.process_time() - begun < 2
    assert '"x":[500,70001,100000]' in page
    assert '100000],"y"' in page
    assert len(page) < 3_000_000


def test_eight_bit_audio_is_embedded_without_a_spectrogram(run: Path, shown: Path) -> None:
    with wave.open(str(shown / "old-0.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(bytes(100))
    page = read(run)
    assert "data:audio/wav" in page
    assert 'class="mel"' not in page
