import math

import pytest
import torch
from torch import Tensor, nn

from quintet.nn.quantisers.bsq import BSQ
from quintet.nn.quantisers.build import build_quantiser
from quintet.nn.quantisers.config import QuantiserConfig, codebook_of_size
from quintet.nn.quantisers.fsq import FSQ, decorrelation_loss
from quintet.nn.quantisers.lfq import LFQ, code_probabilities, codebook_entropy, entropy
from quintet.nn.quantisers.vq import VectorQuantiser, nearest, rotate


def every_quantiser(dim: int = 16) -> list[nn.Module]:
    return [FSQ(dim, (5, 4, 3)), LFQ(dim, 6), BSQ(dim, 6), VectorQuantiser(dim, 32)]


each = pytest.mark.parametrize("build", [0, 1, 2, 3], ids=["fsq", "lfq", "bsq", "vq"])


@each
@pytest.mark.parametrize("shape", [(2, 16, 4, 6), (3, 16, 7), (1, 16, 2, 3, 4)])
def test_ids_decode_to_exactly_the_values_of_forward(build: int, shape: tuple[int, ...]) -> None:
    quantiser = every_quantiser()[build].eval()
    latents = torch.randn(shape)
    out = quantiser(latents)
    assert out.values.shape == latents.shape
    assert out.ids.shape == (shape[0], *shape[2:])
    assert torch.equal(quantiser.ids_to_values(out.ids), out.values)
    assert torch.equal(quantiser.to_ids(latents), out.ids)


def test_ids_of_48_bits_decode_exactly_and_are_counted() -> None:
    """Their codebook has no table anywhere."""
    quantiser = FSQ(16, (8,) * 16).eval()
    out = quantiser(torch.randn(4, 16, 8, 8))
    assert out.ids.max() > 2**40
    assert torch.equal(quantiser.ids_to_values(out.ids), out.values)
    metrics = quantiser.summarise({"ids": out.ids.fill_(2**47 + 1)})
    assert metrics["codebook_usage"] == pytest.approx(2**-48)
    assert metrics["perplexity"] == pytest.approx(1)
    assert metrics["codebook_coverage"] == pytest.approx(1 / out.ids.numel())


def test_a_codebook_too_large_to_count_is_measured_by_its_digits() -> None:
    quantiser = build_quantiser(QuantiserConfig(levels=(8,) * 6 + (4,) * 5), 16)
    assert isinstance(quantiser, FSQ)
    assert quantiser.digits == (512, 512, 1024)
    low, high = torch.arange(512), torch.arange(512).flip(0)
    metrics = quantiser.summarise({"ids": low + 512 * high})  # the last digit is 0 throughout
    assert metrics["codebook_usage"] == pytest.approx((1 + 1 + 1 / 1024) / 3)
    assert metrics["perplexity"] == pytest.approx((512 + 512 + 1) / 3)
    assert metrics["tokens_per_code"] == 512 / 1024


@each
def test_every_code_is_its_own_nearest(build: int) -> None:
    quantiser = every_quantiser()[build].eval()
    quantiser.project_in = Transparent()
    quantiser.project_out = Transparent()
    ids = torch.arange(quantiser.codebook_size)[None]
    values = quantiser.ids_to_values(ids)
    if isinstance(quantiser, FSQ):
        values = torch.atanh(values) / 0.8
    assert torch.equal(quantiser.to_ids(values), ids)


class Transparent(nn.Module):
    """Exposes the codes to a test: no norm, no projection, channels already last."""

    weight = torch.zeros(())

    def forward(self, values: Tensor) -> Tensor:
        return values


@each
def test_gradient_reaches_latents_and_projections(build: int) -> None:
    quantiser = every_quantiser()[build].train()
    latents = torch.randn(2, 16, 4, 4, requires_grad=True)
    out = quantiser(latents)
    (out.values * torch.randn_like(out.values)).sum().backward()
    assert latents.grad is not None
    assert latents.grad.abs().sum() > 0
    for name, parameter in quantiser.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@each
def test_autocast_changes_no_id_and_no_value(build: int) -> None:
    quantiser = every_quantiser()[build].eval()
    latents = torch.randn(2, 16, 4, 4)
    plain = quantiser(latents)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = quantiser(latents)
    assert torch.equal(plain.ids, cast.ids)
    assert torch.equal(plain.values, cast.values)
    assert cast.loss.dtype == torch.float32
    assert cast.loss.shape == ()


