"""Audio codecs of diffusers and transformers, adopted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import harness
import quintet
from adopting import SOUNDS, Library, folder
from campaign.subjects import replaced
from quintet import rooms
from quintet.engine.errors import RunError
from quintet.engine.launch import start
from quintet.judges.codecs import compare_codecs
from quintet.media.audio import read_audio
from quintet.music.adopt.model import AdoptedCodec
from quintet.music.adopt.task import CodecAdoptTask
from quintet.music.recipes import adopt_tiny
from quintet.nn.spectral_errors import si_sdr
from quintet.shared.adopt.folder import quiet

diffusers: Any = Library("diffusers")
transformers: Any = Library("transformers")

RATE, LENGTH = 8000, 2000
# Residual codebooks; the others take the same code, Gaussian latents that of images.
QUICK = ("DacModel",)
EVERY = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in SOUNDS]
)


def sounds(channels: int) -> Tensor:
    return torch.randn(2, channels, LENGTH, generator=torch.Generator().manual_seed(1)) / 10


def library(name: str, path: Path) -> Any:
    owner = diffusers if hasattr(diffusers, name) else transformers
    with quiet():
        return getattr(owner, name).from_pretrained(path)


def own_copy(name: str, network: Any, batch: Tensor) -> Tensor:
    """By the methods of the libraries alone."""
    if name == "AutoencoderOobleck":
        return network.decode(network.encode(batch).latent_dist.mode()).sample
    if name == "EncodecModel":
        return network(batch, bandwidth=network.config.target_bandwidths[-1]).audio_values
    return network(batch).audio_values.view(len(batch), 1, -1)


@EVERY
def test_an_adopted_codec_copies_as_its_library_does(name: str) -> None:
    model = AdoptedCodec.from_pretrained(folder(name))
    batch = sounds(model.channels)
    with torch.no_grad():
        expected = own_copy(name, library(name, folder(name)), batch)
        output = model(batch).output
        assert output.shape == batch.shape
        torch.testing.assert_close(output[..., : expected.shape[-1]], expected)
        scale = model._scale(batch)
        codes = model.to_codes(batch if scale is None else batch / scale)
        decoded = model.decode_from_codes(codes) * (1 if scale is None else scale)
        torch.testing.assert_close(decoded, expected)


@EVERY
def test_what_is_trained_gets_gradients_and_the_rest_none(name: str) -> None:
    model = AdoptedCodec.from_pretrained(folder(name))
    batch = sounds(model.channels)
    for part in ("decoder", "encoder", "all", "lora"):
        model.zero_grad(set_to_none=True)
        assert not model.train_only(part, model.example(), rank=2)  # all are used
        shape = model.noise_shape(batch)
        out = model.train()(batch, *([] if shape is None else [torch.zeros(2, *shape)]))
        (out.output.square().mean() + out.quantiser_loss).backward()
        chosen = {n for n, p in model.named_parameters() if p.requires_grad}
        assert chosen == {n for n, p in model.named_parameters() if p.grad is not None}
        expected = {"encoder": {"encoder", "quantizer"}, "lora": {"down", "up"}}
        expected["all"] = {*expected["encoder"], "decoder"}
        assert {n.split(".")[1] for n in chosen} <= expected.get(part, {part})


@EVERY
def test_an_export_is_what_the_library_wrote(name: str, tmp_path: Path) -> None:
    quintet.load(folder(name)).save_pretrained(tmp_path)
    for file in folder(name).iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
    one, other = (library(name, path).state_dict() for path in (folder(name), tmp_path))
    assert one.keys() == other.keys()
    assert all(one[n].dtype == other[n].dtype and one[n].equal(other[n]) for n in one)


def small(name: str, **changes: Any) -> Any:
    wanted = {"workers": 0, "trackers": (), "valid_limit": 2, "builtin_count": 8, "log_every": 1}
    wanted |= {"batch_size": 2, "device": "cpu", "warm_discriminator": 1, "valid_seconds": 0.5}
    return replaced(adopt_tiny(), wanted | {"autoencoder": str(folder(name)), "steps": 2} | changes)


@pytest.fixture
def stereo(tmp_path: Path) -> Path:
    import soundfile

    path = tmp_path / "stereo"
    path.mkdir()
    for number in range(4):
        pair = np.random.default_rng(number).normal(scale=0.1, size=(RATE, 2))
        soundfile.write(path / f"{number}.wav", pair, RATE)
    return path


def test_discriminators_join_through_the_balancer(tmp_path: Path) -> None:
    """Its weight starts at its floor and follows the ratio of gradients, which is saved."""
    recipe = small("DacModel", steps=4, save_every=1, keep_last=9, warm_discriminator=2)
    task = harness.task_of("music/adopt_tiny", measured=False)
    start(task, recipe, tmp_path / "run", name="music/adopt_tiny", load=rooms.load, progress=False)
    reports = [line for line in harness.lines(tmp_path / "run") if "codec/loss" in line]
    assert [line["step"] for line in reports] == [3, 4]
    assert reports[0]["codec/adversarial_weight"] == pytest.approx(1e-4)
    assert reports[1]["codec/adversarial_weight"] > 1e-4
    weights = [harness.tensors(tmp_path / "run", step) for step in (2, 4)]
    saved = next(name for name in weights[0] if name.endswith(":weight") and "extra" in name)
    assert weights[0][saved] < weights[1][saved]


def test_silent_copies_and_discriminators_at_chance_are_watched() -> None:
    watched = {monitor.metric for monitor in CodecAdoptTask(small("DacModel")).monitors}
    discriminators = ("period_discriminator", "resolution_discriminator")
    gaps = {f"{name}/{metric}" for name in discriminators for metric in ("loss", "logit_gap")}
    assert watched == {"codec/loudness", *gaps}


def test_compare_takes_codecs_of_any_rate(stereo: Path, tmp_path: Path, cli: Any) -> None:
    names = ["DacModel", "EncodecModel", "AutoencoderOobleck"]
    said = cli("compare", stereo, *map(folder, names), "--seconds", "0.5", "--count", "3")
    assert said.status == 0, said
    result = json.loads(said.out.splitlines()[-1])
    assert [one["name"] for one in result["tokenizers"]] == [str(folder(n)) for n in names]
    scores = [one["scores"] for one in result["tokenizers"]]
    # Three codebooks of 16 codes, 400 frames a second; and as many codebooks as bandwidth allows.
    assert scores[0]["kbit_per_second"]["value"] == pytest.approx(3 * 4 * 400 / 1000)
    assert scores[2]["latents_per_second"]["value"] == pytest.approx(4 * 1000)
    assert scores[0]["mel_error"]["receipt"]["count"] == 3
    assert all(
        {"mel_error", "stft_error", "si_sdr", "ms_per_second"} <= one.keys() for one in scores
    )
    mixed = cli("compare", stereo, folder("DacModel"), folder("VQModel"))
    assert "is an audio codec" in mixed.err
    assert (
        "--page and --size are for image tokenizers"
        in cli("compare", stereo, folder("DacModel"), "--size", "64", "64").err
    )


def test_a_comparison_of_codecs_scores_what_its_library_makes(stereo: Path) -> None:
    """At one rate: the copies of the library, as mono."""
    codec = AdoptedCodec.from_pretrained(folder("AutoencoderOobleck"))
    files = sorted(stereo.iterdir())[:2]
    result = compare_codecs(files, {"a": codec}, seconds=0.5)
    ratios = []
    for file in files:
        pair = torch.from_numpy(read_audio(file, rate=RATE, seconds=0.5, channels=2).T)[None]
        with torch.no_grad():
            copy = own_copy(
                "AutoencoderOobleck",
                library("AutoencoderOobleck", folder("AutoencoderOobleck")),
                pair,
            )
        real = torch.from_numpy(read_audio(file, rate=RATE, seconds=0.5))[None]
        ratios.append(si_sdr(real, copy.mean(1), torch.tensor([real.shape[1]])).item())
    found = result.tokenizers[0].scores["si_sdr"].value
    assert found == pytest.approx(sum(ratios) / 2, abs=0.05)


@pytest.mark.by_default("decoder")
@pytest.mark.parametrize("train", ["decoder", "lora"])
def test_a_run_on_stereo_leaves_every_byte_of_the_encoder(
    train: str, stereo: Path, tmp_path: Path, cli: Any
) -> None:
    run, name = tmp_path / "run", "AutoencoderOobleck"
    recipe = small(name, data=str(stereo), train=train, lora_rank=2)
    adopt = "music/adopt_tiny"  # in this process, which has imported diffusers
    task = harness.task_of(adopt, measured=False)
    start(task, recipe, run, name=adopt, load=rooms.load, progress=False)
    records = [line for line in harness.lines(run) if "period_discriminator/loss" in line]
    assert ["codec/loss" in line for line in records] == [False, True]
    assert cli("export", run, tmp_path / "out").status == 0
    old, new = (library(name, path).state_dict() for path in (folder(name), tmp_path / "out"))
    changed = {n for n in old if not old[n].equal(new[n])}
    assert changed
    assert {n.partition(".")[0] for n in changed} == {"decoder"}


def test_a_stereo_file_keeps_its_channels_and_a_mono_one_is_repeated(stereo: Path) -> None:
    pair = read_audio(stereo / "0.wav", rate=RATE // 2, channels=2)
    assert pair.shape == (RATE // 2, 2)
    assert not np.array_equal(pair[:, 0], pair[:, 1])
    mono = read_audio(stereo / "0.wav", rate=RATE // 2)
    np.testing.assert_allclose(pair.mean(1), mono, atol=1e-6)
    triple = read_audio(stereo / "0.wav", rate=RATE // 2, channels=3)
    assert np.array_equal(triple, np.stack([mono] * 3, 1))


def test_fewer_codebooks_are_used_as_the_library_does() -> None:
    model = AdoptedCodec.from_pretrained(folder("MimiModel"))
    model.use_codebooks(2)
    batch = sounds(1)
    network = library("MimiModel", folder("MimiModel"))
    with torch.no_grad():
        expected = network(batch, num_quantizers=2).audio_values
        torch.testing.assert_close(model(batch).output, expected)
    with pytest.raises(RunError, match="codebooks is 3; it must be between 1 and 2"):
        model.use_codebooks(3)


def test_segments_longer_than_the_codec_encodes_at_once_are_refused() -> None:
    with pytest.raises(RunError, match=r"encodes 1 s at once; set --sounds.valid-seconds"):
        CodecAdoptTask(small("EncodecModel", valid_seconds=2.0))


def test_an_autoencoder_of_images_is_refused() -> None:
    with pytest.raises(RunError, match="AutoencoderTiny cannot be adopted for sounds; give a"):
        AdoptedCodec.from_pretrained(folder("AutoencoderTiny"))


def test_si_sdr_ignores_loudness_and_padding() -> None:
    real, noise = sounds(1)[:, 0], torch.randn(2, LENGTH, generator=torch.Generator())
    lengths = torch.tensor([LENGTH, LENGTH // 2])
    noise *= (real.norm(dim=1) / noise.norm(dim=1) / 10)[:, None]  # 20 dB
    values = si_sdr(real, 3 * (real + noise), lengths)
    torch.testing.assert_close(values, torch.full((2,), 20.0), atol=0.5, rtol=0)


@pytest.mark.by_default("DacModel")
@pytest.mark.parametrize("name", ["DacModel", "AutoencoderOobleck"])
def test_a_run_copies_sounds(name: str, stereo: Path, tmp_path: Path, cli: Any) -> None:
    recipe, run, out = small(name), tmp_path / "run", tmp_path / "out"
    task = harness.task_of("music/adopt_tiny", measured=False)
    start(task, recipe, run, name="music/adopt_tiny", load=rooms.load, progress=False)
    assert cli("sample", run, stereo, "--text", "slow", "--out", out).status == 2
    assert cli("sample", run, "--out", out).status == 2
    result = cli("sample", run, stereo, "--seconds", 0.5, "--out", out)
    assert result.status == 0, result.err
    names = {path.name for path in out.glob("[!.]*")}
    assert names == {f"{n}.{kind}.wav" for n in range(4) for kind in ("original", "copy")}
    model = quintet.load(run)
    pair = [
        read_audio(out / f"0.{kind}.wav", rate=RATE, channels=model.channels, silent=True)
        for kind in ("original", "copy")
    ]
    assert pair[0].shape == pair[1].shape
    expected = model.reconstruct(torch.from_numpy(pair[0]).view(-1, model.channels).T[None])
    copy = torch.from_numpy(pair[1]).view(-1, model.channels).T[None]
    torch.testing.assert_close(copy, expected.clamp(-1, 1), atol=1e-3, rtol=0.0)


def test_a_codec_of_chunks_copies_a_longer_sound_one_by_one() -> None:
    model = AdoptedCodec.from_pretrained(folder("EncodecModel"))
    model.network.config.chunk_length_s = 0.1
    assert model.chunk is not None
    sound = torch.randn(1, model.channels, 5 * model.chunk // 2)
    copy = model.reconstruct(sound)
    assert copy.shape == sound.shape
    torch.testing.assert_close(
        copy[..., : model.chunk], model.reconstruct(sound[..., : model.chunk])
    )
