import pytest
import torch
from torch import nn

from quintet.engine.keys import keyed_normal
from quintet.image.vqgan.config import VQGanVAEConfig
from quintet.image.vqgan.model import VQGanVAE, config_from_keywords
from quintet.nn.adversarial.discriminator import PatchDiscriminator

SMALL = {
    "dim": 16,
    "channel_multipliers": (1, 2, 2),
    "patch_size": 2,
    "num_res_blocks": (1,),
    "codebook_bits": 6,
}
QUANTISERS = pytest.mark.parametrize("quantiser", ["fsq", "lfq", "bsq", "vq"])
CONTINUOUS = pytest.mark.parametrize("quantiser", ["kl", "bounded"])
BOTTLENECKS = pytest.mark.parametrize("quantiser", ["fsq", "lfq", "bsq", "vq", "kl", "bounded"])


def small(**changes: object) -> VQGanVAE:
    """A model whose branches are awake: at the start many of them end in zeros."""
    torch.manual_seed(0)
    model = VQGanVAE(**(SMALL | {"levels": (4, 4, 3)} | changes))
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return model


@pytest.mark.by_default("fsq", "vq")
@QUANTISERS
def test_ids_decode_to_exactly_the_reconstruction(quantiser: str) -> None:
    model = small(quantiser=quantiser).eval()
    images = torch.rand(2, 3, 32, 48)
    ids = model.tokenize(images)
    assert ids.shape == (2, 4, 6)
    assert ids.dtype == torch.long
    assert ids.min() >= 0
    assert ids.max() < model.codebook_size
    assert torch.equal(model.decode_from_ids(ids), model.reconstruct(images))
    assert torch.equal(model(images).output.clamp(0, 1), model.reconstruct(images))
    assert torch.equal(model(images).ids, ids)


@CONTINUOUS
def test_latents_decode_to_exactly_the_reconstruction(quantiser: str) -> None:
    model = small(quantiser=quantiser, latent_channels=5).eval()
    images = torch.rand(2, 3, 32, 48)
    latents = model.encode_latents(images)
    assert latents.shape == (2, 5, 4, 6)
    assert torch.equal(model.decode_latents(latents), model.reconstruct(images))
    assert torch.equal(model(images).output.clamp(0, 1), model.reconstruct(images))
    assert torch.equal(model(images).latents, latents)
    assert model(images).ids is None


@CONTINUOUS
def test_a_continuous_model_has_no_ids_and_says_what_to_call(quantiser: str) -> None:
    model, images = small(quantiser=quantiser).eval(), torch.rand(1, 3, 16, 16)
    for call in (
        lambda: model.tokenize(images),
        lambda: model.decode_from_ids(torch.zeros(1, 2, 2, dtype=torch.long)),
        lambda: model.codebook_size,
    ):
        with pytest.raises(TypeError, match=f"'{quantiser}' has no ids.*call encode_latents"):
            call()
    with pytest.raises(TypeError, match="'fsq' has no latents: call tokenize"):
        small().encode_latents(images)
    with pytest.raises(ValueError, match=r"expected float latents \(b, 8, h, w\)"):
        model.decode_latents(torch.zeros(1, 3, 2, 2))


