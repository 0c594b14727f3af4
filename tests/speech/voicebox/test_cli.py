"""The speech room from the command line: a run, and what it says."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import Said, unmeasured
from quintet.cli import main
from quintet.engine.models.export import export
from quintet.media.audio import probe, read_audio, write_wav
from quintet.speech.voicebox.export import pieces
from quintet.speech.voicebox.inference import Solver
from quintet.speech.voicebox.model import VoiceBox
from quintet.speech.voicebox.sample import Flags, solver_of
from quintet.speech.voices import compose, speak
from speech.small import voicebox

Cli = Callable[..., Said]
FEW = (
    *("--batch-size", 2, "--workers", 0, "--device", "cpu", "--trackers", "--log-every", 1),
    *("--recordings.valid-limit", 2, "--recordings.builtin-count", 16, "--sampling.count", 1),
    *("--model.dim", 32, "--model.depth", 1, "--model.heads", 1, "--model.duration-depth", 1),
    *("--sampling.steps", 1),
)
QUICK = ("--steps", 1, "--method", "euler")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps. Never to be written to."""
    path = tmp_path_factory.mktemp("trained") / "run"
    arguments = ("train", "speech/voicebox_tiny", *FEW, "--run", path, "--steps", 2)
    with unmeasured(), pytest.raises(SystemExit) as ended:
        main([str(word) for word in arguments])
    assert not ended.value.code
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "me.wav"
    write_wav(path, speak(compose(3), 16_000), 16_000)
    return path


