import copy
import itertools
import math

import pytest
import torch
from torch import nn

from quintet.engine import optim
from quintet.engine.config import ConfigError, OptimizerConfig, Recipe
from quintet.engine.errors import RunError
from quintet.engine.machine.world import World
from quintet.engine.optim import Lion, learning_rate_at
from quintet.engine.part import LivePart
from quintet.engine.task import Part, StepContext

NAMES = list(optim.OPTIMIZERS)


def config(**settings) -> OptimizerConfig:
    return OptimizerConfig(
        **{"learning_rate": 1.0, "warmup_steps": 10, "final_lr_ratio": 0.1, **settings}
    )


# -- schedules ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "middle", "last", "beyond"),
    [
        ("constant", 1.0, 1.0, 1.0),
        ("linear", 0.55, 0.1 + 0.9 / 100, 0.1),
        ("cosine", 0.55, 0.1 + 0.45 * (1 + math.cos(math.pi * 0.99)), 0.1),
        ("rsqrt", math.sqrt(10 / 60), math.sqrt(10 / 109), 0.1),
    ],
)
def test_the_learning_rate_at_the_corners(schedule, middle, last, beyond):
    asked = config(scheduler=schedule)
    rates = [learning_rate_at(asked, step, 110) for step in (0, 4, 9, 10, 60, 109, 10**6)]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 1.0, middle, last, beyond])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "rsqrt"])
def test_without_a_warm_up_the_first_rate_is_the_asked_one(schedule):
    assert learning_rate_at(config(scheduler=schedule, warmup_steps=0), 0, 100) == 1.0


@pytest.mark.parametrize("schedule", ["linear", "cosine", "rsqrt"])
def test_after_the_warm_up_the_rate_only_falls_and_never_below_its_floor(schedule):
    rates = [learning_rate_at(config(scheduler=schedule), step, 200) for step in range(10, 400)]
    assert rates == sorted(rates, reverse=True)
    assert min(rates) >= 0.1 - 1e-12


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "rsqrt"])
def test_a_warm_up_longer_than_the_schedule_is_finished_first(schedule):
    asked = config(scheduler=schedule)
    assert [learning_rate_at(asked, step, 5) for step in (4, 9)] == pytest.approx([0.5, 1.0])
    assert 0.1 - 1e-12 <= learning_rate_at(asked, 11, 5) <= 1.0


# -- groups ---------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    hidden = [nn.Linear(*size) for size in ((4, 4), (4, 4), (4, 6), (6, 4))]
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), *hidden, nn.Linear(4, 2))


def build(asked: OptimizerConfig, net: nn.Module, **options) -> torch.optim.Optimizer:
    hidden = optim.hidden_matrices(net) if asked.optimizer == "muon" else ()
    return optim.build_optimizer(asked, optim.trainable(net), hidden, **options)


def test_every_parameter_is_in_one_group_and_vectors_do_not_decay():
    net = network()
    groups = optim.param_groups(optim.trainable(net), 0.1)
    decays = {id(p): g["weight_decay"] for g in groups for p in g["params"]}
    assert sum(len(g["params"]) for g in groups) == len(decays) == len(list(net.parameters()))
    for p in net.parameters():
        assert decays[id(p)] == (0.1 if p.ndim >= 2 else 0.0)


