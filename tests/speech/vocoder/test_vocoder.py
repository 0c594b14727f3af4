"""The vocoder: its network, data, task, trainer and commands."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness import Said
from quintet import rooms
from quintet.engine.config import ConfigError, OptimizerConfig
from quintet.engine.data.wire import widened
from quintet.engine.errors import RunError
from quintet.engine.evaluate import ConcatData
from quintet.engine.keys import Key
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch
from quintet.media.audio import probe, write_wav
from quintet.media.errors import BadFile
from quintet.nn.spectral_errors import mel_errors, stft_errors
from quintet.speech import voices
from quintet.speech.vocoder import model as vocoder_model
from quintet.speech.vocoder.config import (
    VocoderConfig,
    VocoderDataConfig,
    VocoderRecipe,
)
from quintet.speech.vocoder.data import open_data
from quintet.speech.vocoder.export import pieces
from quintet.speech.vocoder.loading import matching_vocoder
from quintet.speech.vocoder.model import Vocoder
from quintet.speech.vocoder.outputs import outputs
from quintet.speech.vocoder.task import VocoderTask
from quintet.speech.vocoder.trainer import VocoderTrainer
from quintet.speech.voicebox.config import VoiceBoxConfig
from speech.small import MODEL as VOICEBOX
from speech.small import voicebox

Cli = Callable[..., Said]
RATE = 8_000
FRAMES: dict[str, Any] = {"sample_rate": RATE, "n_fft": 512, "hop_length": 128, "n_mels": 20}
MODEL = VocoderConfig(**FRAMES, dim=32, depth=2, retrievals=2, corrections=2)
DATA = VocoderDataConfig(
    sample_rate=RATE,
    seconds=0.25,
    valid_seconds=1.0,
    builtin_count=40,
    valid_limit=4,
    valid_fraction=0.2,
)


def recipe(**changes: Any) -> VocoderRecipe:
    settings: dict[str, Any] = {
        "steps": 4,
        "batch_size": 4,
        "device": "cpu",
        "workers": 0,
        "trackers": (),
        "log_every": 1,
        "evaluate_every": 0,
        "model": MODEL,
        "recordings": DATA,
        "optim": OptimizerConfig(learning_rate=3e-3, warmup_steps=2, ema_decay=0.9),
        **changes,
    }
    return VocoderRecipe(**settings)


def spoken(number: int = 1, rate: int = RATE) -> Tensor:
    return torch.from_numpy(voices.speak(voices.compose(number), rate))


def opened(settings: VocoderRecipe, path: Path) -> Run:
    folder = RunFolder.create(path, {})
    return Run(VocoderTask(settings), settings, World(settings), folder)


def held_out(task: VocoderTask, count: int = 3) -> Batch:
    source = task.data("valid")
    items = [source.keyed(index, None) for index in range(count)]
    return Batch(widened(task.collate(items)), list(range(count)), torch.arange(count))


# -- the network ----------------------------------------------------------------------------------


@pytest.fixture
def model() -> Vocoder:
    torch.manual_seed(0)
    return Vocoder(MODEL).eval()


def test_a_copy_is_as_long_as_the_sound(model: Vocoder) -> None:
    for length in (1000, 1024, 1025):
        assert model.copy(torch.randn(2, length)).shape == (2, length)
    assert model.copy(torch.randn(777)).shape == (777,)


def test_a_copy_does_not_depend_on_its_neighbours(model: Vocoder) -> None:
    sounds = torch.randn(3, 2048) * torch.tensor([[0.001], [0.1], [1.0]])
    alone = torch.cat([model.copy(sound[None]) for sound in sounds])
    torch.testing.assert_close(model.copy(sounds), alone, rtol=1e-4, atol=1e-4)


def test_corrections_bring_the_log_mels_of_any_network_closer() -> None:
    sound = spoken()[: 128 * 60][None]
    found = []
    for corrections in (0, 1, 4, 12):
        torch.manual_seed(0)
        model = Vocoder(dataclasses.replace(MODEL, corrections=corrections)).eval()
        log_mels = model.mel(sound)
        found.append((model.mel(model(log_mels)) - log_mels).abs().mean().item())
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.3 * found[0]


def test_over_relaxed_corrections_are_faster_and_do_not_diverge(monkeypatch) -> None:
    log_mels = Vocoder(MODEL).mel(spoken()[: 128 * 60][None])

    def error(pull: float, corrections: int) -> float:
        monkeypatch.setattr(vocoder_model, "PULL", pull)
        torch.manual_seed(0)
        model = Vocoder(dataclasses.replace(MODEL, corrections=corrections)).eval()
        return (model.mel(model(log_mels)) - log_mels).abs().mean().item()

    chosen, limit = vocoder_model.PULL, 1 + 1 / (1 + 2 * vocoder_model.AHEAD)
    assert 1 < chosen < limit
    assert error(chosen, 32) < error(1.0, 32)
    assert error(chosen, 200) < error(chosen, 32)
    assert error(limit + 0.2, 200) > 10 * error(chosen, 200)  # the limit is one


def test_silence_stays_silent(model: Vocoder) -> None:
    assert model.copy(torch.zeros(1, 2048)).abs().max() < 1e-3


def test_gradients_of_the_error_reach_all_parameters(model: Vocoder) -> None:
    sounds = spoken()[None, :4096]
    model(model.mel(sounds), sounds).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert all(g is not None and g.isfinite().all() and g.any() for g in gradients.values())


def test_the_right_magnitudes_have_no_error(
    model: Vocoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sounds = spoken()[None, :4096]
    log_mels = model.mel(sounds)
    right = model.griffin_lim.stft(sounds, log_mels.shape[2]).abs().clamp_min(1e-9).log()
    known = model.log_magnitudes(log_mels) - model.offsets(log_mels)
    monkeypatch.setattr(model, "offsets", lambda _: right - known)
    assert model(log_mels, sounds).max() < 1e-4
    copy = model(log_mels)  # the phases of the right magnitudes are nearly found
    assert (model.mel(copy) - log_mels).abs().mean() < 0.2


def test_errors_of_a_sound_do_not_depend_on_its_padding(model: Vocoder) -> None:
    real, fake = torch.randn(2, 1, 3000).unbind()
    lengths = torch.tensor([3000])
    padded = [torch.nn.functional.pad(x, (0, 5000)) for x in (real, fake)]
    for error in (lambda *x: mel_errors(*x, model.mel), stft_errors):
        torch.testing.assert_close(error(real, fake, lengths), error(*padded, lengths))


# -- data -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Recordings without transcripts, one of them mostly silent."""
    path = tmp_path / "recordings"
    path.mkdir()
    for number in range(8):
        write_wav(path / f"{number}.wav", spoken(number).numpy(), RATE)
    pause = np.pad(spoken(9).numpy(), (0, 10 * RATE))
    write_wav(path / "pause.wav", pause, RATE)
    return path


