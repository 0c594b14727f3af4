"""MuLaNTrainer: the music room for Python users."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import quintet
from harness import lines
from quintet.engine.config import ConfigError
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.media.audio import read_audio, write_wav
from quintet.music import tunes
from quintet.music.config import MusicDataConfig
from quintet.music.mulan.model import MuLaN
from quintet.music.mulan.trainer import MuLaNTrainer
from quintet.music.own_data import OwnSounds

RATE = 4_000


def mulan(**changes: Any) -> MuLaN:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "sample_rate": RATE,
        "n_fft": 256,
        "hop_length": 128,
        "n_mels": 32,
        "patch_size": (16, 4),
        "dim": 16,
        "layers": 1,
        "heads": 1,
        "head_dim": 16,
        "text_length": 32,
        "text_dim": 16,
        "text_layers": 1,
        "text_heads": 1,
        "text_head_dim": 16,
        "dim_latent": 16,
        "quantiser_depth": 2,
        "quantiser_bits": 3,
    }
    return MuLaN(**settings | changes)


def trainer(run: Path, *data: Any, **changes: Any) -> MuLaNTrainer:
    keywords: dict[str, Any] = {
        "steps": 4,
        "batch_size": 4,
        "warmup_steps": 2,
        "evaluate_every": 2,
        "save_every": 2,
        "log_every": 1,
        "workers": 0,
        "device": "cpu",
        "trackers": (),
        "progress": False,
        "valid_fraction": 0.25,
        "run": run,
        **changes,
    }
    if "sounds" not in keywords and "data_max_length" not in keywords:
        keywords.setdefault("seconds", 1.0)
    return MuLaNTrainer(mulan(), *data, **keywords)


class Songs:
    """Sixteen sounds, as a person might hand them over."""

    def __init__(self, kind: str):
        self.kind = kind

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < 16:
            raise IndexError(index)
        wav = torch.from_numpy(tunes.play(tunes.compose(index), 0.5 + 0.05 * index, RATE))
        text, ids = f"song {index}", torch.arange(1, 4 + index)
        match self.kind:
            case "dict":
                return {"wavs": wav, "texts": ids}
            case "raw dict":
                return {"audio": wav.numpy(), "caption": text}
            case "strings called texts":
                return {"wav": wav, "texts": text}
            case "tuple":
                return wav, text
            case "turned":
                return text, wav
            case "array":
                return wav.double().numpy(), ids.numpy()
            case "stereo":
                return torch.stack([wav, -0.5 * wav]) if index % 2 else wav, text
            case "no caption":
                return (wav,)
            case "two sounds":
                return wav, wav, text
            case "int":
                return (wav * 32767).short(), text
            case "none":
                return wav, text, None
            case "unknown":
                return {"wav": wav, "lyrics": text}
            case "upright":
                return wav[:, None].repeat(1, 2), text
            case "mixed":
                return (wav, text) if index % 2 else (wav, ids)
            case _:
                return wav


ROUTED = ["dict", "raw dict", "strings called texts", "tuple", "turned", "array", "stereo"]


@pytest.fixture
def songs(tmp_path: Path) -> Path:
    folder = tmp_path / "songs"
    folder.mkdir()
    for index in range(16):
        tune = tunes.compose(index)
        write_wav(folder / f"{index:02d}.wav", tunes.play(tune, 0.5 + 0.1 * index, 8_000), 8_000)
        (folder / f"{index:02d}.txt").write_text(tune.captions[0])
    return folder


# -- routing --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ROUTED)
def test_every_kind_of_item_is_routed_to_the_same_sample(kind):
    data = OwnSounds(Songs(kind), RATE)
    for index in (1, 2):
        sample, wav = data.keyed(index, None), Songs("sound")[index]
        loud = 0.25 if kind == "stereo" and index % 2 else 1.0
        torch.testing.assert_close(sample["wav"], loud * wav)
        assert sample["length"] == len(wav)
        if kind in ("dict", "array"):
            assert sample["tokens"].tolist() == list(range(1, 4 + index))
        else:
            assert sample["text"] == f"song {index}"
            assert "tokens" not in sample


def test_names_say_what_types_cannot():
    class Pairs(Songs):
        def __getitem__(self, index: int) -> Any:
            wav, text = super().__getitem__(index)
            return text, wav

    data = OwnSounds(Pairs("tuple"), RATE, ("raw_texts", "wavs"))
    assert data.keyed(3, None)["text"] == "song 3"
    with pytest.raises(TypeError, match=r"data_kwargs names 3 fields, but sample 0 has 2"):
        OwnSounds(Pairs("tuple"), RATE, ("raw_texts", "wavs", "texts")).keyed(0, None)
    with pytest.raises(TypeError, match=r"data_kwargs names 'lyrics'; known: wavs"):
        OwnSounds(Pairs("tuple"), RATE, ("lyrics", "wavs"))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no caption", "sample 1 has only Tensor; items must be dicts, or tuples of a sound"),
        ("two sounds", "sample 1 has wavs twice.*data_kwargs"),
        ("int", r"sample 1 has a field of torch\.int16, which cannot be routed; floats are"),
        ("none", "sample 1 has a field of NoneType, which cannot be routed"),
        ("unknown", "sample 1 has 'lyrics'; known: wavs, wav, audio"),
        ("upright", r"the sound of sample 1 has shape \(2200, 2\); give"),
        ("sound", "sample 1 has only Tensor; items must be dicts, or tuples"),
    ],
)
def test_what_cannot_be_routed_is_refused_by_its_number(kind, message):
    with pytest.raises(TypeError, match=message):
        OwnSounds(Songs(kind), RATE).keyed(1, None)


def test_strings_and_ids_do_not_mix(tmp_path):
    with pytest.raises(TypeError, match="some captions are strings and some are ids"):
        trainer(tmp_path / "run", Songs("mixed")).train()


def test_long_sounds_are_cut_by_their_key():
    data = OwnSounds(Songs("tuple"), 1_000)
    whole = Songs("sound")[8]
    first = (len(whole) - 1_000) / 2
    middle = whole[round(first) : round(first) + 1_000]
    assert torch.equal(data.keyed(8, None)["wav"], middle)
    one, again = (data.keyed(8, Key(0, 0, 3))["wav"] for _ in range(2))
    assert torch.equal(one, again)
    assert len({tuple(data.keyed(8, Key(0, 0, k))["wav"].tolist()) for k in range(4)}) == 4


def test_samples_that_are_no_numbers_are_damage():
    class Broken(Songs):
        def __getitem__(self, index: int) -> Any:
            wav, text = super().__getitem__(index)
            wav[5] = np.nan
            return wav, text

    with pytest.raises(ValueError, match="sample 2 has non-finite samples"):
        OwnSounds(Broken("tuple"), RATE).keyed(2, None)


# -- training -------------------------------------------------------------------------------


@pytest.mark.by_default("raw dict", "stereo", "tuple")
@pytest.mark.parametrize("kind", ROUTED)
def test_a_data_set_of_any_kind_trains(kind: str, tmp_path: Path) -> None:
    assert trainer(tmp_path / "run", Songs(kind), steps=2, evaluate_every=1).train() == 2
    assert [r["step"] for r in lines(tmp_path / "run") if "val/loss" in r] == [1, 2]


def test_a_folder_trains_and_the_command_line_knows_the_run(
    songs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("soundfile")
    from quintet.cli import main

    trainer(tmp_path / "run", data=songs).train()
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(tmp_path / "run")])
    assert not ended.value.code
    captured = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert captured["loss"] == lines(tmp_path / "run")[-1]["val/loss"]


def test_built_in_music_trains(tmp_path: Path) -> None:
    sounds = MusicDataConfig(
        sample_rate=RATE, seconds=1.0, min_seconds=0.5, builtin_count=16, valid_limit=8
    )
    actual = trainer(tmp_path / "run", sounds=sounds)
    assert actual.recipe.data is None
    assert actual.train() == 4
    assert "val/zero_shot_tempo" in lines(tmp_path / "run")[-1]


def test_held_out_sounds_of_the_users_own_are_measured(tmp_path: Path) -> None:
    actual = trainer(tmp_path / "run", Songs("tuple"), val_dataset=Songs("raw dict"))
    actual.train()
    assert len(actual.task(actual.recipe).data("train")) == 16
    assert "val/loss" in lines(tmp_path / "run")[-1]


def test_lengths_are_given_in_seconds_or_samples_and_once(tmp_path: Path) -> None:
    for keywords in ({"seconds": 0.5}, {"data_max_length": 2_000}):
        actual = trainer(tmp_path / "run", Songs("tuple"), **keywords)
        assert actual.recipe.sounds.seconds == 0.5
        assert actual.task(actual.recipe).data("train").keyed(0, None)["length"] == 2_000
    with pytest.raises(RunError, match="give one of seconds, data_max_length"):
        trainer(tmp_path / "run", Songs("tuple"), data_max_length=9, seconds=1.0)


def test_data_is_given_once(songs: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"give data \(a folder\) or dataset, not both"):
        trainer(tmp_path / "run", Songs("tuple"), data=songs)
    with pytest.raises(RunError, match="val_dataset goes with dataset"):
        trainer(tmp_path / "run", data=songs, val_dataset=Songs("tuple"))


def test_the_rates_of_model_and_data_agree(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sounds\.sample_rate"):
        trainer(tmp_path / "run", sounds=MusicDataConfig(sample_rate=16_000))


def test_old_spellings_work_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="lr is now called learning_rate"):
        actual = trainer(tmp_path / "run", Songs("tuple"), lr=1e-3)
    assert actual.recipe.optim.learning_rate == 1e-3
    with pytest.raises(TypeError, match="unknown keyword 'data_length'"):
        trainer(tmp_path / "run", Songs("tuple"), data_length=3)


# -- going on, and afterwards ---------------------------------------------------------------


def test_embeddings_come_from_the_averaged_weights(tmp_path: Path) -> None:
    actual = trainer(tmp_path / "run", Songs("tuple"))
    actual.train()
    loaded = quintet.load(tmp_path / "run")
    wavs, lengths = torch.rand(3, 3_000) - 0.5, torch.tensor([3_000, 2_000, 1_500])
    heard: Tensor = actual.embed_audio(wavs, lengths)
    read = actual.embed_text(["a slow melody", "bells"])
    assert torch.equal(heard, loaded.embed_audio(wavs, lengths))
    assert torch.equal(heard, actual.get_audio_latents(wavs, lengths))
    assert torch.equal(read, loaded.embed_text(["a slow melody", "bells"]))
    assert torch.equal(read, actual.get_text_latents(raw_texts=["a slow melody", "bells"]))
    torch.testing.assert_close(heard.norm(dim=-1), torch.ones(3))
    assert not heard.requires_grad
    codes = actual.quantize_latents(heard)
    assert codes.shape == (3, 2)
    assert 0 <= codes.min() <= codes.max() < 8


# -- the command line -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("music") / "run"
    sounds = MusicDataConfig(
        sample_rate=RATE, seconds=1.0, min_seconds=1.0, builtin_count=16, valid_limit=8
    )
    trainer(run, sounds=sounds, steps=1, evaluate_every=0).train()
    return run


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[Any, list[str], str]:
    from quintet.cli import main

    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    output = capsys.readouterr()
    return ended.value.code, output.out.splitlines(), output.err


def test_sample_ranks_the_sounds_of_a_folder_by_a_sentence(trained, songs, tmp_path, capsys):
    pytest.importorskip("soundfile")
    (songs / "bad.wav").write_bytes(b"nothing")
    out = tmp_path / "out"
    asked = ("--text", "a slow melody", "--top", 3, "--out", out)
    status, output, _ = command(capsys, "sample", trained, songs, *asked)
    assert not status
    assert "bad.wav: is none of WAV" in output[0]
    assert output[1] == "a slow melody"
    ranking = json.loads((out / "ranking.json").read_text())
    best = ranking[0]["best"]
    assert len(best) == 16
    assert [row["similarity"] for row in best] == sorted(r["similarity"] for r in best)[::-1]
    assert [line.split()[-1] for line in output[2:5]] == [row["name"] for row in best[:3]]
    assert output[5:] == [str(out / "ranking.json")]
    heard = torch.from_numpy(read_audio(best[0]["name"], rate=RATE))
    near = quintet.load(trained).similarity(heard[None], ["a slow melody"]).item()
    assert best[0]["similarity"] == pytest.approx(near, abs=1e-3)


def test_sample_ranks_captions_for_a_sound(trained, songs, tmp_path, capsys):
    pytest.importorskip("soundfile")
    (tmp_path / "captions.txt").write_text("bells\n\na slow melody on strings\nbells\n")
    asked = ("--captions", tmp_path / "captions.txt", "--out", tmp_path / "out")
    status, output, _ = command(capsys, "sample", trained, songs / "03.wav", *asked)
    assert not status
    assert output[0] == str(songs / "03.wav")
    assert len(output) == 4
    assert {line.split(maxsplit=2)[2] for line in output[1:3]} == {
        "bells",
        "a slow melody on strings",
    }


def test_sample_without_sounds_takes_held_out_ones(trained, tmp_path, capsys):
    status, output, _ = command(capsys, "sample", trained, "--count", 3, "--out", tmp_path / "out")
    assert not status
    assert output[0] == str(tmp_path / "out" / "validation-000.wav")
    assert len(list((tmp_path / "out").glob("*.wav"))) == 3
    captions = {row["name"] for row in json.loads(Path(output[-1]).read_text())[0]["best"]}
    assert captions == {tunes.compose(2 * index + 1).captions[0] for index in range(3)}


def test_sample_says_what_is_wrong(trained, songs, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "none.txt").write_text("\n")
    (tmp_path / "bad.wav").write_bytes(b"nothing")
    for arguments, message in (
        ((songs,), "--text"),
        ((songs, "--text", "a", "--captions", tmp_path / "none.txt"), "not both"),
        ((tmp_path / "absent", "--text", "a"), "is not a file or a folder"),
        ((tmp_path / "empty", "--text", "a"), "holds no sounds"),
        ((tmp_path / "bad.wav", "--text", "a"), "no audio file is readable"),
        ((songs, "--captions", tmp_path / "latin.txt"), "not UTF-8"),
        ((songs, "--captions", tmp_path / "none.txt"), "is empty"),
        ((songs, "--captions", tmp_path / "absent.txt"), "not a file"),
        ((songs, "--text", "a", "--top", 0), "--top"),
    ):
        status, _, err = command(capsys, "sample", trained, *arguments, "--out", tmp_path / "out")
        assert status == 2, arguments
        assert message in err
