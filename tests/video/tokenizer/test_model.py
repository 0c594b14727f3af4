from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quintet.engine.config import ConfigError, from_json, to_json
from quintet.engine.keys import keyed_normal
from quintet.nn.adversarial.losses import hinge_discriminator
from quintet.shared.tokenizer.config import DiscriminatorConfig
from quintet.video.tokenizer.config import (
    LayerType,
    MotionDiscriminatorConfig,
    VideoTokenizerConfig,
)
from quintet.video.tokenizer.model import (
    FrameDiscriminator,
    MotionDiscriminator,
    VideoTokenizer,
    config_from_keywords,
)

README = {
    "image_size": 128,
    "init_dim": 64,
    "max_dim": 512,
    "codebook_size": 1024,
    "layers": (
        "residual",
        "compress_space",
        ("consecutive_residual", 2),
        "compress_space",
        ("consecutive_residual", 2),
        "linear_attend_space",
        "compress_space",
        ("consecutive_residual", 2),
        "attend_space",
        "compress_time",
        ("consecutive_residual", 2),
        "compress_time",
        ("consecutive_residual", 2),
        "attend_time",
    ),
}
EVERY = (
    "residual",
    "compress_space",
    ("consecutive_residual", 2),
    "compress_time",
    "linear_attend_space",
    "attend_time",
    "compress_time",
    "attend_space",
    "gateloop_time",
)
SMALL: dict[str, Any] = {
    "init_dim": 8,
    "max_dim": 16,
    "patch_size": 2,
    "time_window": 2,
    "codebook_bits": 6,
    "levels": (4, 4, 3),
    "layers": EVERY,
}
QUANTISERS = pytest.mark.parametrize("quantiser", ["fsq", "lfq", "bsq", "vq"])
WORDS = pytest.mark.parametrize("word", get_args(LayerType))


def small(**changes: object) -> VideoTokenizer:
    """A model whose branches are awake: at the start many of them end in zeros."""
    torch.manual_seed(0)
    model = VideoTokenizer(**(SMALL | changes))
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return model


def around(word: str) -> VideoTokenizer:
    """The word between layers that compress, so that it works on latents."""
    layers = ("compress_space", "compress_time", word, "compress_time")
    return small(layers=layers).double().eval()