def test_segments_follow_from_the_key_and_pauses_are_kept(folder: Path) -> None:
    settings = recipe(data=str(folder))
    train: Any = open_data(settings, "train")
    assert len(train) + len(open_data(settings, "valid")) == 9
    index = next((i for i in range(len(train)) if train.name(i) == "pause.wav"), 0)
    segments = [train.keyed(index, Key(0, epoch, index))["audio"] for epoch in range(12)]
    again = train.keyed(index, Key(0, 3, index))["audio"]
    assert torch.equal(segments[3], again)
    assert len({tuple(s[:50].tolist()) for s in segments}) > 1
    assert all(len(s) == settings.segment for s in segments)


def test_recordings_are_played_faster_and_slower_in_training_alone(tmp_path: Path) -> None:
    for number in range(10):
        tone = (0.4 + number / 100) * np.sin(2 * np.pi * 1000 * np.arange(4 * RATE) / RATE)
        write_wav(tmp_path / f"{number}.wav", tone.astype(np.float32), RATE)
    changed = dataclasses.replace(DATA, speed=0.5)
    settings = recipe(data=str(tmp_path), recordings=changed)
    train, valid = (open_data(settings, split) for split in ("train", "valid"))

    def pitch(source: Any, key: Key | None) -> float:
        audio = source.keyed(0, key)["audio"].float()
        assert len(audio) == settings.segment if key else len(audio) == settings.valid_segment
        spectrum = torch.fft.rfft(audio * torch.hann_window(len(audio)), 1 << 16).abs()
        return spectrum.argmax().item() * RATE / (1 << 16)

    heard = [pitch(train, Key(0, epoch, 0)) for epoch in range(40)]
    assert heard[7] == pitch(train, Key(0, 7, 0))
    assert 1000 / 1.51 < min(heard) < 750
    assert 1333 < max(heard) < 1510
    assert pitch(valid, None) == pytest.approx(1000, abs=1)
    plain = open_data(recipe(data=str(tmp_path)), "train")
    assert pitch(plain, Key(0, 7, 0)) == pytest.approx(1000, abs=3)
    with pytest.raises(ConfigError, match="speed"):
        dataclasses.replace(DATA, speed=1.5)


