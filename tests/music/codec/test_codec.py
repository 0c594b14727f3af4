"""The codec of music: the network, chunks, training, files and graphs."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import quintet
from harness import lines, unmeasured
from quintet import Codec, CodecTrainer, rooms
from quintet.engine.config import ConfigError, OptimizerConfig
from quintet.engine.data.wire import widened
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.loop import take_step
from quintet.engine.machine.world import World
from quintet.engine.run import Run
from quintet.engine.runs.folder import RunFolder
from quintet.engine.task import Batch
from quintet.media import lossy
from quintet.media.audio import probe, read_audio, write_wav
from quintet.music import tunes
from quintet.music.codec.chunks import windows
from quintet.music.codec.config import CodecConfig, CodecRecipe
from quintet.music.codec.export import pieces
from quintet.music.codec.model import spectrum
from quintet.music.codec.task import LOSSY, CodecTask, resampled
from quintet.music.config import CodecDataConfig, CodecLossConfig
from quintet.shared.config import SoundDiscriminatorConfig

soundfile = pytest.importorskip("soundfile")

RATE = 8000
MODEL = CodecConfig(sample_rate=RATE, dim=8, strides=(4, 5, 2), latent_channels=8)
IDS = dataclasses.replace(MODEL, quantiser="fsq", levels=(8,) * 20)
DATA = CodecDataConfig(seconds=0.25, valid_seconds=0.5, builtin_count=16, valid_limit=3)


def recipe(**changes: Any) -> CodecRecipe:
    settings: dict[str, Any] = {
        "steps": 4,
        "batch_size": 4,
        "device": "cpu",
        "workers": 0,
        "trackers": (),
        "log_every": 1,
        "evaluate_every": 0,
        "model": MODEL,
        "sounds": DATA,
        "losses": CodecLossConfig(waveform=20.0, adversarial="none"),
        "discriminators": SoundDiscriminatorConfig(
            periods=(2,), period_dim=2, windows=(256,), window_dim=2
        ),
        "optim": OptimizerConfig(learning_rate=3e-3, warmup_steps=2, ema_decay=0.9),
        **changes,
    }
    return CodecRecipe(**settings)


def tune(seconds: float = 1.0, rate: int = RATE, number: int = 1) -> Tensor:
    """(1, 1, n)."""
    return torch.from_numpy(tunes.play(tunes.compose(number), seconds, rate))[None, None]


def built(config: CodecConfig = MODEL) -> Codec:
    torch.manual_seed(0)
    return Codec(config).eval()


def shaken(config: CodecConfig = MODEL) -> Codec:
    """Without the zeros among the weights of a new codec."""
    model = built(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def opened(settings: CodecRecipe, path: Path) -> Run:
    return Run(CodecTask(settings), settings, World(settings), RunFolder.create(path, {}))


# -- the network ----------------------------------------------------------------------------------


@pytest.mark.by_default("latents")
@pytest.mark.parametrize("config", [MODEL, IDS], ids=["latents", "ids"])
def test_copies_are_as_long_as_the_sounds_whatever_their_length(config: CodecConfig) -> None:
    model = built(config)
    for length in (1, 39, 40, 41, 1000):
        sounds = 0.1 * torch.randn(2, 1, length)
        codes = model.to_codes(sounds)
        frames = -(-length // 40)
        assert codes.shape == ((2, frames) if config is IDS else (2, 8, frames))
        assert model.grid(sounds) == (frames,)
        assert model.reconstruct(sounds).shape == model(sounds).output.shape == sounds.shape
        assert model.decode_from_codes(codes).shape == (2, 1, 40 * frames)


@pytest.mark.parametrize("config", [MODEL, IDS], ids=["latents", "ids"])
def test_gradients_reach_every_parameter(config: CodecConfig) -> None:
    model, sounds = built(config).train(), tune(0.5)
    shape = model.noise_shape(sounds)
    out = model(sounds, None if shape is None else torch.randn(1, *shape))
    assert (shape is None) == (config is IDS)
    (out.output.square().mean() + out.quantiser_loss).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert [n for n, g in gradients.items() if g is None or not g.isfinite().all()] == []
    assert [n for n, g in gradients.items() if g is not None and not g.any()] == []


@pytest.mark.by_default("fsq", "kl")
@pytest.mark.parametrize("quantiser", ["kl", "bounded", "fsq", "lfq", "bsq", "vq"])
def test_copies_by_a_new_codec_resemble_the_sounds(quantiser: Any) -> None:
    """As deep as the recipe: projections of the sounds, not noise, by codes that differ."""
    model = built(CodecConfig(dim=8, quantiser=quantiser, codebook_bits=16))
    sounds = torch.cat([tune(1.0, 32_000, number) for number in range(4)])
    codes, copies = model.to_codes(sounds), model.reconstruct(sounds)
    assert codes.double().std(-1).min() > 0.1
    alike = (copies * sounds).sum() / copies.norm() / sounds.norm()
    assert alike > 0.03  # of noise 0.003
    assert 0.01 < copies.std() / sounds.std() < 2


@pytest.mark.parametrize("channels", [1, 2])
def test_the_first_filters_are_a_spectrum(channels: int) -> None:
    filters = spectrum(64, channels, 80)
    torch.testing.assert_close(filters.square().sum((1, 2)), torch.ones(64))
    peaks = torch.fft.rfft(filters[:, 0], 6400).abs().argmax(1) / 3200
    inner = slice(8, -8)  # the lowest and the highest overlap with their own mirror image
    steps = (torch.arange(64) // 2 + 0.5) / 32
    torch.testing.assert_close(peaks[inner], steps[inner], atol=2e-3, rtol=0)
    if channels == 2:
        assert torch.equal(filters[::4, 0], filters[::4, 1])
        assert torch.equal(filters[2::4, 0], -filters[2::4, 1])


def test_under_bf16_the_first_and_last_layer_are_exact() -> None:
    model, sounds = built(), tune(0.5)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        latents = model.encode(sounds)
        copy = model(sounds).output
    assert latents.dtype == torch.bfloat16
    assert copy.dtype == torch.float32
    with torch.no_grad():
        exact = model(sounds).output
    assert (copy - exact).norm() < 0.05 * exact.norm()


def test_stereo_keeps_its_channels() -> None:
    model = built(dataclasses.replace(MODEL, channels=2))
    pair = torch.cat([tune(number=1), tune(number=3)], 1)
    assert model.reconstruct(pair).shape == pair.shape
    assert not torch.equal(*model.reconstruct(pair)[0])
    with pytest.raises(ValueError, match=r"expected sounds \(b, 2, n\) in -1..1"):
        model.reconstruct(tune())


def test_the_rate_of_ids_is_stated() -> None:
    assert CodecConfig(quantiser="fsq").kbit_per_second == pytest.approx(3.0)
    assert built(IDS).quantiser.codebook_size == 2**60
    assert MODEL.kbit_per_second is None
    assert dataclasses.replace(
        MODEL, quantiser="vq", codebook_bits=10
    ).kbit_per_second == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"strides": ()}, "strides"), ({"strides": (4, 0)}, "strides"), ({"dim": 0}, "dim")],
)
def test_settings_that_cannot_be_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        CodecConfig(**change)


def test_sounds_of_another_scale_are_refused() -> None:
    for refuse in (
        lambda s: built().to_codes(s),
        lambda s: CodecTask(recipe()).check({"audio": s}),
    ):
        with pytest.raises(ValueError, match="divide 16-bit integers by 32768"):
            refuse(3000 * tune())


# -- chunks ---------------------------------------------------------------------------------------


def test_windows_are_the_whole_and_hold_little_of_it() -> None:
    whole, taken = torch.arange(1000)[None], 0

    def parts(size: int) -> Iterator[Tensor]:
        nonlocal taken
        for part in whole.split(size, -1):
            taken += part.shape[-1]
            yield part

    for size, margin, step in ((10, 3, 7), (10, 25, 1000), (7, 0, 1), (2000, 5, 30), (1, 1, 500)):
        taken, found = 0, []
        for values, start, stop in windows(parts(step), size, margin):
            found += values[0, start:stop].tolist()
            first, last = found[-1] - (stop - start) + 1, found[-1]
            assert values[0, 0] == max(0, first - margin)
            assert values[0, -1] == min(999, last + margin)
            assert taken <= last + 1 + margin + step
        assert found == whole[0].tolist()
    assert not [*windows([], 5, 1)]


@pytest.mark.by_default("ids")
@pytest.mark.parametrize("config", [MODEL, IDS], ids=["latents", "ids"])
def test_chunks_with_their_margins_are_the_whole(config: CodecConfig) -> None:
    model = shaken(config)
    margin = max(model.margins)
    assert model.margins == (67, 67)
    sounds = 0.3 * torch.randn(1, 1, 40 * 5 * margin + 17)
    whole = model.to_codes(sounds)
    for frames, step in ((margin // 3, 1234), (2 * margin, 10**6)):
        parts = [*model.encode_chunks(sounds.split(step, -1), frames)]
        assert {part.shape[-1] for part in parts[:-1]} == {frames}
        codes = torch.cat(parts, -1)
        torch.testing.assert_close(codes, whole, atol=1e-5, rtol=0)
        copies = torch.cat([*model.decode_chunks(whole.split(29, -1), frames)], -1)
        torch.testing.assert_close(copies, model.decode_from_codes(whole), atol=1e-5, rtol=0)


def test_the_margins_are_those_of_the_receptive_field() -> None:
    """No smaller, as the test above shows, and hardly larger."""
    model = shaken()
    frames = 2 * max(model.margins) + 41
    sounds = 0.1 * torch.randn(1, 1, 40 * frames)
    sounds.requires_grad_()
    model.encode(sounds)[..., frames // 2].sum().backward()
    (seen,) = sounds.grad[0, 0].nonzero(as_tuple=True)  # type: ignore[index]
    first, last = seen.min().item() // 40, seen.max().item() // 40
    assert model.margins[0] - 2 <= frames // 2 - first <= model.margins[0]
    assert model.margins[0] - 2 <= last - frames // 2 <= model.margins[0]
    values = torch.randn(1, 32, frames, requires_grad=True)
    model.decode(values)[..., 20 * frames].sum().backward()
    (seen,) = values.grad[0].abs().sum(0).nonzero(as_tuple=True)  # type: ignore[index]
    assert model.margins[1] - 4 <= frames // 2 - seen.min().item() <= model.margins[1]


# -- training -------------------------------------------------------------------------------------


def test_a_run_learns_to_copy(tmp_path: Path) -> None:
    run = opened(recipe(steps=40), tmp_path)
    begun = run.evaluate()
    for _ in range(40):
        take_step(run)
    ended = run.evaluate()
    run.close()
    assert ended["mel_error"] < 0.8 * begun["mel_error"]
    assert ended["mel_error"] < 0.5 * ended["mel_error_silence"]
    assert ended["si_sdr"] > begun["si_sdr"]
    assert ended["latent_std"] > 0.1
    others = {"mel_error_silence"}
    others |= {f"resampled_{m}" for m in ("mel_error", "stft_error", "si_sdr")}
    rate = 8 * RATE / 40  # latents a second
    assert ended["kbit_per_second"] == pytest.approx(ended["kl_bits"] * rate / 1000)
    if not lossy.missing():
        others |= {f"{n}_{m}" for n in LOSSY for m in ("mel_error", "stft_error", "si_sdr")}
        assert ended["opus_24_mel_error"] < ended["opus_12_mel_error"]
        assert ended["mp3_32_si_sdr"] > ended["opus_12_si_sdr"]
    assert all(ended[name] == begun[name] for name in others)
    assert others <= ended.keys()


def test_discriminators_join_and_ids_have_a_rate(tmp_path: Path) -> None:
    joining = {"adversarial": "hinge", "adversarial_from": 0.5, "steps": 4, "log_every": 1}
    trained(tmp_path, model=IDS, evaluate_every=4, **joining)
    reports = [line for line in lines(tmp_path) if "codec/loss" in line]
    joined = ["codec/adversarial" in line for line in reports]
    assert joined == [False, False, True, True]
    (metrics,) = [line for line in lines(tmp_path) if "val/mel_error" in line]
    assert metrics["val/kbit_per_second"] == pytest.approx(60 * RATE / 40 / 1000)
    assert metrics["val/codebook_usage"] > 0


def test_resampled_copies_keep_the_frequencies_below() -> None:
    time = torch.arange(1000) / 1000
    low, high = (torch.sin(2 * torch.pi * rate * time)[None] for rate in (80, 120))
    torch.testing.assert_close(resampled(low + high, 0.2), low, atol=1e-4, rtol=0)


def test_without_the_libraries_of_other_codecs_a_run_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lossy, "NEEDED", ("av_that_is_not_there",))
    run = opened(recipe(), tmp_path)
    metrics = run.evaluate()
    run.close()
    assert not [name for name in metrics if name.startswith(("opus", "mp3"))]
    assert metrics["mel_error_silence"] > 0
    said = capsys.readouterr().err
    assert said.count("av_that_is_not_there not installed: evaluations are without Opus") == 1


def test_copies_by_other_codecs_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    copy = lambda sound, *_: made.append(len(sound)) or sound
    monkeypatch.setattr(lossy, "NEEDED", ())
    monkeypatch.setattr(lossy, "lossy_copy", copy)
    run = opened(recipe(), tmp_path)
    first, second = run.evaluate(), run.evaluate()
    run.close()
    assert len(made) == DATA.valid_limit * len(LOSSY)
    assert first == second
    assert first["opus_12_mel_error"] == 0  # these copies are the sounds themselves


def test_a_segment_shorter_than_a_window_is_refused() -> None:
    short = dataclasses.replace(DATA, seconds=0.01)
    with pytest.raises(RunError, match=r"shorter than a window of 256 samples; raise --sounds.sec"):
        CodecTask(recipe(sounds=short))


def test_built_in_tunes_are_there_at_every_rate() -> None:
    for rate in (RATE, 32_000, 44_100):
        model = dataclasses.replace(MODEL, sample_rate=rate, channels=2)
        task = CodecTask(recipe(model=model))
        item = task.data("train").keyed(0, Key(0, 0, 0))
        assert item["audio"].shape == (round(0.25 * rate / 40) * 40, 2)
        assert (widened(task.collate([item]))["audio"].abs().max()) > 0.01


def test_exhibits_are_originals_and_copies(tmp_path: Path) -> None:
    task = CodecTask(recipe())
    source = task.data("valid")
    items = [source.keyed(index, None) for index in range(2)]
    batch = Batch(widened(task.collate(items)), [0, 1], torch.arange(2))
    with torch.no_grad():
        (first, *_) = task.exhibit({"codec": task.model.eval()}, batch)
    names = {path.name for path in first.write(tmp_path)}
    assert {"music-0-original.wav", "music-0-copy.wav", "music-0.png"} <= names


# -- Python and the command line ------------------------------------------------------------------


def trained(path: Path, dataset: Any = None, **changes: Any) -> CodecTrainer:
    torch.manual_seed(0)
    settings = {"sounds": DATA, "trackers": (), "workers": 0, "adversarial": "none"}
    settings |= {"windows": (256,)}
    settings |= {"steps": 1, "batch_size": 2, "device": "cpu", "progress": False, "run": path}
    trainer = CodecTrainer(Codec(changes.pop("model", MODEL)), dataset, **settings | changes)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("codec") / "run"
    with unmeasured():
        trained(path)
    return path


def test_a_data_set_of_sounds_trains_it_and_the_model_comes_back(tmp_path: Path) -> None:
    stereo = dataclasses.replace(MODEL, channels=2)
    sounds = [tune(0.6)[0].expand(1 + i % 2, -1) for i in range(8)]
    trainer = trained(tmp_path / "run", [{"audio": s} for s in sounds], model=stereo)
    pair = tune().expand(1, 2, -1)
    copy = trainer.reconstruct(pair)
    trainer.averaged_model().save_pretrained(tmp_path / "model")
    for source in (tmp_path / "run", tmp_path / "model"):
        assert torch.equal(Codec.from_pretrained(source).reconstruct(pair), copy)
        assert torch.equal(rooms.load(source).reconstruct(pair), copy)
    with pytest.raises((TypeError, RunError), match="no audio"):
        trained(tmp_path / "other", [{"text": "a"}] * 8)


def put(path: Path, sound: np.ndarray, rate: int, **how: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, sound, rate, **how)
    return path


def test_files_of_every_kind_are_copied_whole(cli: Any, run: Path, tmp_path: Path) -> None:
    """8 bits, 96 kHz, stereo, clipped and silent; and mp3. Codes give the same copy."""
    folder, out = tmp_path / "in", tmp_path / "out"
    sound = tune(1.3)[0, 0].numpy()
    put(folder / "eight.wav", sound, RATE, subtype="PCM_U8")
    put(folder / "fast.flac", tune(0.7, 96_000)[0, 0].numpy(), 96_000)
    put(folder / "more/stereo.wav", np.stack([sound, sound[::-1]], 1), RATE)
    put(folder / "clipped.wav", np.clip(50 * sound, -1, 1), RATE)
    put(folder / "silent.wav", np.zeros(3000, np.float32), RATE)
    put(folder / "a.mp3", tune(0.9, 16_000)[0, 0].numpy(), 16_000)
    said = cli("sample", run, folder, "--out", out)
    assert said.status == 0, said.err
    stems = ["a", "clipped", "eight", "fast", "more/stereo", "silent"]
    found = sorted(p.relative_to(out).as_posix() for p in out.rglob("*.*") if p.name[0] != ".")
    assert found == sorted(f"{s}.{e}" for s in stems for e in ("copy.wav", "latents.safetensors"))
    model = quintet.load(run)
    for stem in stems:
        (source,) = folder.glob(f"{stem}.*")
        assert probe(out / f"{stem}.copy.wav").seconds == pytest.approx(
            probe(source).seconds, abs=2 / RATE
        )
    for name in ("eight.wav", "fast.flac", "more/stereo.wav"):
        stem, given = name.partition(".")[0], read_audio(folder / name, rate=RATE)
        expected = model.reconstruct(torch.from_numpy(given)[None, None])[0, 0].clamp(-1, 1)
        copy = torch.from_numpy(read_audio(out / f"{stem}.copy.wav", rate=RATE, silent=True))
        torch.testing.assert_close(copy, expected, atol=2e-3, rtol=0)
    codes = out / "eight.latents.safetensors"
    assert load_file(codes)["latents"].shape == (1, 8, -(-len(sound) // 40))
    assert cli("sample", run, codes, "--out", tmp_path / "again").status == 0
    again = (tmp_path / "again/eight.decoded.wav").read_bytes()
    assert again == (out / "eight.copy.wav").read_bytes()


def test_a_file_of_several_chunks_is_the_copy_of_the_whole(
    cli: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintet.media.audio._BLOCK", 3000)
    monkeypatch.setattr(Codec.encode_chunks, "__defaults__", (50,))
    monkeypatch.setattr(Codec.decode_chunks, "__defaults__", (30,))
    sound = tune(3.0)
    path = put(tmp_path / "long.wav", sound[0, 0].numpy(), RATE, subtype="FLOAT")
    assert cli("sample", run, path, "--out", tmp_path).status == 0
    model = quintet.load(run)
    expected = model.decode_from_codes(model.to_codes(sound))[0, 0, : sound.shape[-1]]
    copy = torch.from_numpy(read_audio(tmp_path / "long.copy.wav", rate=RATE, silent=True))
    torch.testing.assert_close(copy, expected.clamp(-1, 1), atol=1e-4, rtol=0)


def test_what_cannot_be_copied_is_said(cli: Any, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "give audio files to copy" in cli("sample", run, "--out", out).err
    assert "none.wav is not a file" in cli("sample", run, "none.wav", "--out", out).err
    path = write_days(tmp_path / "days.wav", 80 * 3600)
    said = cli("sample", run, path, "--out", out)
    assert said.status == 2
    assert "lasts 288,000 s, more than max_seconds = 268,435" in said.err
    other = trained(tmp_path / "other", seed=5)
    good = put(tmp_path / "good.wav", tune(0.2)[0, 0].numpy(), RATE)
    assert cli("sample", tmp_path / "other", good, "--out", out).status == 0
    said = cli("sample", run, out / "good.latents.safetensors", "--out", out)
    assert "latents of another model" in said.err
    assert other.step == 1


def write_days(path: Path, seconds: int) -> Path:
    """A file with holes: of 8 bits, 4000 a second."""
    size, rate = 4000 * seconds, 4000
    fields = [(16, 4), (1, 2), (1, 2), (rate, 4), (rate, 4), (1, 2), (8, 2)]
    header = b"RIFF" + (36 + size).to_bytes(4, "little") + b"WAVEfmt "
    header += b"".join(value.to_bytes(width, "little") for value, width in fields)
    with path.open("wb") as file:
        file.write(header + b"data" + size.to_bytes(4, "little"))
        file.truncate(len(header) + 8 + size)
    return path


def test_codecs_of_ids_and_of_latents_are_compared(cli: Any, tmp_path: Path) -> None:
    for name, config in (("ids", IDS), ("latents", MODEL)):
        built(config).save_pretrained(tmp_path / name)
    put(tmp_path / "sounds/a.wav", tune()[0, 0].numpy(), RATE)
    said = cli("compare", tmp_path / "sounds", tmp_path / "latents", tmp_path / "ids")
    assert said.status == 0, said.err
    first, second = json.loads(said.out.splitlines()[-1])["tokenizers"]
    assert first["scores"]["kbit_per_second"]["value"] == pytest.approx(60 * RATE / 40 / 1000)
    assert 0 < first["scores"]["codes_used"]["value"] < 1
    assert second["scores"]["latents_per_second"]["value"] == pytest.approx(8 * RATE / 40)


@pytest.mark.parametrize("config", [MODEL, IDS], ids=["latents", "ids"])
def test_the_exported_networks_are_those_of_the_model(config: CodecConfig) -> None:
    model = built(config)
    coder, decoder = pieces(model, None).pieces
    sounds = coder.inputs["sounds"].checked
    codes, flat = coder.network(sounds), sounds.flatten(1, 2).mT
    expected = model.to_codes(flat)
    assert torch.equal(codes, expected if config is IDS else expected.mT)
    copy = decoder.network(codes)
    assert copy.shape == sounds.shape
    assert torch.equal(copy.flatten(1, 2).mT, model.decode_from_codes(expected))


@pytest.mark.slow  # imports onnx and onnxruntime
@pytest.mark.parametrize("config", [MODEL, IDS], ids=["latents", "ids"])
def test_graphs_take_sounds_of_any_length(config: CodecConfig, tmp_path: Path) -> None:
    from quintet.engine.models.export import export

    files = export(pieces(built(config), None), tmp_path, "onnx")
    assert [(each.file, each.any_size) for each in files] == [
        ("encode.onnx", True),
        ("decode.onnx", True),
    ]


def test_a_wav_is_written_complete_or_not_at_all(
    cli: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wav(tmp_path / "a.wav", tune()[0, 0].numpy(), RATE)
    monkeypatch.setattr(Codec, "decode_from_codes", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli("sample", run, tmp_path / "a.wav", "--out", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").rglob("*.wav*")] == []