@each
def test_half_precision_latents_are_quantised_in_fp32(build: int) -> None:
    out = every_quantiser()[build](torch.randn(2, 16, 4, 4, dtype=torch.bfloat16))
    assert out.values.dtype == torch.float32
    assert out.loss.dtype == torch.float32


@each
def test_a_collapsed_encoder_still_uses_many_codes(build: int) -> None:
    quantiser = every_quantiser()[build]
    latents = 100 + 1e-2 * torch.randn(4, 16, 16, 16)
    assert quantiser(latents).ids.unique().numel() > quantiser.codebook_size / 2


def test_fsq_cells_are_equally_likely_for_normal_latents() -> None:
    quantiser = FSQ(64, (8,))
    ids = quantiser(torch.randn(64, 64, 16, 16)).ids
    shares = torch.bincount(ids.flatten(), minlength=8) / ids.numel()
    assert shares.min() > 0.08
    assert shares.max() < 0.17


def test_fsq_stays_in_range_at_the_ends_of_tanh() -> None:
    quantiser = FSQ(4, (8, 5))
    indices = quantiser.level_indices(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    assert indices.tolist() == [[0, 0], [7, 4]]


def test_fsq_decorrelation_loss_is_zero_only_for_independent_uniform_scalars() -> None:
    uniform = torch.rand(100_000, 4) * 2 - 1
    assert decorrelation_loss(uniform) < 1e-3
    assert decorrelation_loss(uniform[:, :1].expand(-1, 4)) > 2.9
    assert decorrelation_loss(uniform * 0.1) > 0.9
    assert decorrelation_loss(uniform * 0.1 + 0.7) > 2


def test_fsq_decorrelation_loss_is_per_micro_batch_and_zero_in_eval() -> None:
    """A known limitation (see the module): covariance is not additive over micro-batches."""
    quantiser, latents = FSQ(16, (5, 5)), torch.randn(2, 16, 4, 4)
    parts = (quantiser(latents[:1]).loss + quantiser(latents[1:]).loss) / 2
    assert not torch.isclose(quantiser(latents).loss, parts)
    assert quantiser.eval()(latents).loss == 0


def test_fsq_rejects_a_dimension_of_one_level() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        FSQ(8, (8, 1))


def test_lfq_factored_entropy_equals_that_of_the_full_table() -> None:
    bits = torch.rand(50, 9)
    table = code_probabilities(bits)
    assert table.shape == (50, 512)
    assert torch.allclose(table.sum(1), torch.ones(50))
    assert torch.allclose(codebook_entropy(bits), entropy(table.mean(0)), atol=1e-5)


def test_lfq_groups_add_up_for_independent_bits() -> None:
    bits = torch.full((8, 14), 0.5)
    assert torch.allclose(codebook_entropy(bits), torch.tensor(14 * math.log(2)), atol=1e-4)


def test_lfq_probabilities_follow_the_distances_to_codes() -> None:
    quantiser = LFQ(8, 4)
    soft = torch.randn(20, 4)
    codes = torch.tensor([[int(b) * 2.0 - 1 for b in f"{i:04b}"] for i in range(16)])
    probabilities = torch.softmax(-torch.cdist(soft, codes).square(), dim=1)
    per_sample = -(probabilities * probabilities.log()).sum(1).mean()
    expected = (per_sample - entropy(probabilities.mean(0))) / (4 * math.log(2))
    assert torch.allclose(quantiser.entropy_loss(soft), expected, atol=1e-5)


def test_lfq_entropy_loss_rewards_confident_and_diverse_codes() -> None:
    quantiser = LFQ(8, 3)
    corners = torch.tensor([[int(b) * 2.0 - 1 for b in f"{i:03b}"] for i in range(8)])
    diverse, same = quantiser.entropy_loss(corners * 3), quantiser.entropy_loss(corners[:1] * 3)
    uncertain = quantiser.entropy_loss(corners * 0)
    assert torch.allclose(diverse, torch.tensor(-1.0), atol=1e-3)
    assert diverse < same - 0.9
    assert diverse < uncertain - 0.9


binary = pytest.mark.parametrize("kind", [LFQ, BSQ])


@binary
def test_entropy_loss_is_per_micro_batch(kind: type[LFQ]) -> None:
    """A known limitation (see the module): entropy is not additive over micro-batches."""
    quantiser = kind(8, 3)
    first, second = torch.full((4, 3), 3.0), torch.full((4, 3), -3.0)
    whole = quantiser.entropy_loss(torch.cat((first, second)))
    parts = (quantiser.entropy_loss(first) + quantiser.entropy_loss(second)) / 2
    assert parts > whole + 0.3


@binary
def test_a_binary_quantiser_has_no_loss_in_eval(kind: type[LFQ]) -> None:
    assert kind(16, 6).eval()(torch.randn(2, 16, 4, 4)).loss == 0


def test_bsq_values_loss_and_gradient_follow_the_paper() -> None:
    """Eqs. of arXiv 2406.07548 over the table of all codes, with tau = 2 bits."""
    bits = 4
    quantiser = BSQ(8, bits, entropy_weight=0.2, commitment_weight=0.25).double().train()
    latents = torch.randn(3, 8, 5, dtype=torch.float64, requires_grad=True)
    out = quantiser(latents)

    projected = quantiser.project_in(latents).flatten(0, 1)
    sphere = projected / projected.square().sum(1, keepdim=True).sqrt()
    signs = torch.tensor([[(i >> bit & 1) * 2 - 1 for bit in range(bits)] for i in range(16)])
    codes = signs.double() / math.sqrt(bits)
    probabilities = torch.softmax(2 * bits * sphere @ codes.T, dim=1)
    ids = probabilities.argmax(1)
    per_sample = -(probabilities * probabilities.log()).sum(1).mean()
    codebook = -(probabilities.mean(0) * probabilities.mean(0).log()).sum()
    commitment = (sphere - codes[ids]).square().sum(1).mean()
    loss = 0.25 * commitment + 0.2 * (per_sample - codebook) / (bits * math.log(2))

    weight, bias = quantiser.project_out.weight, quantiser.project_out.bias
    values = (codes[ids] @ weight.T + bias).view(3, 5, 8).movedim(-1, 1)
    assert torch.equal(out.ids.flatten(), ids)
    assert torch.allclose(out.values, values, rtol=0, atol=1e-12)
    assert torch.allclose(out.loss, loss, rtol=0, atol=1e-12)

    gradient = torch.randn_like(out.values)
    (received,) = torch.autograd.grad((out.values * gradient).sum() + out.loss, latents)
    through = (sphere @ weight.T).view(3, 5, 8).movedim(-1, 1)
    (expected,) = torch.autograd.grad((through * gradient).sum() + loss, latents)
    assert torch.allclose(received, expected, rtol=0, atol=1e-12)


def test_bsq_starts_at_unit_scale_with_any_number_of_bits() -> None:
    for bits in (4, 18):
        values = BSQ(256, bits)(torch.randn(2, 256, 8, 8)).values
        assert 0.7 < values.std() < 1.4


@binary
def test_gradient_is_finite_where_a_bit_is_certain_at_every_position(
    kind: type[LFQ],
) -> None:
    soft = torch.zeros(4, 30, requires_grad=True)
    certain = soft + 10 * torch.eye(30)[0]
    kind(8, 30).entropy_loss(certain).backward()
    assert soft.grad is not None
    assert soft.grad.isfinite().all()


def test_the_smallest_codebook_has_one_bit() -> None:
    assert codebook_of_size(2) == {"codebook_bits": 1, "levels": (2,)}


def test_bsq_rejects_a_single_bit() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        BSQ(8, 1)


def test_rotation_maps_a_latent_onto_its_code_and_rotates_the_gradient() -> None:
    start = torch.randn(5, 8, requires_grad=True)
    end = torch.randn(5, 8)
    assert torch.allclose(rotate(start, end), end, atol=1e-5)
    gradient = torch.randn(5, 8)
    (received,) = torch.autograd.grad(rotate(start, end), start, gradient)
    scale = end.norm(dim=1) / start.norm(dim=1)
    assert torch.allclose(received.norm(dim=1), gradient.norm(dim=1) * scale, rtol=1e-4)
    angle_out = torch.cosine_similarity(gradient, end)
    angle_in = torch.cosine_similarity(received, start)
    assert torch.allclose(angle_out, angle_in, atol=1e-5)


def test_nearest_agrees_with_distances() -> None:
    rows, codebook = torch.randn(100, 4), torch.randn(17, 4)
    assert torch.equal(nearest(rows, codebook), torch.cdist(rows, codebook).argmin(1))


def state(quantiser: nn.Module) -> list[Tensor]:
    return [value.clone() for value in quantiser.state_dict().values()]


def test_vq_two_micro_batches_commit_like_one_batch(commit_at) -> None:
    whole, parts = VectorQuantiser(16, 32), VectorQuantiser(16, 32)
    parts.load_state_dict(whole.state_dict())
    latents = torch.randn(4, 16, 8, 8)
    whole(latents)
    parts(latents[:1])
    parts(latents[1:])
    for quantiser in (whole, parts):
        quantiser.commit(commit_at())
    for a, b in zip(state(whole), state(parts)):
        assert torch.allclose(a, b, atol=1e-5)


def test_vq_two_equal_processes_commit_like_one(commit_at) -> None:
    one, two = VectorQuantiser(16, 32), VectorQuantiser(16, 32)
    two.load_state_dict(one.state_dict())
    latents = torch.randn(2, 16, 8, 8)
    one(latents)
    two(latents)
    one.commit(commit_at())
    two.commit(commit_at(processes=2))
    for a, b in zip(state(one), state(two)):
        assert torch.allclose(a, b, atol=1e-5)


def test_vq_drops_the_statistics_of_a_skipped_step_even_if_they_are_nan(commit_at) -> None:
    quantiser = VectorQuantiser(16, 32)
    before = state(quantiser)
    quantiser(torch.full((1, 16, 4, 4), float("nan")))
    quantiser.commit(commit_at(skipped=True))
    assert all(torch.equal(a, b) for a, b in zip(before, state(quantiser)))
    quantiser(torch.randn(1, 16, 4, 4))
    quantiser.commit(commit_at())
    assert all(value.isfinite().all() for value in state(quantiser))


def test_vq_keeps_its_state_without_a_forward_and_in_eval(commit_at) -> None:
    quantiser = VectorQuantiser(16, 32)
    before = state(quantiser)
    quantiser.commit(commit_at())
    quantiser.eval()(torch.randn(1, 16, 4, 4))
    quantiser.commit(commit_at())
    assert all(torch.equal(a, b) for a, b in zip(before, state(quantiser)))


def test_vq_codes_move_to_the_mean_of_their_latents(commit_at) -> None:
    quantiser = VectorQuantiser(16, 4)
    quantiser.decay = quantiser.dead_code_threshold = 0.0
    latents = torch.randn(2, 16, 8, 8)
    ids = quantiser(latents).ids
    soft = quantiser.project_in(latents)
    quantiser.commit(commit_at())
    for code in ids.unique():
        assert torch.allclose(quantiser.codebook[code], soft[ids == code].mean(0), atol=1e-5)


def test_vq_replaces_dead_codes_by_copies_of_frequent_ones(commit_at) -> None:
    quantiser = VectorQuantiser(16, 64)
    quantiser.decay, quantiser.dead_code_threshold = 0.5, 0.2
    quantiser.codebook[8:] = 100.0
    latents = torch.randn(8, 16, 8, 8)
    for _ in range(4):
        quantiser(latents)
        quantiser.commit(commit_at())
    assert quantiser.eval()(latents).ids.unique().numel() > 32


def test_vq_codebook_reaches_distant_data_within_ten_steps(commit_at) -> None:
    quantiser = VectorQuantiser(16, 64)
    quantiser.codebook += 50.0
    for _ in range(10):
        quantiser(torch.randn(8, 16, 8, 8))
        quantiser.commit(commit_at())
    assert quantiser.eval()(torch.randn(8, 16, 8, 8)).ids.unique().numel() > 48


def test_vq_accumulators_are_not_saved() -> None:
    names = set(VectorQuantiser(16, 32).state_dict())
    assert {"codebook", "counts", "commits"} <= names
    assert not any(name.startswith("new_") for name in names)