def test_a_run_trains_on_a_folder_without_transcripts(folder: Path, tmp_path: Path) -> None:
    run = opened(recipe(data=str(folder)), tmp_path / "run")
    take_step(run)
    assert run.evaluate()["mel_error"] > 0
    run.close()


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="recordings"):
        open_data(recipe(data=str(tmp_path)), "train")


def test_batches_have_two_lengths_only() -> None:
    task = VocoderTask(recipe())
    for size, seconds in ((100, 0.25), (2000, 0.25), (2049, 1.0), (5000, 1.0)):
        batch = task.collate([{"audio": torch.zeros(size)}, {"audio": torch.zeros(80)}])
        hop = MODEL.hop_length
        assert batch["audio"].shape == (2, round(seconds * RATE / hop) * hop)
        assert batch["lengths"].tolist() == [size, 80]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"recordings": dataclasses.replace(DATA, seconds=0.01)}, "recordings.seconds"),
        ({"recordings": dataclasses.replace(DATA, sample_rate=16_000)}, "recordings.sample_rate"),
    ],
)
def test_settings_that_cannot_be_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        recipe(**change)


def test_sounds_of_another_scale_are_refused() -> None:
    with pytest.raises(ValueError, match="divide 16-bit integers by 32768"):
        VocoderTask(recipe()).check({"audio": torch.full((1, 2048), 3000.0)})


# -- the task -------------------------------------------------------------------------------------


def test_a_run_learns_to_copy(tmp_path: Path) -> None:
    run = opened(recipe(steps=60), tmp_path)
    begun = run.evaluate()
    for _ in range(60):
        take_step(run)
    ended = run.evaluate()
    run.close()
    assert ended["mel_error"] < 0.95 * begun["mel_error"]
    assert ended["stft_error"] < begun["stft_error"]
    for name in ("mel_error", "stft_error", "pitch_error"):
        assert ended[f"{name}_griffin_lim"] == begun[f"{name}_griffin_lim"]
    ratios = [ended[name] / ended[f"{name}_griffin_lim"] for name in ("mel_error", "stft_error")]
    assert ended["share_of_griffin_lim"] == pytest.approx(max(ratios))


def test_a_perfect_copy_has_no_error_and_an_octave_is_1200_cents() -> None:
    task = VocoderTask(recipe())
    batch = held_out(task)
    assert task._distances(batch, batch.data["audio"]).abs().max() < 1e-6
    seconds = torch.arange(RATE) / RATE
    tones = [torch.sin(2 * torch.pi * hz * seconds)[None] for hz in (150.0, 300.0)]
    data = {"audio": tones[0], "lengths": torch.tensor([RATE])}
    cents = task._distances(Batch(data, [0], torch.zeros(1)), tones[1])[0, 2]
    assert cents == pytest.approx(1200, abs=10)


def test_exhibits_are_originals_copies_and_griffin_lim(tmp_path: Path) -> None:
    task = VocoderTask(recipe())
    nets = {"vocoder": task.model.eval()}
    with torch.no_grad():
        (first, *_) = task.exhibit(nets, held_out(task))
    paths = first.write(tmp_path)
    names = [path.name for path in paths if path.suffix == ".wav"]
    assert names == [f"speech-0-{kind}.wav" for kind in ("original", "copy", "griffin-lim")]
    assert len({probe(tmp_path / name).frames for name in names}) == 1