def clip_of(frames: int, size: int = 8, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(2, 3, frames, size, size, dtype=dtype)


def changed_frames(before: Tensor, after: Tensor) -> list[int]:
    """Which frames (axis 2) differ in any sample, channel or place."""
    return (before != after).movedim(2, 0).flatten(1).any(1).nonzero().flatten().tolist()


# -- the future -------------------------------------------------------------------------------


@WORDS
@given(at=st.integers(0, 16))
@settings(max_examples=6, deadline=None)
def test_a_frame_changes_no_latent_and_no_id_before_its_own(word: str, at: int) -> None:
    model = around(word)
    clip = clip_of(17)
    changed = clip.clone()
    changed[:, :, at] = 1 - changed[:, :, at]
    own = -(-at // model.time_factor)
    with torch.no_grad():
        actual = changed_frames(model.encode(clip), model.encode(changed))
        ids, new = model.tokenize(clip), model.tokenize(changed)
    assert actual[0] == own
    assert torch.equal(ids[:, :own], new[:, :own])


@WORDS
@given(at=st.integers(0, 4))
@settings(max_examples=5, deadline=None)
def test_an_id_changes_no_frame_before_its_own(word: str, at: int) -> None:
    model = around(word)
    values = torch.randn(2, model.config.dim, 5, 2, 2, dtype=torch.float64)
    changed = values.clone()
    changed[:, :, at] += torch.randn_like(changed[:, :, at])
    with torch.no_grad():
        actual = changed_frames(model.decode(values), model.decode(changed))
    assert actual[0] == max(0, model.time_factor * (at - 1) + 1)


@WORDS
def test_the_first_frame_alone_encodes_as_the_first_of_its_clip(word: str) -> None:
    model = around(word)
    clip = clip_of(9)
    with torch.no_grad():
        whole, alone = model.encode(clip), model.encode(clip[:, :, :1])
        assert torch.allclose(alone, whole[:, :, :1], atol=1e-10)
        decoded = model.decode(whole)
        assert torch.allclose(model.decode(alone), decoded[:, :, :1], atol=1e-10)


def test_a_image_is_a_clip_of_one_frame() -> None:
    model = small().eval()
    picture = torch.rand(2, 3, 8, 12)
    out = model(picture)
    assert out.output.shape == (2, 3, 1, 8, 12)
    assert out.ids.shape == (2, 1, 2, 3)
    assert torch.equal(out.output, model(picture[:, :, None]).output)
    assert torch.equal(model.tokenize(picture, chunk=4), model.tokenize(picture))


# -- chunks -----------------------------------------------------------------------------------


@pytest.mark.by_default("dtype0-*-4", "dtype1-*-12")
@pytest.mark.parametrize("chunk", [4, 8, 12, 100])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_chunks_encode_and_decode_to_the_whole(
    chunk: int, dtype: torch.dtype, within: float
) -> None:
    model = small().to(dtype).eval()
    clip = clip_of(21, dtype=dtype)
    parts = [clip[:, :, : 1 + chunk], *clip[:, :, 1 + chunk :].split(chunk, dim=2)]
    parts = [part for part in parts if part.shape[2]]
    with torch.no_grad():
        latents = model.encode(clip)
        actual = torch.cat(list(model.encode_chunks(parts)), dim=2)
        video = model.decode(latents)
        halves = [latents[:, :, :1], *latents[:, :, 1:].split(chunk // 4, dim=2)]
        again = torch.cat(list(model.decode_chunks(halves)), dim=2)
    assert actual.shape == latents.shape
    assert torch.allclose(actual, latents, atol=within)
    assert torch.allclose(again, video, atol=within)


@pytest.mark.by_default("4-fsq", "12-vq")
@QUANTISERS
@pytest.mark.parametrize("chunk", [4, 12])
def test_ids_and_reconstructions_do_not_depend_on_chunks(quantiser: str, chunk: int) -> None:
    model = small(quantiser=quantiser).double().eval()
    clip = clip_of(21)
    ids = model.tokenize(clip)
    assert torch.equal(model.tokenize(clip, chunk=chunk), ids)
    whole = model.decode_from_code_indices(ids)
    assert torch.allclose(model.decode_from_code_indices(ids, chunk=chunk), whole, atol=1e-10)
    assert torch.allclose(model.reconstruct(clip, chunk=chunk), whole, atol=1e-10)


def carried(model: VideoTokenizer, chunks: int) -> tuple[int, int]:
    """Bytes that encoder and decoder hold between chunks, at their largest."""
    most, states, decoder_states = [0, 0], None, None
    for index in range(chunks):
        clip = clip_of(4 + (index == 0), dtype=torch.float32)
        latents, states = model.encoder.forward_chunk(clip.transpose(1, 2), states)
        _, decoder_states = model.decoder.forward_chunk(latents, decoder_states)
        for side, held in enumerate((states, decoder_states)):
            tensors = [part for state in held for part in state or ()]
            size = sum(part.untyped_storage().nbytes() for part in tensors)
            most[side] = max(most[side], size)
    return most[0], most[1]


@torch.no_grad()
def test_the_state_between_chunks_does_not_grow_with_the_clip() -> None:
    model = small().eval()
    short, long = carried(model, 3), carried(model, 12)
    assert short == long
    assert min(short) > 0


@pytest.mark.parametrize("wrong", [0, 3, 6, -4])
def test_chunks_that_split_a_latent_are_rejected(wrong: int) -> None:
    model = small()
    with pytest.raises(ValueError, match=r"chunk must be a multiple of the time factor 4.*try 4"):
        model.tokenize(clip_of(9).float(), chunk=wrong)
    with pytest.raises(ValueError, match="chunk must be"):
        model.decode_from_code_indices(torch.zeros(1, 2, 2, 2, dtype=torch.long), chunk=wrong)


# -- ids and training -------------------------------------------------------------------------


@pytest.mark.by_default("fsq", "vq")
@QUANTISERS
def test_ids_decode_to_exactly_the_reconstruction(quantiser: str) -> None:
    model = small(quantiser=quantiser).eval()
    clip = torch.rand(2, 3, 9, 8, 12)
    ids = model.tokenize(clip)
    assert ids.shape == (2, 3, 2, 3)
    assert ids.dtype == torch.long
    assert ids.min() >= 0
    assert ids.max() < model.codebook_size
    output = model.decode_from_code_indices(ids)
    assert output.shape == clip.shape
    assert torch.equal(output, model.reconstruct(clip))
    assert torch.equal(model(clip).output.clamp(0, 1), output)
    assert torch.equal(model(clip).ids, ids)


@pytest.mark.by_default("4-kl", "None-bounded")
@pytest.mark.parametrize("quantiser", ["kl", "bounded"])
@pytest.mark.parametrize("chunk", [None, 4])
def test_latents_decode_to_the_reconstruction_whole_and_in_chunks(
    quantiser: str, chunk: int | None
) -> None:
    model = small(quantiser=quantiser, latent_channels=5).double().eval()
    clip = torch.rand(2, 3, 9, 8, 12, dtype=torch.float64)
    latents = model.encode_latents(clip, chunk)
    assert latents.shape == (2, 5, *model.grid(clip)) == (2, 5, 3, 2, 3)
    torch.testing.assert_close(latents, model(clip).latents)
    output = model.decode_latents(latents, chunk)
    torch.testing.assert_close(output, model(clip).output.clamp(0, 1))
    assert torch.equal(output, model.reconstruct(clip, chunk))
    image = model.encode_latents(clip[:, :, 0])
    assert image.shape == (2, 5, *model.grid(clip[:, :, 0])) == (2, 5, 1, 2, 3)
    with pytest.raises(TypeError, match="has no ids"):
        model.decode_from_code_indices(torch.zeros(1, 1, 2, 2, dtype=torch.long))
    with pytest.raises(TypeError, match="has no ids"):
        model.tokenize(clip)


@pytest.mark.parametrize("quantiser", ["fsq", "kl"])
@pytest.mark.parametrize(
    ("factor", "sizes"),
    [
        (16, {"patch_size": 16, "layers": ("residual", "compress_time")}),
        (16, {"patch_size": 4, "layers": ("compress_space", "compress_time", "compress_space")}),
        (32, {"patch_size": 16, "layers": ("compress_space", "residual", "compress_time")}),
    ],
)
def test_a_position_may_cover_16_or_32_pixels(
    quantiser: str, factor: int, sizes: dict[str, Any]
) -> None:
    model = small(quantiser=quantiser, **sizes).eval()
    clip = torch.rand(1, 3, 5, 32, 64)
    assert model.factor == factor
    assert model.to_codes(clip).shape[-3:] == model.grid(clip) == (3, 32 // factor, 64 // factor)
    assert model.reconstruct(clip).shape == clip.shape


@WORDS
def test_every_layer_type_trains_a_step(word: str) -> None:
    model = small(layers=("compress_space", "compress_time", word)).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = model(clip_of(9, dtype=torch.float32))
    (out.output.square().mean() + out.quantiser_loss).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    optimizer.step()
    same = [n for n, p in model.named_parameters() if torch.equal(p, before[n])]
    assert [name for name in same if not name.endswith("bias")] == []


@QUANTISERS
def test_gradients_reach_every_parameter(quantiser: str) -> None:
    model = small(quantiser=quantiser).train()
    out = model(clip_of(9, dtype=torch.float32))
    (out.output.square().mean() + out.quantiser_loss).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    stem = next(model.encoder.parameters())
    assert stem.grad is not None
    assert stem.grad.abs().sum() > 0


def test_it_overfits_a_clip() -> None:
    torch.manual_seed(0)
    model = VideoTokenizer(
        init_dim=32, max_dim=32, patch_size=4, layers=("residual", "compress_time")
    )
    shade = torch.linspace(0, 1, 8)
    clip = torch.stack([shade.roll(t).expand(3, 8, 8) for t in range(5)], dim=1)[None]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    errors = []
    for _ in range(60):
        out = model(clip)
        error = (out.output - clip).square().mean()
        optimizer.zero_grad()
        (error + out.quantiser_loss).backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < 0.1 * errors[0]
    assert errors[-1] < 0.2 * clip.var().item()


@pytest.mark.by_default("fsq", "vq")
@QUANTISERS
def test_it_trains_under_bf16_autocast_and_answers_in_fp32(quantiser: str) -> None:
    model = small(quantiser=quantiser)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(clip_of(5, dtype=torch.float32))
    assert out.output.dtype == torch.float32
    assert out.quantiser_loss.dtype == torch.float32
    (out.output.mean() + out.quantiser_loss).backward()


def test_a_sample_does_not_depend_on_its_batch_nor_on_the_memory_layout() -> None:
    model = small().double().eval()
    clip = clip_of(5)
    expected = model(clip).output
    alone = torch.cat([model(part).output for part in clip.split(1)])
    assert torch.allclose(alone, expected, atol=1e-10)
    model = model.to(memory_format=torch.channels_last)
    actual = model(clip.contiguous(memory_format=torch.channels_last_3d)).output
    assert torch.allclose(actual, expected, atol=1e-10)


def in_one_graph(model: VideoTokenizer) -> None:
    torch.compiler.reset()
    clip = clip_of(5, dtype=torch.float32)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    assert torch.allclose(compiled(clip).output, model(clip).output, atol=1e-5)


@pytest.mark.slow
def test_every_layer_type_is_part_of_one_graph() -> None:
    in_one_graph(small().train())


# In training they differ more; the others are slow tests.
GRAPHS = [("vq", True)]
OTHER_GRAPHS = [
    ("fsq", True),
    ("lfq", True),
    ("bsq", True),
    ("fsq", False),
    ("vq", False),
    ("lfq", False),
]


@pytest.mark.parametrize(
    ("quantiser", "training"),
    [*GRAPHS, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_GRAPHS)],
)
def test_every_quantiser_is_part_of_one_graph(quantiser: str, training: bool) -> None:
    in_one_graph(small(quantiser=quantiser, layers=("compress_time",)).train(training))


def test_training_is_deterministic_where_it_is_asked_for() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        model = small()
        out = model(clip_of(5, dtype=torch.float32))
        (out.output.square().mean() + out.quantiser_loss).backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_codebook_usage_counts_codes_and_their_perplexity() -> None:
    model = small()
    usage = model.codebook_usage(torch.arange(24).repeat(5).view(1, 10, 3, 4))
    assert usage.fraction.item() == pytest.approx(0.5)
    assert usage.perplexity.item() == pytest.approx(24, rel=1e-4)


class Step:
    skipped = torch.zeros(())

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def noise(self, like: Tensor, name: str) -> Tensor:
        return keyed_normal(like, 1)


@QUANTISERS
def test_commit_changes_only_a_learned_codebook(quantiser: str) -> None:
    model = small(quantiser=quantiser)
    model(clip_of(5, dtype=torch.float32))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.commit(Step())
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    learned = {f"quantiser.{name}" for name in ("codebook", "counts", "commits")}
    assert changed == (learned if quantiser == "vq" else set())


# -- configuration and files ------------------------------------------------------------------


def test_the_configuration_of_older_packages_builds_as_it_is() -> None:
    with torch.device("meta"):
        model = VideoTokenizer(**README)
        out = model(torch.rand(1, 3, 17, 128, 128))
    assert (model.factor, model.time_factor, model.codebook_size) == (8, 4, 1024)
    assert out.output.shape == (1, 3, 17, 128, 128)
    assert out.ids.shape == (1, 5, 16, 16)
    widths = [layer.dim_out for layer in model.config.plan if "compress" in layer.type]
    assert widths == [128, 256, 512, 512, 512]
    assert 50e6 < sum(p.numel() for p in model.parameters()) < 60e6


def test_a_number_sets_the_width_or_repeats() -> None:
    layers = (("compress_space", 24), ("consecutive_residual", 3), ("compress_time", 48))
    config = VideoTokenizerConfig(init_dim=12, layers=layers)
    assert [layer.dim_out for layer in config.plan] == [24, 24, 24, 24, 48]
    assert [layer.type for layer in config.plan].count("residual") == 3
    assert config.dim == 48


def test_configurations_survive_json() -> None:
    config = config_from_keywords(**README)
    assert from_json(VideoTokenizerConfig, to_json(config)) == config


@pytest.mark.parametrize("bits", [2, 8, 10, 13, 16])
@QUANTISERS
def test_codebook_size_is_that_of_every_quantiser(bits: int, quantiser: str) -> None:
    with torch.device("meta"):
        model = VideoTokenizer(
            codebook_size=2**bits, quantiser=quantiser, init_dim=8, max_dim=8, layers=("residual",)
        )
    assert model.codebook_size == 2**bits


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"layers": ("resdual",)}, "'resdual'; it must be one of 'residual'"),
        ({"layers": (("attend_time", 2),)}, "'attend_time' alone"),
        ({"layers": (("consecutive_residual", 0),)}, "1 or more"),
        ({"init_dim": 64, "layers": (("compress_time", 96),)}, "divides 128"),
        ({"init_dim": 64, "max_dim": 96, "layers": ("compress_space",)}, "divides 256"),
        ({"init_dim": 6}, "multiples of 4"),
        ({"patch_size": 0}, "patch_size is 0"),
        ({"time_window": 0}, "time_window is 0"),
        ({"levels": (8, 1)}, "2 or more each"),
        ({"levels": (8,) * 21}, r"at most 2 \*\* 62"),
        ({"quantiser": "lfq", "codebook_bits": 40}, "between 1 and 30"),
        ({"quantiser": "bsq", "codebook_bits": 1}, "between 2 and 30"),
        ({"quantiser": "none"}, "'fsq', 'lfq', 'bsq', 'vq'"),
    ],
)
def test_contradictions_are_rejected_with_the_remedy(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        VideoTokenizerConfig(**wrong)


def test_invalid_keywords_are_rejected_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="power of two"):
        VideoTokenizer(codebook_size=1000)
    with pytest.raises(
        ValueError, match="image_size 100 is not divisible by the downsampling factor 8"
    ):
        VideoTokenizer(image_size=100)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 3, 5, 10, 15), "10x15 .*factor 4.*8x12"),
        ((1, 3, 6, 8, 8), r"6 frames .*one frame and a multiple of 4.*such as 5"),
        ((1, 3, 0, 8, 8), "0 frames .*such as 1"),
        ((1, 1, 5, 8, 8), r"expected clips \(b, 3, t, h, w\)"),
        ((3, 8, 8), "expected clips"),
    ],
)
def test_shapes_that_do_not_fit_are_rejected_with_the_remedy(
    shape: tuple[int, ...], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        small()(torch.rand(shape))


def test_bytes_and_odd_chunks_and_latents_for_ids_are_rejected() -> None:
    model = small()
    with pytest.raises(ValueError, match="divide them by 255"):
        model(torch.zeros(1, 3, 5, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"5 frames .*multiple of 4"):
        list(model.encode_chunks([torch.rand(1, 3, 5, 8, 8)] * 2))
    with pytest.raises(ValueError, match="expected integer ids"):
        model.decode_from_code_indices(torch.rand(1, 2, 2, 2))


@pytest.mark.parametrize("wrong", [255.0, -1.0, float("nan")])
def test_values_outside_the_range_are_rejected(wrong: float) -> None:
    model = small()
    with pytest.raises(ValueError, match="takes 0 to 1: divide uint8 by 255"):
        model.tokenize(torch.full((1, 3, 5, 8, 8), wrong))


def test_ids_of_another_codebook_are_rejected() -> None:
    ids = torch.full((1, 2, 2, 2), 48)
    with pytest.raises(ValueError, match=r"from 48 to 48.*48 codes"):
        small().decode_from_code_indices(ids)
    small().decode_from_code_indices(ids - 1)


def test_a_saved_model_loads_unchanged(tmp_path: Path) -> None:
    model = small(quantiser="lfq").eval()
    loaded = VideoTokenizer.from_pretrained(model.save_pretrained(tmp_path / "model"))
    clip = clip_of(5, dtype=torch.float32)
    assert loaded.config == model.config
    assert torch.equal(loaded.reconstruct(clip), model.reconstruct(clip))


def test_keywords_build_the_same_configuration() -> None:
    assert VideoTokenizer(**SMALL).config == VideoTokenizerConfig(**SMALL)
    assert VideoTokenizer(VideoTokenizerConfig(**SMALL), quantiser="lfq").config.quantiser == "lfq"


# -- discriminators ---------------------------------------------------------------------------


def discriminators() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        FrameDiscriminator(dim=8, layers=2),
        MotionDiscriminator(dim=8, layers=2),
    ]


@pytest.mark.parametrize("frames", [1, 2, 5, 9])
def test_discriminators_judge_patches_of_each_sample(frames: int) -> None:
    video = clip_of(frames, 16, torch.float32)
    of_frames, of_motion = (discriminator(video) for discriminator in discriminators())
    assert of_frames.shape == (2, 1, frames, 4, 4)
    assert of_motion.shape == (2, 1, (frames + 1) // 2, 4, 4)
    for discriminator, logits in zip(discriminators(), (of_frames, of_motion)):
        assert torch.allclose(discriminator(video[1:]), logits[1:], atol=1e-5)


def test_only_the_motion_discriminator_sees_the_order_of_frames() -> None:
    video = clip_of(5, 16, torch.float32)
    backwards = video.flip(2)
    of_frames, of_motion = discriminators()
    assert torch.allclose(of_frames(backwards), of_frames(video).flip(2), atol=1e-5)
    assert not torch.allclose(of_motion(backwards), of_motion(video).flip(2), atol=1e-3)


@pytest.mark.by_default("motion")
@pytest.mark.parametrize("index", [0, 1], ids=["frames", "motion"])
def test_discriminators_train_and_are_one_graph(index: int) -> None:
    torch.compiler.reset()
    discriminator = discriminators()[index]
    video = clip_of(5, 16, torch.float32)
    compiled = torch.compile(discriminator, backend="aot_eager", fullgraph=True, dynamic=False)
    assert torch.allclose(compiled(video), discriminator(video), atol=1e-5)
    hinge_discriminator(discriminator(video), discriminator(1 - video)).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in discriminator.parameters())


def test_discriminators_without_a_layer_are_rejected() -> None:
    with pytest.raises(ConfigError, match="layers is 0"):
        DiscriminatorConfig(layers=0)
    with pytest.raises(ConfigError, match="layers is 0"):
        MotionDiscriminatorConfig(layers=0)
