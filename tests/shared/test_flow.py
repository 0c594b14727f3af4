"""Flow generators: the network, its conditions, the solver and distillation, whatever the room."""

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

import small
from quintet import ImageFlow
from quintet.engine.config import ConfigError
from quintet.image.flow.config import ImageFlowConfig, ImageFlowFewRecipe
from quintet.nn.attention import Context
from quintet.shared.flow.model import patches, shifted, training_times, unpatched
from quintet.shared.flow.solving import Solver, Start, solve, times_of
from quintet.shared.generation.generator import CASTS, CastWeights, sample_keys

SMALL = ImageFlowConfig(
    grid=(4, 6), latent_channels=3, dim=32, layers=2, heads=2, head_dim=16, text_length=8
)


def filled(config: ImageFlowConfig = SMALL) -> ImageFlow:
    """With weights that are not zero anywhere, so that every input counts."""
    torch.manual_seed(0)
    model = ImageFlow(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    model.set_statistics(torch.tensor([1.0, 0.0, -2.0]), torch.tensor([2.0, 1.0, 0.5]))
    return model


@pytest.fixture
def model() -> ImageFlow:
    return filled()


def inputs(config: ImageFlowConfig = SMALL, count: int = 2) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    x = torch.randn(count, config.latent_channels, *config.grid)
    return x, torch.rand(count), torch.zeros(count, 1, *config.grid, dtype=torch.bool)


# -- the network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(4, 6), (3, 4, 6)])
def test_patches_are_put_back(grid: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, *grid)
    for patch in (1, 2):
        cells = (*grid[:-2], grid[-2] // patch, grid[-1] // patch)
        rows = patches(x, patch)
        assert rows.shape == (2, math.prod(cells), 3 * patch**2)
        assert torch.equal(unpatched(rows, cells, patch), x)


def test_a_token_holds_a_square_of_neighbours() -> None:
    x = torch.arange(24.0).view(1, 1, 4, 6)
    assert patches(x, 2)[0, 1].tolist() == [2, 3, 8, 9]


@pytest.mark.parametrize("name", ["time", "known", "context", "changed", "end", "place"])
def test_every_condition_counts(name: str) -> None:
    model = filled(replace(SMALL, jumps=True))
    x, time, known = inputs()
    x = x[:1].expand(2, -1, -1, -1)
    context = model.encode_captions(["a star", "a star"])
    changed, end = torch.zeros(2, dtype=torch.bool), time + 0.1
    first = model.velocity(x, time, known, context, changed, end)
    if name == "time":
        time = time + 0.2
    elif name == "known":
        known = ~known
    elif name == "context":
        context = model.encode_captions(["a ring", "a star now"])
    elif name == "changed":
        changed = ~changed
    elif name == "end":
        end = time + 0.3
    else:  # the same latents at another place do not have the same velocities
        assert not torch.allclose(model.velocity(x.roll(1, 3), time, known).roll(-1, 3), first)
        return
    assert not torch.allclose(model.velocity(x, time, known, context, changed, end), first)


def test_a_jump_of_no_length_is_the_moment() -> None:
    model = filled(replace(SMALL, jumps=True))
    x, time, known = inputs()
    moment = model.velocity(x, time, known)
    assert torch.equal(model.velocity(x, time, known, end=time), moment)


def test_padding_of_a_caption_changes_nothing(model: ImageFlow) -> None:
    """On a CPU a batch is padded to its longest caption, on a GPU to the most words."""
    x, time, known = inputs(count=1)
    full = model.encode_captions(["a red star"])
    short = Context(full.values[:, :5], full.mask[:, :5])
    assert not full.mask[:, 5:].any()
    assert torch.equal(model.velocity(x, time, known, full), model.velocity(x, time, known, short))


def test_a_dropped_caption_is_that_of_no_caption(model: ImageFlow) -> None:
    x, time, known = inputs()
    text = model.tokenize_captions(["a red star", "a ring"])[0]
    dropped = model(x, time, known, text, None, torch.tensor([True, False]))
    nothing = model.velocity(x, time, known, model.encode_text(2))
    assert torch.allclose(dropped[0], nothing[0], atol=1e-6)
    assert not torch.allclose(dropped[1], nothing[1], atol=1e-3)


def test_other_grids_than_those_of_training_are_taken(model: ImageFlow) -> None:
    x = torch.randn(1, 3, 7, 5)
    known = torch.zeros(1, 1, 7, 5, dtype=torch.bool)
    assert model.velocity(x, torch.rand(1), known).shape == x.shape


def test_latents_are_normalised_by_channel_and_restored(model: ImageFlow) -> None:
    x = torch.randn(64, 3, 4, 6) * torch.tensor([2.0, 1.0, 0.5]).view(3, 1, 1)
    x = x + torch.tensor([1.0, 0.0, -2.0]).view(3, 1, 1)
    normalised = model.normalised(x)
    assert normalised.mean((0, 2, 3)).abs().max() < 0.1
    assert (normalised.std((0, 2, 3)) - 1).abs().max() < 0.1
    assert torch.allclose(model.restored(normalised), x, atol=1e-5)


def test_latents_must_be_measured_first() -> None:
    model = small.image_flow()
    with pytest.raises(ValueError, match="are not measured yet: train it, or call measure_latents"):
        deepcopy(model).generate(count=1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"patch": 4}, "patch is 4; it must be a divisor of the last two sides of the grid"),
        ({"shift": -1.0}, "shift is -1.0; it must be 0 or more"),
        ({"head_dim": 6}, "head_dim is 6; it must be a multiple of 4"),
        ({"text": "letters"}, "text is 'letters'; it must be one of"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        replace(SMALL, **changes)


def test_a_student_takes_no_guidance_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"text_drop is 0\.1; it must be 0: guidance is"):
        ImageFlowFewRecipe()


# -- times and the solver -------------------------------------------------------------------------


def test_times_of_training_and_of_the_solver_are_shifted_alike() -> None:
    """Half of the training times lie before the middle time of the solver."""
    keys = torch.arange(20_000)
    for shift in (0.5, 1.0, 4.0):
        middle = shifted(torch.tensor(0.5), shift)
        share = (training_times(keys, shift) < middle).float().mean()
        assert abs(share - 0.5) < 0.02
        times = times_of(10, shift, 0.3)
        assert times[0] == pytest.approx(0.3, abs=1e-6)
        assert times[-1] == 1
        assert (times.diff() > 0).all()
    assert torch.allclose(times_of(4, 1.0), torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))