def test_each_text_becomes_a_sound_and_a_picture(cli: Cli, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = cli("sample", run, "--text", "ba do", "--text", "ki", *QUICK, "--out", out)
    assert result.status == 0
    assert sorted(path.name for path in out.glob("[!.]*")) == [
        "00-ba-do.png",
        "00-ba-do.wav",
        "01-ki.png",
        "01-ki.wav",
    ]
    assert probe(out / "00-ba-do.wav").rate == 24_000


def test_speech_is_solved_as_in_evaluations_unless_flags_say_otherwise(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    assert solver_of(run, Flags()) == Solver(1, "euler", 0.0, 1.0)
    assert solver_of(run, Flags(steps=3, cond_scale=2.0)) == Solver(3, "euler", 0.0, 2.0)
    model, exported = VoiceBox.from_pretrained(run), tmp_path / "alone"
    model.save_pretrained(exported)
    assert solver_of(exported, Flags()) == Solver()
    cli("sample", run, "--text", "ba", "--out", tmp_path / "a.wav")
    cli("sample", run, "--text", "ba", *QUICK, "--cond-scale", 1, "--out", tmp_path / "b.wav")
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_seconds_are_kept_and_the_seed_decides(cli: Cli, run: Path, tmp_path: Path) -> None:
    arguments = ("sample", run, "--text", "ba do", *QUICK, "--seconds", 0.8)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = tmp_path / f"{name}.wav"
        assert cli(*arguments, "--seed", seed, "--out", out).status == 0
    assert probe(tmp_path / "a.wav").seconds == pytest.approx(0.8, abs=0.03)
    a, b, c = ((tmp_path / f"{name}.wav").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_a_mended_recording_keeps_what_is_outside_the_span(
    cli: Cli, run: Path, recording: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mended.wav"
    arguments = ("--from", 0.5, "--to", 0.8, "--text", "do", "--seconds", 0.3)
    assert cli("sample", run, recording, *arguments, *QUICK, "--out", out).status == 0
    whole = probe(recording).seconds
    assert probe(out).seconds == pytest.approx(whole, abs=0.05)
    before = read_audio(recording, rate=24_000)[: int(0.4 * 24_000)]
    after = read_audio(out, rate=24_000)[: int(0.4 * 24_000)]
    # Through a vocoder the wave is another; its loudness over time is not.
    loudness = [np.abs(x[:9600]).reshape(-1, 480).mean(1) for x in (before, after)]
    assert np.corrcoef(loudness)[0, 1] > 0.9


def test_it_speaks_with_the_voice_of_a_recording(
    cli: Cli, run: Path, recording: Path, tmp_path: Path
) -> None:
    arguments = ("--text", "ba", "--voice", recording, "--voice-text", compose(3).text)
    assert cli("sample", run, *arguments, *QUICK, "--out", tmp_path / "new.wav").status == 0
    assert probe(tmp_path / "new.wav").seconds < probe(recording).seconds + 1


def test_each_recording_of_a_folder_is_edited_under_its_own_name(
    cli: Cli, run: Path, recording: Path, tmp_path: Path
) -> None:
    for name in ("one/a.wav", "two/a.wav"):
        path = tmp_path / "voices" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(recording.read_bytes())
    (tmp_path / "voices/torn.wav").write_bytes(b"RIFF")
    out = tmp_path / "out"
    span = ("--from", 0.5, "--to", 0.8, "--text", "do", "--seconds", 0.3)
    result = cli("sample", run, tmp_path / "voices", *span, *QUICK, "--out", out)
    assert result.status == 0, result.err
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.wav")) == [
        "one/a.edited.wav",
        "two/a.edited.wav",
    ]
    assert "torn.wav" in result.err
    assert "1 of 3 files were skipped" in result.err


def test_a_sound_beyond_full_scale_is_limited_and_said(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = VoiceBox.sample
    monkeypatch.setattr(VoiceBox, "sample", lambda *a, **k: [100 * s for s in loud(*a, **k)])
    result = cli("sample", run, "--text", "ba", *QUICK, "--out", tmp_path / "loud.wav")
    assert result.status == 0
    assert re.search(r"loud.wav: [\d,]+ of [\d,]+ samples were beyond full scale", result.err)
    assert np.abs(read_audio(tmp_path / "loud.wav", rate=24_000)).max() <= 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "nothing to speak"),
        (["RECORDING", "--text", "a"], "give --from and --to"),
        (["--text", "a", "--from", 1, "--to", 2], "give a recording"),
        (["--text", "a", "--steps", 0], "--steps is 0"),
        (["--text", "a", "--seconds", -1], "--seconds is -1"),
        (["--text", "a", "--cond-scale", "nan"], "--cond-scale is nan"),
        (["--text", "a", "--voice", "nowhere.wav"], "nowhere.wav is not a file"),
        (["RECORDING", "--text", "a", "--from", 5, "--to", 4], "5"),
        (["--text", "a", "--text", "b", "--out", "one.wav"], "one.wav is one file"),
        (
            ["FOLDER", "--text", "a", "--from", 0, "--to", 1, "--out", "one.wav"],
            "one.wav is one file",
        ),
        (
            ["FOLDER", "--text", "a", "--from", 0, "--to", 1, "--voice-text", "b"],
            "of one recording",
        ),
        (["FOLDER", "--text", "a"], "give --from and --to"),
    ],
)
def test_what_cannot_be_said_is_refused(
    cli: Cli, run: Path, recording: Path, words: list[object], sentence: str
) -> None:
    (recording.parent / "other.wav").write_bytes(recording.read_bytes())
    named = {"RECORDING": recording, "FOLDER": recording.parent}
    inputs = [named.get(str(word), word) for word in words]
    assert sentence in cli("sample", run, *inputs).sentence
    assert not Path("one.wav").exists()


def test_a_folder_with_transcripts_trains_is_measured_and_exported(
    cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "voices"
    folder.mkdir()
    rates = (8000, 16_000, 22_050, 44_100, 48_000, 24_000)
    for number, rate in enumerate(rates):
        result = compose(number)
        write_wav(folder / f"{number}.wav", speak(result, rate), rate)
        (folder / f"{number}.txt").write_text(result.text, encoding="utf-8")
    (folder / "silent.wav").write_bytes(b"RIFF")
    (folder / "silent.txt").write_text("nothing", encoding="utf-8")
    checked = cli("doctor", "speech", folder)
    assert "silent.wav" in checked.out + checked.err
    path, exported = tmp_path / "run", tmp_path / "exported"
    arguments = ("--recordings.valid-fraction", 0.3, "--max-damaged", 0.9)
    result = cli(
        "train", "speech/voicebox_tiny", folder, *FEW, *arguments, "--run", path, "--steps", 2
    )
    assert result.status == 0, result
    assert cli("evaluate", path, folder).status == 0
    assert cli("export", path, exported).status == 0
    spoken = ("--text", "ba", *QUICK, "--out", tmp_path / "x.wav")
    assert cli("sample", exported, *spoken).status == 0


def test_a_file_of_lines_is_spoken_and_its_pace_is_said(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("ba do\n\n  ki tu  \n")
    said = cli("sample", run, "--text-file", lines, "--out", tmp_path / "out", *QUICK)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.wav"))
    assert names == ["00-ba-do.wav", "01-ki-tu.wav"]
    pace = re.search(
        r"([\d.]+) s of speech in ([\d.]+) s, a real-time factor of ([\d.]+); "
        r"the first sound after ([\d.]+) s",
        said.err,
    )
    assert pace, said.err
    seconds, spent, factor, first = map(float, pace.groups())
    total = sum(probe(path).seconds for path in (tmp_path / "out").glob("*.wav"))
    assert seconds == pytest.approx(total, abs=0.06)
    assert factor == pytest.approx(spent / seconds, rel=0.2, abs=0.2)
    assert 0 < first <= spent + 0.06


def test_a_long_text_is_spoken_in_parts_with_pauses_between(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    """The model takes 36 bytes; half of them are left for a part beside the voice of the first."""
    text = "ba do ki tu. ki tu ba do. ma ba ki do."
    out = tmp_path / "long.wav"
    cli("sample", run, "--text", text, "--out", out, *QUICK)
    sound = read_audio(out, rate=24_000)
    silent = np.abs(sound) < 1e-9
    starts = np.flatnonzero(np.diff(np.concatenate(([0], silent.view(np.int8), [0]))) == 1)
    ends = np.flatnonzero(np.diff(np.concatenate(([0], silent.view(np.int8), [0]))) == -1)
    pauses = [end - start for start, end in zip(starts, ends) if end - start > 0.3 * 24_000]
    assert len(pauses) == 2
    assert all(0.35 * 24_000 <= pause <= 0.4 * 24_000 for pause in pauses)


def test_what_was_spoken_before_ctrl_c_stays(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "ba do ki tu. ki tu ba do. ma ba ki do."
    whole, part = tmp_path / "whole.wav", tmp_path / "part.wav"
    cli("sample", run, "--text", text, "--out", whole, *QUICK)
    speak_part, heard = VoiceBox.sample, list[float]()

    def sample(*arguments: Any, **keywords: Any) -> Any:
        heard.append(probe(part).seconds if part.exists() else 0.0)
        if len(heard) == 3:
            raise KeyboardInterrupt
        return speak_part(*arguments, **keywords)

    monkeypatch.setattr(VoiceBox, "sample", sample)
    stopped = cli("sample", run, "--text", text, "--out", part, *QUICK)
    assert stopped.status == 130
    assert re.search(r"interrupted after 2 of 3 parts, \d\.\d s of speech", stopped.err)
    assert str(part) in stopped.err
    assert 0 == heard[0] < heard[1] < heard[2] == probe(part).seconds < probe(whole).seconds
    frames = [path.read_bytes()[44:] for path in (whole, part)]
    assert frames[0].startswith(frames[1])


def test_a_file_without_lines_is_refused(cli: Cli, run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    said = cli("sample", run, "--text-file", tmp_path / "empty.txt", "--out", tmp_path)
    assert "is empty" in said.sentence


def test_an_unknown_language_is_answered_with_those_there_are(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    rows = []
    for number, language in enumerate(("en", "en", "en", "zzz")):
        write_wav(tmp_path / f"{number}.wav", speak(compose(number), 16_000), 16_000)
        rows.append({"file_name": f"{number}.wav", "text": "good morning", "language": language})
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for language, wrong in (("qqq", "qqq"), ("en-us", "zzz")):
        flags = ("--model.phonemes", language, "--run", tmp_path / "run")
        said = cli("train", "speech/voicebox_tiny", tmp_path, *FEW, *flags).sentence
        assert f"espeak-ng does not know the language '{wrong}'; there are af, am" in said
        assert not (tmp_path / "run").exists()


def test_a_folder_is_read_as_phonemes(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    folder, trained = tmp_path / "voices", tmp_path / "run"
    folder.mkdir()
    for number in range(6):
        write_wav(folder / f"{number}.wav", speak(compose(number), 16_000), 16_000)
        (folder / f"{number}.txt").write_text("good morning", encoding="utf-8")
    flags = ("--model.phonemes", "en-us", "--steps", 1, "--evaluate-every", 0, "--run", trained)
    result = cli("train", "speech/voicebox_tiny", folder, *FEW, *flags)
    assert result.status == 0, result.err
    out = tmp_path / "out.wav"
    assert cli("sample", trained, "--text", "good day", *QUICK, "--out", out).status == 0


@pytest.mark.slow
def test_a_model_of_phonemes_is_exported_as_a_graph(tmp_path: Path) -> None:
    graphs = pieces(voicebox(phonemes="en-us"), None)
    checked = export(graphs, tmp_path, "torch-export")  # raises where one differs
    assert [graph.any_size for graph in checked] == [True, True]
