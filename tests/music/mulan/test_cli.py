"""The music room from the command line: a run, and what is found with it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness import Said
from quintet.cli import main
from quintet.media.audio import write_wav
from quintet.music.tunes import compose, play

Cli = Callable[..., Said]
FEW = (
    *("--batch-size", 4, "--workers", 0, "--device", "cpu", "--trackers", "--log-every", 1),
    *("--sounds.valid-limit", 4, "--sounds.builtin-count", 16, "--model.dim", 32),
    *("--model.layers", 1, "--model.heads", 1, "--model.text-dim", 32, "--model.text-layers", 1),
    *("--model.text-heads", 1),
)


def put_songs(folder: Path, count: int, captions: bool = True) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        tune = compose(number)
        write_wav(folder / f"{number}.wav", play(tune, 1.0, 8000), 8000)
        if captions:
            (folder / f"{number}.txt").write_text(tune.captions[0], encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps. Never to be written to."""
    path = tmp_path_factory.mktemp("trained") / "run"
    arguments = ("train", "music/mulan_tiny", *FEW, "--run", path, "--steps", 2)
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in arguments])
    assert not ended.value.code
    return path


def test_a_folder_is_ranked_by_each_sentence(cli: Cli, run: Path, tmp_path: Path) -> None:
    songs = put_songs(tmp_path / "songs", 5, captions=False)
    texts = ("--text", "a slow melody", "--text", "drums")
    result = cli("sample", run, songs, *texts, "--top", 2, "--out", tmp_path / "out")
    assert result.status == 0
    assert result.out.count("  1. ") == result.out.count("  2. ") == 2
    assert "  3. " not in result.out
    ranking = json.loads((tmp_path / "out" / "ranking.json").read_text())
    assert [entry["of"] for entry in ranking] == ["a slow melody", "drums"]
    for entry in ranking:
        near = [best["similarity"] for best in entry["best"]]
        assert len(near) == 5
        assert near == sorted(near, reverse=True)


def test_files_of_one_name_in_sub_folders_are_ranked_apart(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    put_songs(tmp_path / "songs/one", 1, captions=False)
    put_songs(tmp_path / "songs/two", 1, captions=False)
    words = (tmp_path / "songs", "--text", "drums", "--out", tmp_path / "out")
    assert cli("sample", run, *words).status == 0
    (entry,) = json.loads((tmp_path / "out" / "ranking.json").read_text())
    names = sorted(Path(best["name"]).relative_to(tmp_path).as_posix() for best in entry["best"])
    assert names == ["songs/one/0.wav", "songs/two/0.wav"]


def test_captions_are_ranked_for_a_sound(cli: Cli, run: Path, tmp_path: Path) -> None:
    songs = put_songs(tmp_path / "songs", 1, captions=False)
    lines = tmp_path / "lines.txt"
    lines.write_text("a fast melody\na slow melody\n\na fast melody\n", encoding="utf-8")
    result = cli("sample", run, songs / "0.wav", "--captions", lines, "--out", tmp_path / "out")
    assert result.status == 0
    (entry,) = json.loads((tmp_path / "out" / "ranking.json").read_text())
    assert sorted(best["name"] for best in entry["best"]) == ["a fast melody", "a slow melody"]


def test_a_damaged_sound_is_left_out_by_name(cli: Cli, run: Path, tmp_path: Path) -> None:
    songs = put_songs(tmp_path / "songs", 2, captions=False)
    (songs / "text.wav").write_text("not a sound")
    result = cli("sample", run, songs, "--text", "drums", "--out", tmp_path / "out")
    assert result.status == 0
    assert "skipped: " in result.out
    assert "text.wav" in result.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["SONGS"], "to rank by"),
        (["SONGS", "--text", "a", "--captions", "LINES"], "not both"),
        (["nowhere", "--text", "a"], "is not a file or a folder"),
        (["SONGS", "--text", "a", "--top", 0], "--top is 0"),
        (["SONGS", "--captions", "nowhere.txt"], "nowhere.txt is not a file"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    cli: Cli, run: Path, tmp_path: Path, words: list[object], sentence: str
) -> None:
    songs = put_songs(tmp_path / "songs", 1, captions=False)
    (tmp_path / "lines.txt").write_text("a melody", encoding="utf-8")
    named = {"SONGS": songs, "LINES": tmp_path / "lines.txt"}
    inputs = [named.get(str(word), word) for word in words]
    result = cli("sample", run, *inputs, "--out", tmp_path / "out")
    assert sentence in result.sentence


def test_a_folder_of_mixed_rates_and_channels_trains_and_is_measured(
    cli: Cli, tmp_path: Path
) -> None:
    import soundfile

    songs = put_songs(tmp_path / "songs", 8)
    tone = np.sin(np.arange(44_100) * 0.05).astype(np.float32) * 0.3
    soundfile.write(songs / "stereo.flac", np.stack([tone, tone * 0.5], 1), 44_100)
    (songs / "stereo.txt").write_text("a steady tone", encoding="utf-8")
    (songs / "broken.mp3").write_bytes(b"\xff\xfb\x90" + b"\0" * 64)
    (songs / "broken.txt").write_text("nothing", encoding="utf-8")
    path = tmp_path / "run"
    checked = cli("doctor", "music", songs)
    assert "broken.mp3" in checked.out + checked.err
    arguments = ("--sounds.valid-fraction", 0.3, "--max-damaged", 0.9, "--batch-size", 2)
    result = cli("train", "music/mulan_tiny", songs, *FEW, *arguments, "--run", path, "--steps", 2)
    assert result.status == 0, result
    assert cli("evaluate", path, songs).status == 0
    exported = tmp_path / "exported"
    assert cli("export", path, exported).status == 0
    outcome = cli("sample", exported, songs, "--text", "a tone", "--out", tmp_path / "out")
    assert outcome.status == 0
