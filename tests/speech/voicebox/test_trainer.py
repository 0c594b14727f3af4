"""VoiceBoxTrainer and the command line: the speech room for its users."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness import lines
from quintet import rooms
from quintet.cli import main
from quintet.engine.errors import RunError
from quintet.media.audio import probe, read_audio, write_wav
from quintet.media.errors import BadFile
from quintet.shared.sampling import Trained
from quintet.speech import voices
from quintet.speech.config import SpeechDataConfig
from quintet.speech.data import Buckets
from quintet.speech.own_data import OwnRecordings
from quintet.speech.voicebox.config import SamplingConfig, VoiceBoxConfig
from quintet.speech.voicebox.model import VoiceBox
from quintet.speech.voicebox.sample import Flags, sample
from quintet.speech.voicebox.trainer import VoiceBoxTrainer
from speech.small import DATA, MODEL, small_buckets, utter, voicebox

RATE = 8_000
ONE = SamplingConfig(steps=1, method="euler", cond_scale=1.0, count=1)
QUICK = SamplingConfig(steps=1, method="euler", cond_scale=1.0, count=0)


def spoken(text: str = "bakitu", seed: int = 0) -> Tensor:
    return torch.from_numpy(voices.speak(utter(text, seed=seed), RATE))


def trainer(run: Path, *data: Any, **changes: Any) -> VoiceBoxTrainer:
    torch.manual_seed(0)
    keywords: dict[str, Any] = {
        "steps": 4,
        "batch_size": 2,
        "warmup_steps": 2,
        "evaluate_every": 2,
        "save_every": 2,
        "log_every": 1,
        "workers": 0,
        "device": "cpu",
        "trackers": (),
        "progress": False,
        "run": run,
        "recordings": SpeechDataConfig(**DATA),
        "sampling": QUICK,
    }
    model = changes.pop("model", None) or VoiceBox(**MODEL)
    return VoiceBoxTrainer(model, *data, **keywords | changes)


ITEMS: dict[str, Any] = {
    "sounds": lambda i: spoken(seed=i),
    "pairs": lambda i: (spoken(seed=i), "bakitu"),
    "arrays": lambda i: (spoken(seed=i).numpy(), "bakitu"),
    "dicts": lambda i: {"audio": spoken(seed=i)[None].expand(2, -1), "text": "bakitu"},
    "ids": lambda i: {"audio": spoken(seed=i), "ids": torch.tensor([3, 4, 5])},
}


@pytest.mark.by_default("ids", "pairs")
@pytest.mark.parametrize("kind", ITEMS)
def test_a_data_set_of_any_kind_trains(kind: str, tmp_path: Path) -> None:
    items = [ITEMS[kind](i) for i in range(8)]
    output = trainer(tmp_path / "run", items, valid_fraction=0.25, steps=1)
    assert output.train() == 1
    assert any("val/mel_error" in row for row in lines(tmp_path / "run"))


@pytest.fixture
def untitled(tmp_path: Path) -> Path:
    """Recordings without any text."""
    folder = tmp_path / "untitled"
    folder.mkdir()
    for index in range(10):
        write_wav(folder / f"{index}.wav", spoken(seed=index).numpy(), RATE)
    return folder


def test_a_folder_without_texts_names_the_setting_that_reads_it(
    untitled: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadFile, match=r"10 of 10 recordings have no text.*--model\.text none"):
        trainer(tmp_path / "run", data=untitled)


def test_recordings_without_texts_train_from_a_folder(untitled: Path, tmp_path: Path) -> None:
    run, sound = tmp_path / "run", untitled / "0.wav"
    output = trainer(run, data=untitled, model=VoiceBox(**MODEL, text="none"), steps=2)
    assert output.train() == 2
    rows = lines(run)
    assert rows[-1]["val/mel_error"] > 0
    assert rows[0]["voicebox/alignment"] == 0
    audio = spoken(seed=0)
    (free,) = output.generate(cond=[audio], steps=1)
    assert len(free) > 0.9 * len(audio)
    with pytest.raises(ValueError, match="drop texts"):
        output.generate(texts=["ba"])
    flags = {"from_": 0.1, "to": 0.2, "steps": 1, "device": "cpu"}
    model = rooms.trained(run)[1]
    (path, _) = sample(model, [sound], tmp_path / "out.wav", Flags(**flags))
    assert len(read_audio(path, rate=RATE)) == len(read_audio(sound, rate=RATE))
    with pytest.raises(RunError, match="without texts"):
        sample(model, [sound], tmp_path / "out.wav", Flags(text=("ba",), **flags))


@pytest.mark.by_default("pairs")
@pytest.mark.parametrize("data", ["built in", "pairs"])
def test_a_model_of_sound_alone_ignores_texts(data: str, tmp_path: Path) -> None:
    model = VoiceBox(**MODEL, text="none")
    assert model.durations is None
    items = () if data == "built in" else ([ITEMS["pairs"](i) for i in range(8)],)
    assert trainer(tmp_path / "run", *items, model=model, sampling=ONE, steps=2).train() == 2


def test_the_command_line_trains_on_sound_alone(untitled: Path, tmp_path: Path) -> None:
    small = ["--steps", "1", "--workers", "0", "--device", "cpu", "--batch-size", "2"]
    run = ["--data", str(untitled), "--run", str(tmp_path / "run")]
    data = ["--recordings.max-seconds", "2", "--recordings.sample-rate", str(RATE)]
    model = ["--model.text", "none", "--model.sample-rate", str(RATE)]
    with pytest.raises(SystemExit, match="0"):
        main(["train", "speech/voicebox_tiny", *run, *small, *data, *model])
    assert lines(tmp_path / "run")


def test_latents_and_ids_for_each_frame_train(tmp_path: Path) -> None:
    settings = {"features": "latents", "n_mels": 6, "text": "given", "vocabulary": 9}
    items = [
        {"latents": torch.randn(20 + i, 6), "ids": torch.randint(2, 9, (20 + i,))} for i in range(8)
    ]
    output = trainer(tmp_path / "run", items, model=VoiceBox(**MODEL | settings), steps=2)
    assert output.train() == 2


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        ((torch.zeros(10, dtype=torch.int16), "ba"), TypeError, "floating-point"),
        ({"audio": spoken(), "caption": "ba"}, TypeError, "'caption'"),
        ({"text": "ba"}, TypeError, "no audio"),
        ((spoken(), "ba", 1), TypeError, "3 fields"),
        ((torch.zeros(4_000), "ba"), ValueError, "silent"),
        ((torch.full((4_000,), torch.nan), "ba"), ValueError, "nan"),
        ((spoken().repeat(9), "ba"), ValueError, "max_seconds"),
        ((spoken(), "🙂"), ValueError, "a symbol"),
        ((spoken(), torch.zeros(2, 2)), TypeError, "integers"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_number(item, error, message):
    with pytest.raises(error, match=message):
        OwnRecordings([item], small_buckets()).keyed(0, None)


def test_frames_and_ids_that_differ_in_number_are_refused():
    model = VoiceBoxConfig(**MODEL | {"text": "given", "vocabulary": 9})
    data = OwnRecordings(
        [(spoken(), torch.ones(3, dtype=torch.int64))], Buckets(small_buckets().config, model)
    )
    with pytest.raises(TypeError, match="one per frame"):
        data.keyed(0, None)


def test_data_is_given_once_and_unknown_keywords_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not both"):
        trainer(tmp_path, [spoken()], data=tmp_path)
    with pytest.raises(RunError, match="val_dataset goes with dataset"):
        trainer(tmp_path, val_dataset=[spoken()])
    with pytest.raises(TypeError, match="unknown keyword"):
        trainer(tmp_path, speed=3)
    with pytest.warns(FutureWarning, match="learning_rate"):
        trainer(tmp_path, lr=1e-3)


def test_an_epoch_counts_recordings_of_the_longest_kind(tmp_path: Path) -> None:
    items = [(spoken("ba", seed=i), "ba") for i in range(60)]
    output = trainer(tmp_path, items, steps=None, num_epochs=1, valid_fraction=0.0)
    assert output.recipe.steps == 10, "60 of the shortest of three kinds, 2 x 3 at a time"


def test_generate_speaks_by_the_averaged_weights(tmp_path: Path) -> None:
    output = trainer(tmp_path / "run", ema_decay=0.5, steps=2)
    output.train()
    live = output.model.text_embedding.weight.clone()
    (sound,) = output.generate(texts="bakitu", steps=1, seconds=0.5)
    assert len(sound) == pytest.approx(0.5 * RATE, abs=2 * 128)
    assert not output.model.text_embedding.weight.equal(live)


# -- the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return rooms.trained(voicebox().save_pretrained(tmp_path_factory.mktemp("model")))[1]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "voice.wav"
    write_wav(path, voices.speak(utter("bakitu"), 16_000), 16_000)
    return path


def test_sample_speaks_each_text(exported, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["sample", str(exported.path), "--text", "ba ki", "so", "--steps", "1",
              "--out", str(tmp_path / "out")])  # fmt: skip
    assert not ended.value.code
    names = {path.name for path in (tmp_path / "out").glob("[!.]*")}
    assert names == {"00-ba-ki.wav", "00-ba-ki.png", "01-so.wav", "01-so.png"}
    assert "01-so.wav" in capsys.readouterr().out
    assert probe(tmp_path / "out" / "01-so.wav").rate == RATE


@pytest.mark.parametrize("said", [None, "bakitu"])
def test_sample_speaks_in_a_voice(exported, recording, tmp_path, said):
    out = tmp_path / "new" / "out.wav"
    flags = Flags(text=("so",), voice=recording, voice_text=said, steps=1, seconds=0.4)
    assert sample(exported, (), out, flags) == [out, out.with_suffix(".png")]
    assert probe(out).seconds == pytest.approx(0.4, abs=0.02)


def test_sample_mends_a_span(exported, recording, tmp_path):
    out = tmp_path / "out.wav"
    flags = Flags(text=("so",), from_=0.2, to=0.4, voice_text="bakitu", steps=1, seconds=0.2)
    sample(exported, (recording,), out, flags)
    was, now = (read_audio(path, rate=RATE) for path in (recording, out))
    assert len(now) == pytest.approx(len(was), abs=256)
    assert np.allclose(was[: round(0.15 * RATE)], now[: round(0.15 * RATE)], atol=1e-3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "nothing to speak"),
        ({"text": ("so",), "steps": 0}, "--steps"),
        ({"text": ("so",), "from_": 0.1}, "--from and --to"),
        ({"text": ("so",), "voice_text": "ba"}, "--voice as well"),
        ({"text": ("so", "ba")}, "name a folder"),
        ({"text": ("🙂",)}, "a symbol"),
        ({"text": ("so",), "voice": Path("none.wav")}, "not a file"),
        ({"text": ("so",), "seconds": -1.0}, "--seconds"),
        ({"text": ("so",), "vocoder": Path("none")}, "none"),
    ],
)
def test_sample_says_what_is_wrong(exported, tmp_path, flags, message):
    with pytest.raises(RunError, match=message):
        sample(exported, (), tmp_path / "out.wav", Flags(**flags))
    assert not (tmp_path / "out.wav").exists()


def test_a_recording_is_mended_where_it_is(exported, recording, tmp_path):
    for flags, message in (
        (Flags(text=("so",)), "give --from and --to"),
        (Flags(text=("so",), from_=0.1, to=9.0), "times inside of it"),
        (Flags(text=("so", "ba"), from_=0.1, to=0.2), "one --text"),
    ):
        with pytest.raises(RunError, match=message):
            sample(exported, (recording,), tmp_path / "out", flags)