@CONTINUOUS
def test_the_loss_of_a_loop_of_ones_own_draws_noise_in_training_alone(quantiser: str) -> None:
    model, images = small(quantiser=quantiser), torch.rand(2, 3, 16, 16)
    first, second = (model(images, return_loss=True) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    again = model(images, return_loss=True)
    torch.manual_seed(1)
    assert torch.equal(again, model(images, return_loss=True))
    model.eval()
    assert torch.equal(model(images, return_loss=True), model(images, return_loss=True))


@pytest.mark.by_default("16-sizes0-fsq", "16-sizes1-vq", "32-sizes2-kl", "32-sizes3-fsq")
@BOTTLENECKS
@pytest.mark.parametrize(
    ("factor", "sizes"),
    [
        (16, {"patch_size": 4, "channel_multipliers": (1, 2, 2)}),
        (16, {"patch_size": 1, "channel_multipliers": (1, 1, 2, 2, 2)}),
        (32, {"patch_size": 4, "channel_multipliers": (1, 2, 2, 2)}),
        (32, {"patch_size": 8, "channel_multipliers": (1, 2, 2)}),
    ],
)
def test_a_position_may_cover_16_or_32_pixels(
    quantiser: str, factor: int, sizes: dict[str, object]
) -> None:
    model = small(quantiser=quantiser, **sizes).eval()
    images = torch.rand(1, 3, 64, 96)
    assert model.factor == factor
    assert model.to_codes(images).shape[-2:] == model.grid(images) == (64 // factor, 96 // factor)
    assert model.reconstruct(images).shape == images.shape


@pytest.mark.by_default("fsq", "vq", "kl")
@BOTTLENECKS
def test_every_parameter_receives_a_gradient(quantiser: str) -> None:
    model = small(quantiser=quantiser).train()
    out = model(torch.rand(2, 3, 16, 24))
    (out.output.square().mean() + out.quantiser_loss).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    stem = next(model.encoder.parameters())
    assert stem.grad is not None
    assert stem.grad.abs().sum() > 0


@pytest.mark.by_default("fsq", "kl")
@BOTTLENECKS
def test_a_sample_does_not_depend_on_its_batch(quantiser: str) -> None:
    model = small(quantiser=quantiser).double().eval()
    images = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    alone = torch.cat([model(image[None]).output for image in images])
    assert torch.allclose(model(images).output, alone, atol=1e-9)


def test_channels_last_gives_the_same_images() -> None:
    model = small().double().eval()
    images = torch.rand(2, 3, 16, 24, dtype=torch.float64)
    expected = model(images).output
    model = model.to(memory_format=torch.channels_last)
    actual = model(images.contiguous(memory_format=torch.channels_last)).output
    assert torch.allclose(actual, expected, atol=1e-9)


@pytest.mark.by_default("fsq", "kl")
@BOTTLENECKS
def test_it_trains_under_bf16_autocast_and_answers_in_fp32(quantiser: str) -> None:
    model = small(quantiser=quantiser)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.rand(2, 3, 16, 16))
    assert out.output.dtype == torch.float32
    assert out.quantiser_loss.dtype == torch.float32
    (out.output.mean() + out.quantiser_loss).backward()


def test_indivisible_sizes_are_rejected_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"30x33 .*factor 8.*24x32"):
        small()(torch.rand(1, 3, 30, 33))
    with pytest.raises(ValueError, match="expected images"):
        small()(torch.rand(3, 32, 32))


def test_ids_of_no_code_are_rejected_with_the_range() -> None:
    model = VQGanVAE(dim=8, channel_multipliers=(1, 2))
    grid = torch.zeros(1, 2, 3, dtype=torch.long)
    for wrong in (-1, model.codebook_size):
        with pytest.raises(ValueError, match=rf"outside 0 … {model.codebook_size - 1}"):
            model.decode_from_ids(grid.index_fill(2, torch.tensor([1]), wrong))
    with pytest.raises(ValueError, match=r"expected integer ids \(b, h, w\), not torch.float32"):
        model.decode_from_ids(grid.float())
    with pytest.raises(ValueError, match=r"expected integer ids \(b, h, w\)"):
        model.decode_from_ids(grid.flatten(1))


@pytest.mark.parametrize("method", ["tokenize", "reconstruct"])
def test_images_on_another_scale_are_rejected_with_the_range(method: str) -> None:
    model = VQGanVAE(dim=8, channel_multipliers=(1, 2))
    images = torch.rand(1, 3, model.factor, model.factor)
    call = getattr(model, method)
    call(images)
    for wrong in (images * 255, images * 2 - 1.5, images * torch.nan):
        with pytest.raises(ValueError, match="takes 0 to 1: divide uint8 by 255"):
            call(wrong)
    with pytest.raises(ValueError, match=r"expected images in 0\.\.1, not torch.uint8"):
        model.encode((images * 255).byte())