class Straight(torch.nn.Module):
    """A field that points to a target from everywhere: one step is exact."""

    def __init__(self, target: torch.Tensor) -> None:
        super().__init__()
        self.target = torch.nn.Parameter(target)
        self.config = SMALL
        self.weight = self.target

    def velocity(self, x: torch.Tensor, time: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return (self.target - x) / (1 - time).view(-1, 1, 1, 1)


@pytest.mark.parametrize("method", ["euler", "midpoint"])
@pytest.mark.parametrize("steps", [1, 3])
@torch.no_grad()
def test_a_straight_field_is_followed_to_its_end(method: Any, steps: int) -> None:
    target, noise = torch.randn(3, 4, 6), torch.randn(5, 3, 4, 6)
    known = torch.zeros(5, 1, 4, 6, dtype=torch.bool)
    known[:, :, 0] = True
    field: Any = Straight(target)
    start = Start(noise, known, 0.25)
    solved = solve(field, start, None, Solver(steps=steps, method=method))
    assert torch.allclose(solved[:, :, 1:], target[:, 1:].expand(5, -1, -1, -1), atol=1e-4)
    assert torch.equal(solved[:, :, 0], noise[:, :, 0])


def test_guidance_moves_away_from_no_caption(model: ImageFlow) -> None:
    context = model.encode_captions(["a red star"])
    start = model.start(sample_keys(0, [0], "flow"), (4, 6))
    results = [
        model.solved(start, context, Solver(steps=1, cond_scale=scale)) for scale in (0, 1, 3)
    ]
    nothing = model.solved(start, model.encode_text(1), Solver(steps=1, cond_scale=1))
    assert torch.allclose(results[0], nothing, atol=1e-5)
    assert torch.allclose(results[2], nothing + 3 * (results[1] - nothing), atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 0}, "steps must be 1 or more, not 0"),
        ({"method": "heun"}, "method must be euler or midpoint, not 'heun'"),
        ({"cond_scale": math.nan}, "cond_scale must be finite"),
    ],
)
def test_solvers_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Solver(**settings)


def test_a_kept_sampler_follows_the_weights_and_the_captions(model: ImageFlow) -> None:
    """As on CUDA, where it holds the graph of a step."""
    cache, keys = CastWeights(), sample_keys(0, range(3), "flow")

    def solved(text: str, cache: CastWeights | None, steps: int = 2) -> torch.Tensor:
        context = model.encode_captions([text] * 3)
        network = model if cache is None else cache.of(model, torch.float32)
        start = model.start(keys, (4, 6))
        return solve(network, start, context, Solver(steps=steps), cache)

    first = solved("a star", cache)
    sampler = cache.latest
    for text in ("a star", "a ring"):
        assert torch.equal(solved(text, cache), solved(text, None))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    changed = solved("a star", cache)
    assert cache.latest is sampler
    assert torch.equal(changed, solved("a star", None))
    assert not torch.equal(changed, first)
    assert torch.equal(solved("a star", cache, 3), solved("a star", None, 3))
    assert cache.latest is not sampler


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["euler", "midpoint"])
def test_captured_steps_make_the_latents_of_eager_ones(
    model: ImageFlow, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quintet.shared.flow import solving

    model, solver = model.cuda(), Solver(steps=4, method=method)
    context = model.encode_captions([f"number {index}" for index in range(5)])

    def solved(first: int = 0) -> torch.Tensor:
        start = model.start(sample_keys(0, range(first, 5), "flow"), (4, 6))
        part = Context(context.values[first:], context.mask[first:])
        return model.solved(start, part, solver)

    captured = solved()
    assert torch.equal(captured[3:], solved(3))
    assert torch.equal(captured, solved())  # by the graph of that call
    CASTS.clear()
    monkeypatch.setattr(solving, "CapturedStep", lambda step: step)
    assert torch.equal(captured, solved())
