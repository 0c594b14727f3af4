"""The page of a run: complete, self-contained, and unmoved by what the files hold."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quintet.engine.errors import RunError
from quintet.report.page import ReportSink, curve, curves, is_finite, listed, thin, write_report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder made by hand, of a few lines."""
    folder = tmp_path / "run"
    folder.mkdir()
    about = {"recipe": "image/vqgan_tiny", "processes": 1, "global_batch": 4}
    (folder / "config.json").write_text(json.dumps({**about, "settings": {"steps": 20}}))
    return folder


def report(step: int, **more: Any) -> dict[str, Any]:
    timing = {"samples": 4 * step, "epoch": 0.1, "seconds": 1.5, "waiting": 0.25}
    return {"step": step, **timing, "samples_per_second": 123.456, "vae/loss": 1 / step, **more}


def write(path: Path, *records: Any) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def read(run: Path) -> str:
    return write_report(run).read_text()


def test_a_run_without_reports_has_a_page_that_says_so(run: Path) -> None:
    assert "No reports yet." in read(run)


def test_the_page_shows_where_the_run_stands(run: Path) -> None:
    write(run / "metrics.jsonl", report(10), {"step": 10, "val/psnr": 21.5}, report(20))
    write(run / "events.jsonl", {"step": 3, "message": "skipped a.png: is damaged"})
    (run / "best.json").write_text(json.dumps({"metric": "psnr", "value": 21.5, "step": 10}))
    page = html.unescape(read(run))
    for words in (
        "run · image/vqgan_tiny",
        "step 20 of 20",
        "80 samples",
        "123.5 samples per second",
        "25% of the time waiting",
        "global batch 4 on 1 process(es)",
        "best psnr 21.5 at step 10",
        "<th>psnr</th><td>21.5</td>",
        "<b>step 3</b> skipped a.png: is damaged",
        "<b>vae/loss</b>",
    ):
        assert words in page, words


def test_the_newest_exhibits_are_inside_the_page(run: Path) -> None:
    import base64

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
    assert not re.search(r"https?:|//[a-z]|<script|<link|@import|url\(", page)


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
        '{"val/psnr": {"a": [1]}}',
        "\x00\x01",
    ],
)
def test_a_line_that_makes_no_sense_does_not_stop_the_page(line: str, run: Path) -> None:
    write(run / "metrics.jsonl", report(1), report(2))
    with open(run / "metrics.jsonl", "a") as file:
        file.write(f"{line}\n{line}\n")
    (run / "events.jsonl").write_text(f"{line}\n")
    page = read(run)
    assert page.endswith("</html>\n")
    assert "nan" not in re.findall(r'points="([^"]*)"', page)


def test_settings_that_are_no_object_do_not_stop_the_page(run: Path) -> None:
    write(run / "metrics.jsonl", report(1))
    (run / "config.json").write_text(json.dumps({"recipe": None, "settings": [1]}))
    assert "a model of your own" in read(run)


def test_a_name_from_a_file_is_escaped(run: Path) -> None:
    evil = "<script>alert('x')</script>"
    write(
        run / "metrics.jsonl", report(1, **{evil: 1}), report(2, **{evil: 2, f"val/{evil}": evil})
    )
    write(run / "events.jsonl", {"step": evil, "message": evil})
    page = read(run)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4


def test_a_curve_stays_inside_its_frame_and_ends_at_its_last_value() -> None:
    drawn = curve([(0, 5.0), (10, -5.0), (20, 0.0)])
    points = [tuple(map(float, p.split(","))) for p in re.findall(r"[\d.]+,[\d.]+", drawn)]
    assert len(points) == 3
    assert all(0 <= x <= 300 and 0 <= y <= 120 for x, y in points)
    assert points[0][1] < points[2][1] < points[1][1]  # up is less
    assert "now 0" in drawn


def test_a_flat_curve_is_a_line() -> None:
    assert "nan" not in curve([(1, 2.0), (2, 2.0)])
    assert "nan" not in curve([(1, 2.0), (1, 2.0)])


def test_a_metric_of_one_point_has_no_curve() -> None:
    assert curves([{"step": 1, "loss": 2.0}]) == ""


def test_long_curves_are_thinned_and_keep_their_last_point() -> None:
    points = [(float(i), float(i)) for i in range(10_001)]
    kept = thin(points, 400)
    assert len(kept) < 900
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert thin(points[:5], 400) == points[:5]


def test_only_finite_numbers_are_drawn() -> None:
    assert is_finite(1)
    assert is_finite(-2.5)
    for value in (float("nan"), float("inf"), None, "1", [1]):
        assert not is_finite(value)


def test_no_events_are_no_list() -> None:
    assert listed([]) == ""


def test_the_sink_writes_at_evaluations_and_at_the_end(run: Path) -> None:
    sink, page = ReportSink(run), run / "report.html"
    sink.report({"step": 1, "vae/loss": 1.0})
    assert not page.exists()
    sink.report({"step": 1, "val/psnr": 1.0})
    assert page.exists()
    page.unlink()
    sink.close()
    assert page.exists()


def test_a_page_that_cannot_be_written_does_not_stop_the_run(run: Path) -> None:
    (run / "report.html").mkdir()
    sink = ReportSink(run)
    sink.close()
    assert sink.problem


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run"):
        write_report(tmp_path)