def test_frozen_parameters_are_left_out_and_no_group_is_empty():
    net = network()
    net[0].requires_grad_(False)
    assert "0.weight" not in optim.trainable(net)
    assert len(optim.param_groups({"b": net[1].bias}, 0.1)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_name_builds_and_learns(name):
    net = network()
    optimizer = build(config(optimizer=name, learning_rate=1e-2), net)
    x = torch.randn(32, 3)
    y = x[:, :2]
    losses = []
    for _ in range(30):
        loss = (net(x) - y).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_decay_is_decoupled_or_refused(name):
    """With a zero gradient a matrix shrinks by rate x decay, and a vector stays as it is."""
    try:
        asked = config(optimizer=name, learning_rate=0.1, weight_decay=0.5)
    except ConfigError:
        return
    net = network()
    before = copy.deepcopy(net)
    optimizer = build(asked, net)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for old, new in zip(before.parameters(), net.parameters()):
        torch.testing.assert_close(new, old * 0.95 if old.ndim >= 2 else old)


# -- rules ----------------------------------------------------------------------------------


def with_gradients(seed: int, scale: float = 1.0) -> nn.Module:
    net = network()
    give_gradients(net, seed, scale)
    return net


def give_gradients(net: nn.Module, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        p.grad = scale * torch.randn(p.shape, generator=generator).to(p.dtype)


def plain_lion(weights, moments, grads, rate, betas, decay):
    """The paper's algorithm, a tensor at a time."""
    for weight, moment, grad in zip(weights, moments, grads):
        direction = (betas[0] * moment + (1 - betas[0]) * grad).sign()
        weight -= rate * (direction + (decay if weight.ndim >= 2 else 0.0) * weight)
        moment.mul_(betas[1]).add_(grad, alpha=1 - betas[1])


def test_lion_equals_a_plain_reference():
    net = network()
    optimizer = build(config(optimizer="lion", learning_rate=0.01, weight_decay=0.1), net)
    weights = [p.detach().clone() for p in net.parameters()]
    moments = [torch.zeros_like(w) for w in weights]
    for step in range(6):
        give_gradients(net, step)
        grads = [p.grad.clone() for p in net.parameters()]
        optimizer.step()
        plain_lion(weights, moments, grads, 0.01, (0.9, 0.99), 0.1)
    for p, weight, moment in zip(net.parameters(), weights, moments):
        torch.testing.assert_close(p.detach(), weight)
        torch.testing.assert_close(optimizer.state[p]["exp_avg"], moment)


def test_lion_divides_by_the_scale_it_is_handed():
    scaled, plain = with_gradients(1, scale=4.0), with_gradients(1)
    for net, scale in ((scaled, torch.tensor(4.0)), (plain, None)):
        optimizer = Lion(net.parameters(), lr=0.01, betas=(0.9, 0.99))
        optimizer.grad_scale = scale
        optimizer.step()
        moments = [optimizer.state[p]["exp_avg"] for p in net.parameters()]
        net.moments = moments
    for one, other in zip(scaled.moments, plain.moments):
        torch.testing.assert_close(one, other)


# -- Muon -----------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Some of everything; two blocks if they are named."""

    def __init__(self, named: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(7, 4)
        self.proj_in = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "up": nn.Linear(4, 8),
                    "down": nn.Linear(8, 4),
                    "conv": nn.Conv1d(4, 4, 3),
                    "transposed": nn.ConvTranspose1d(4, 2, 3),
                    "depthwise": nn.Conv1d(4, 4, 3, groups=4),
                    "norm": nn.LayerNorm(4),
                    "table": nn.ParameterList([nn.Parameter(torch.randn(6, 4))]),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(4, 5)
        self.tied = nn.Linear(4, 7, bias=False)
        self.tied.weight = self.embed.weight
        if named:
            self.regions = lambda: list(self.blocks)


def test_muon_takes_the_matrices_of_blocks_and_leaves_tables_norms_and_ends():
    layers = ("up", "down", "conv", "transposed")
    expected = {f"blocks.{i}.{layer}.weight" for i in range(2) for layer in layers}
    assert set(optim.hidden_matrices(Mixed())) == expected


def test_without_blocks_muon_takes_what_lies_between_the_first_and_the_last_layer():
    net = Mixed(named=False)
    net.blocks[0]["up"].requires_grad_(False)
    hidden = optim.hidden_matrices(net)
    assert "head.weight" in hidden  # the last layer is the tied one, which is an embedding
    assert not {"proj_in.weight", "embed.weight", "tied.weight"} & set(hidden)
    assert "blocks.0.up.weight" not in hidden  # frozen


def plain_muon(weights, buffers, grads, rate, decay):
    """The paper's algorithm with Moonlight's scale, a matrix at a time."""
    for weight, buffer, grad in zip(weights, buffers, grads):
        buffer.mul_(0.95).add_(grad, alpha=0.05)
        x = (0.05 * grad + 0.95 * buffer).flatten(1)
        x = x / x.norm()
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x - 4.7750 * square @ x + 2.0315 * square @ square @ x
        scale = 0.2 * math.sqrt(max(x.shape))
        weight -= rate * (decay * weight + scale * x.view(weight.shape))


def test_muon_equals_a_plain_reference_and_leaves_the_rest_to_adamw():
    net, plain = Mixed().double(), Mixed().double()
    hidden = optim.hidden_matrices(net)
    asked = config(optimizer="muon", learning_rate=0.01, weight_decay=0.1)
    optimizer = build(asked, net, dtype=torch.float64)
    rest = {n: p for n, p in plain.named_parameters() if n not in hidden}
    adamw = optim.build_optimizer(config(learning_rate=0.01, weight_decay=0.1), rest)
    weights = [plain.get_parameter(name).data for name in hidden]
    buffers = [torch.zeros_like(w) for w in weights]
    for step in range(6):
        give_gradients(net, step)
        give_gradients(plain, step)
        grads = [plain.get_parameter(name).grad for name in hidden]
        optimizer.step()
        plain_muon(weights, buffers, grads, 0.01, 0.1)
        adamw.step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(p, plain.get_parameter(name), rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("taps", [1, 3])
def test_muon_gives_the_same_in_any_memory_order_and_copies_nothing(taps):
    """The state too, whose buffers may have been loaded in another order than the weights'."""
    results = []
    for weights, buffers in itertools.product(
        [torch.contiguous_format, torch.channels_last], repeat=2
    ):
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Conv2d(6, 6, taps, padding=taps // 2) for _ in range(3))).double()
        for layer in net:
            layer.weight.data = layer.weight.data.contiguous(memory_format=weights)
        optimizer = build(config(optimizer="muon", weight_decay=0.1), net, dtype=torch.float64)
        for step in range(3):
            give_gradients(net, step)
            for layer in net:  # as autograd leaves them
                layer.weight.grad = layer.weight.grad.contiguous(memory_format=weights)
            optimizer.step()
            state = optimizer.state[net[1].weight]
            state["momentum_buffer"] = state["momentum_buffer"].contiguous(memory_format=buffers)
        results.append((net.state_dict(), state["momentum_buffer"]))
        weight = net[1].weight
        matrix = optim.as_matrix(weight, weight)
        assert matrix.data_ptr() == weight.data_ptr()
        assert optim.as_weight(matrix, weight).stride() == weight.stride()
        assert torch.equal(optim.as_weight(matrix, weight), weight)
    for weights, buffer in results[1:]:
        torch.testing.assert_close(weights, results[0][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(buffer, results[0][1], rtol=1e-12, atol=1e-12)


def test_a_transposed_weight_is_no_matrix_in_memory():
    weight = torch.zeros(8, 6, 3, 3)
    assert optim.is_matrix_in_memory(weight)
    assert optim.is_matrix_in_memory(weight.contiguous(memory_format=torch.channels_last))
    assert not optim.is_matrix_in_memory(weight.transpose(0, 1))
    assert not optim.is_matrix_in_memory(weight[:, :3])


@pytest.mark.parametrize("steps", [1, 10])
def test_muon_equals_that_of_torch_to_the_rounding_of_bf16(steps):
    ours, plain = network(), network()
    asked = config(optimizer="muon", learning_rate=0.01, weight_decay=0.1)
    optimizer = build(asked, ours, dtype=torch.bfloat16)
    hidden = optim.hidden_matrices(ours)
    matrices = [plain.get_parameter(name) for name in hidden]
    keywords = {"lr": 0.01, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    reference = torch.optim.Muon(matrices, **keywords)
    start = [matrix.detach().clone() for matrix in matrices]
    for step in range(steps):
        give_gradients(ours, step)
        give_gradients(plain, step)
        optimizer.step()
        reference.step()
    for name, matrix, before in zip(hidden, matrices, start):
        moved = (matrix - before).norm()
        assert (ours.get_parameter(name) - matrix).norm() < 0.02 * moved
        assert moved > 0.001 * before.norm()


def test_a_rate_that_is_a_tensor_gives_what_the_number_gives():
    results = []
    for rate in (0.01, torch.tensor(0.01)):
        net = with_gradients(1)
        optimizer = build(config(optimizer="muon", weight_decay=0.1), net)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        results.append(net.state_dict())
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [None, 3.0, math.nan, math.inf], ids=str)
def test_a_step_that_is_not_finite_stands_still(name, scale):
    """NaN in the gradient makes the norm, and so the scale, NaN as well."""
    net = with_gradients(1)
    decay = 0.0 if name == "adam" else 0.1
    optimizer = build(config(optimizer=name, learning_rate=0.01, weight_decay=decay), net)
    optimizer.step()
    weights = copy.deepcopy(net.state_dict())
    state = copy.deepcopy(optimizer.state_dict()["state"])
    give_gradients(net, 2)
    net[0].weight.grad[0, 0] = net[3].weight.grad[0, 0] = math.nan
    net[2].bias.grad[0] = net[4].weight.grad[0, 0] = math.inf
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.grad_scale = None if scale is None else torch.tensor(scale)
    optimizer.step()
    assert_same(net.state_dict(), weights)
    for index, kept in optimizer.state_dict()["state"].items():
        assert_same(kept, state[index])


def assert_same(found, expected):
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("name", ["adamw", "adam"])
@pytest.mark.parametrize("size", [0.01, 30.0], ids=["small", "large"])
def test_the_scale_handed_to_the_fused_kernel_equals_clipping(name, size):
    ours, plain = network(), network()
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    groups = optim.param_groups(optim.trainable(plain), 0.0)
    reference = kind(groups, lr=0.01, betas=(0.9, 0.99), foreach=False, fused=False)
    optimizer = build(config(optimizer=name, learning_rate=0.01), ours)
    for step in range(4):
        give_gradients(ours, step, size)
        give_gradients(plain, step, size)
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        reference.step()
        norm = nn.utils.get_total_norm([p.grad for p in ours.parameters()])
        optimizer.found_inf = torch.tensor(0.0)
        optimizer.grad_scale = (norm / 1.0).clamp(min=1.0)
        optimizer.step()
    for one, other in zip(ours.parameters(), plain.parameters()):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


# -- a live part ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world() -> World:
    return World(Recipe(device="cpu", precision="fp32"))


def live(world: World, name: str) -> LivePart:
    asked = config(optimizer=name, learning_rate=0.01, warmup_steps=0, scheduler="constant")
    return LivePart("net", Part(network(), asked), world, start=0, length=10)


def take(part: LivePart, step: int, spoil: bool = False) -> StepContext:
    at = StepContext(step, 0, 4, part.world, torch.zeros(()))
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
    loss = part.module(x).square().sum()
    part.backward(loss * math.nan if spoil else loss)
    part.step(at)
    return at


@pytest.mark.parametrize("name", NAMES)
def test_a_skipped_step_leaves_weights_moments_and_average_alone(world, name):
    part = live(world, name)
    take(part, 0)
    before = copy.deepcopy(part.state())
    assert take(part, 1, spoil=True).skipped == 1
    after = part.state()
    for file in before:
        assert_same(after[file], before[file])
    assert take(part, 2).skipped == 0
    assert not torch.equal(part.state()["net"]["0.weight"], before["net"]["0.weight"])


def test_muon_is_refused_where_there_is_nothing_for_it(world):
    asked = config(optimizer="muon")
    ends = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with pytest.raises(RunError, match=r"'net' has no hidden matrices.*use adamw"):
        LivePart("net", Part(ends, asked), world, start=0, length=10)


def test_the_state_of_muon_is_one_buffer_for_a_hidden_matrix_and_two_moments_for_the_rest(world):
    part = live(world, "muon")
    take(part, 0)
    state = part.state()["net.optim"]
    for name, p in part.module.named_parameters():
        kinds = {key.partition("/")[0] for key in state if key.partition("/")[2] == name}
        hidden = name in {f"{i}.weight" for i in range(2, 6)}
        assert kinds == ({"momentum_buffer"} if hidden else {"step", "exp_avg", "exp_avg_sq"})
        for kind in kinds - {"step"}:
            assert state[f"{kind}/{name}"].shape == p.shape


def test_the_applied_rate_is_the_schedule_of_the_parts_own_steps(world):
    asked = config(learning_rate=0.5, warmup_steps=4, scheduler="linear", final_lr_ratio=0.0)
    part = LivePart("net", Part(network(), asked), world, start=100, length=20)
    for step in (100, 101, 104, 112):
        take(part, step)
        assert {g["lr"] for g in part.optimizer.param_groups} == {
            learning_rate_at(asked, step - 100, 20)
        }


@pytest.mark.parametrize("name", NAMES)
def test_a_part_saved_and_loaded_goes_on_bit_for_bit(world, name):
    whole, first = live(world, name), live(world, name)
    for step in range(3):
        take(whole, step)
        take(first, step)
    second = live(world, name)
    with torch.no_grad():
        for p in second.module.parameters():
            p.add_(1)
    second.load(copy.deepcopy(first.state()))
    for step in range(3, 6):
        take(whole, step)
        take(second, step)
    for file, tensors in whole.state().items():
        assert_same(second.state()[file], tensors)