def test_whole_recordings_are_copied_for_judges(tmp_path: Path) -> None:
    for number, seconds in enumerate((0.3, 0.7, 3.0)):
        sound = spoken(number).repeat(9)[: round(seconds * RATE)]
        write_wav(tmp_path / f"{number}.wav", sound.numpy(), RATE)
    task = VocoderTask(recipe(data=str(tmp_path)))
    copies = outputs(task)
    assert copies.compares == "sounds"
    (tmp_path / "metadata.csv").write_text("\n".join(f"{n}|text of {n}" for n in range(3)))
    copies = outputs(task)
    assert copies.compares == "both"
    whole = ConcatData([task.data("train"), task.data("valid")])
    source = copies.open({"vocoder": task.model.eval()}, whole)
    items = [source.keyed(index, None) for index in range(3)]
    group = copies.make(items, Batch(copies.collate(items), [0, 1, 2], torch.zeros(3)))
    assert sorted(len(sound.wav) for sound in group.originals) == [2400, 5600, 24_000]
    for index, original in enumerate(group.originals):
        assert original.text == f"text of {Path(source.name(index)).stem}"
        sets = (group.outputs, group.baselines["griffin_lim"], group.baselines["recordings"])
        assert {len(sounds[index].wav) for sounds in sets} == {len(original.wav)}


# -- Python and the command line ------------------------------------------------------------------


def trained(path: Path, dataset: Any = None, **changes: Any) -> VocoderTrainer:
    torch.manual_seed(0)
    settings = {"recordings": DATA, "trackers": (), "workers": 0}
    settings |= {"steps": 2, "batch_size": 2, "device": "cpu", "progress": False, "run": path}
    trainer = VocoderTrainer(Vocoder(MODEL), dataset, **settings | changes)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocoder") / "run"
    trained(path)
    return path


def test_a_data_set_of_sounds_trains_it_and_the_model_comes_back(tmp_path: Path) -> None:
    sounds = [(spoken(i), "text") if i % 2 else {"audio": spoken(i)} for i in range(8)]
    trainer = trained(tmp_path / "run", sounds)
    copy = trainer.copy(spoken())
    assert copy.shape == spoken().shape
    trainer.averaged_model().save_pretrained(tmp_path / "model")
    for source in (tmp_path / "run", tmp_path / "model"):
        assert torch.equal(Vocoder.from_pretrained(source).copy(spoken()), copy)
        assert torch.equal(rooms.load(source).copy(spoken()), copy)


def test_items_without_sound_are_refused(tmp_path: Path) -> None:
    with pytest.raises((TypeError, RunError), match="no audio"):
        trained(tmp_path / "run", [{"text": "a"}] * 8)


def test_a_voicebox_speaks_through_a_run_or_an_export(run: Path, tmp_path: Path) -> None:
    config = VoiceBoxConfig(**VOICEBOX)
    exported = Vocoder.from_pretrained(run).save_pretrained(tmp_path / "model")
    first, second = (matching_vocoder(path, config) for path in (run, exported))
    log_mels = torch.randn(1, 20, 30)
    assert torch.equal(first(log_mels), second(log_mels))
    assert not any(p.requires_grad for p in first.parameters())
    (sound,) = voicebox().sample(texts=["ba do"], steps=1, method="euler", vocoder=first)
    assert sound.isfinite().all()
    other = dataclasses.replace(config, n_mels=80)
    with pytest.raises(RunError, match="n_mels = 20, the model 80"):
        matching_vocoder(run, other)


def test_recordings_are_copied(cli: Cli, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("a.wav", "more/b.wav"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_wav(folder / name, spoken(rate=16_000).numpy(), 16_000)
    assert cli("sample", run, folder, "--out", tmp_path / "out").status == 0
    copies = sorted(p.relative_to(tmp_path / "out").as_posix() for p in tmp_path.rglob("*.copy.*"))
    assert copies == ["a.copy.png", "a.copy.wav", "more/b.copy.png", "more/b.copy.wav"]
    assert probe(tmp_path / "out/a.copy.wav").rate == RATE
    assert cli("sample", run, folder / "a.wav", "--out", tmp_path / "one.wav").status == 0
    seconds = probe(folder / "a.wav").seconds
    assert probe(tmp_path / "one.wav").seconds == pytest.approx(seconds, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give recordings to copy"),
        (("none.wav",), "none.wav is not a file"),
    ],
)
def test_a_vocoder_is_asked_for_copies_only(
    cli: Cli, run: Path, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    said = cli("sample", run, *arguments, "--out", tmp_path / "out")
    assert said.status == 2
    assert sentence in said.err


def test_the_exported_network_is_that_of_the_model(model: Vocoder) -> None:
    (piece,) = pieces(model, None).pieces
    frames = piece.inputs["frames"].checked
    exported = piece.network(frames)
    assert exported.shape == (3, 65, 257)
    assert torch.equal(exported, model.offsets(frames.mT))