def test_codebook_usage_counts_codes_and_their_perplexity() -> None:
    model = small()
    usage = model.codebook_usage(torch.arange(24).repeat(5).view(1, 10, 12))
    assert usage.fraction.item() == pytest.approx(0.5)
    assert usage.perplexity.item() == pytest.approx(24, rel=1e-4)


def test_keywords_build_the_same_configuration() -> None:
    assert VQGanVAE(**SMALL).config == VQGanVAEConfig(**SMALL)
    assert VQGanVAE(VQGanVAEConfig(**SMALL), quantiser="lfq").config.quantiser == "lfq"
    assert config_from_keywords(dim=8, num_res_blocks=3).num_res_blocks == (3,)


@pytest.mark.parametrize("bits", [2, 8, 10, 13, 16])
@QUANTISERS
def test_older_keywords_give_their_factor_and_codebook(bits: int, quantiser: str) -> None:
    config = config_from_keywords(
        dim=16, layers=3, codebook_size=2**bits, quantiser=quantiser, attention_layers=0
    )
    with torch.device("meta"):
        model = VQGanVAE(config)
    assert model.factor == 8
    assert model.codebook_size == 2**bits
    assert config.widths == (16, 32, 64)


def test_a_codebook_size_between_powers_of_two_is_rejected() -> None:
    with pytest.raises(ValueError, match="power of two"):
        VQGanVAE(dim=16, codebook_size=1000)


@pytest.mark.parametrize(
    "wrong",
    [{"num_res_blocks": (1, 2)}, {"levels": (1,)}, {"patch_size": 0}, {"channel_multipliers": ()}],
)
def test_contradictions_are_rejected_at_construction(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        VQGanVAEConfig(**wrong)


class Step:
    skipped = torch.zeros(())

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def noise(self, like: torch.Tensor, name: str) -> torch.Tensor:
        return keyed_normal(like, 1)


@QUANTISERS
def test_commit_changes_only_a_learned_codebook(quantiser: str) -> None:
    model = small(quantiser=quantiser)
    model(torch.rand(2, 3, 32, 32))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.commit(Step())
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    expected = (
        {f"quantiser.{name}" for name in ("codebook", "counts", "commits")}
        if quantiser == "vq"
        else set()
    )
    assert changed == expected


def test_tokenizing_while_training_collects_no_statistics() -> None:
    model = small(quantiser="vq").train()
    model.reconstruct(torch.rand(1, 3, 16, 16))
    assert model.quantiser.new_counts.sum() == 0


# The tokenizer of videos is compiled with the others; see tests/video/test_model.py.
GRAPHS = [("lfq", True)]
OTHER_GRAPHS = [
    ("fsq", True),
    ("fsq", False),
    ("bsq", True),
    ("vq", True),
    ("vq", False),
    ("lfq", False),
    ("bsq", False),
]


@pytest.mark.parametrize(
    ("quantiser", "training"),
    [*GRAPHS, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_GRAPHS)],
)
def test_forward_is_one_graph(quantiser: str, training: bool) -> None:
    torch.compiler.reset()
    model = small(quantiser=quantiser, channel_multipliers=(1, 2)).train(training)
    images = torch.rand(1, 3, 16, 16)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(images).output, model(images).output, atol=1e-6)


def test_the_discriminator_is_one_graph_and_built_from_its_configuration() -> None:
    torch.compiler.reset()
    discriminator = PatchDiscriminator(dim=8, layers=2)
    compiled = torch.compile(discriminator, backend="eager", fullgraph=True)
    assert compiled(torch.rand(2, 3, 16, 16)).shape == (2, 1, 4, 4)
