"""Optimizers, parameter groups, and learning rate schedules as pure functions of the step."""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from quintet.engine.config import OptimizerConfig
from quintet.engine.machine.regions import regions_of
from quintet.triton import HAS_TRITON


def learning_rate_at(config: OptimizerConfig, step: int, length: int) -> float:
    """Learning rate at a part's own step (from 0) of a schedule of `length` steps.

    The linear warm-up reaches the configured learning rate in its last step.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    past, span = step - config.warmup_steps, max(1, length - config.warmup_steps)
    progress = min(1.0, past / span)
    floor = config.final_lr_ratio
    match config.scheduler:
        case "constant":
            factor = 1.0
        case "linear":
            factor = 1 - (1 - floor) * progress
        case "cosine":
            factor = floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
        case "rsqrt":
            base = max(1, config.warmup_steps)
            factor = max(floor, math.sqrt(base / (base + past)))
    return config.learning_rate * factor


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def hidden_matrices(network: nn.Module) -> list[str]:
    """Names of the weights that Muon takes: of linear layers and of ungrouped convolutions, inside
    of the blocks that the network names in `regions`, or between its first and its last layer."""
    layers = {
        f"{name}.weight": module
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) or (isinstance(module, _ConvNd) and module.groups == 1)
    }
    inside = {module for block in regions_of(network) for module in block.modules()}
    hidden = [n for n, module in layers.items() if module in inside] or list(layers)[1:-1]
    learnt = trainable(network)
    return [name for name in hidden if name in learnt]


def param_groups(
    parameters: Mapping[str, nn.Parameter], decay: float, hidden: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for vectors (norms, biases, scales)."""
    rest = [p for name, p in parameters.items() if name not in hidden]
    groups = (
        {"params": [parameters[n] for n in hidden], "weight_decay": decay, "hidden": True},
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": decay, "hidden": False},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0, "hidden": False},
    )
    return [group for group in groups if group["params"]]


class Uncompiled(torch.optim.Optimizer):
    """PyTorch's optimizers without the decorators of the methods that are called here. These import
    its compiler (seconds of each start) to keep it from tracing them, and nothing traces them."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


class Adam(Uncompiled, torch.optim.Adam):
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(Uncompiled, torch.optim.AdamW):
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def build_optimizer(
    config: OptimizerConfig,
    parameters: Mapping[str, nn.Parameter],
    hidden: Collection[str] = (),
    dtype: torch.dtype = torch.float32,
) -> torch.optim.Optimizer:
    """All of these take `found_inf` and `grad_scale` as tensors, so no step syncs with the host.

    Muon takes the `hidden` matrices, and multiplies them in `dtype`.
    """
    groups = param_groups(parameters, config.weight_decay, hidden)
    optimizer = OPTIMIZERS[config.optimizer](
        groups,
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=True,
        capturable=next(iter(parameters.values())).is_cuda,
    )
    if isinstance(optimizer, Muon):
        optimizer.dtype = dtype
    return optimizer


class Lion(Uncompiled):
    """Lion (arXiv 2302.06675), with decoupled weight decay."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, params: Iterable[Any], lr: float, betas: tuple[float, float], **_: Any):
        """`eps`, `fused` and `capturable` of the others do not apply."""
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._step_group(params, group)

    def _step_group(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)
        exp_avgs = [self.state[p]["exp_avg"] for p in params]
        grads = [p.grad for p in params if p.grad is not None]
        beta1, beta2 = group["betas"]
        taken = torch.ones((), device=params[0].device)
        if self.grad_scale is not None:
            torch._foreach_div_(grads, self.grad_scale)
        if self.found_inf is not None:
            taken = 1 - self.found_inf
            # 0 × NaN is NaN, so a non-finite gradient is zeroed before it is multiplied; after
            # the division, because its norm makes the scale NaN as well.
            for grad in grads:
                grad.nan_to_num_(0.0, 0.0, 0.0)
        direction = torch._foreach_lerp(exp_avgs, grads, 1 - beta1)
        torch._foreach_sign_(direction)
        torch._foreach_mul_(direction, taken * -group["lr"])
        torch._foreach_mul_(params, 1 - taken * group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, direction)
        change = torch._foreach_sub(grads, exp_avgs)
        torch._foreach_mul_(change, taken * (1 - beta2))
        torch._foreach_add_(exp_avgs, change)


MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic: chosen for its slope at 0, singular values end near 1."""
RMS = 0.2
"""Root mean square of AdamW's updates, as Moonlight measured it."""


class Muon(AdamW):
    """Muon (Jordan et al. 2024) for the groups marked `hidden`, fused AdamW for the others.

    The algorithm of torch.optim.Muon with adjust_lr_fn="match_rms_adamw" (Moonlight, arXiv
    2502.16982), so that one learning rate and one weight decay serve all groups. torch's own takes
    a matrix at a time, 15 products each, reads a rate that is a tensor on the host and has no
    `found_inf`; here matrices of one shape are stacked. A convolution's kernel is the matrix
    (outputs, inputs x taps), its columns in the order of memory: any order gives the same, and in
    channels-last memory any other costs copies and a kernel for each weight.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    dtype = torch.float32

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["hidden"]:
                stacks: dict[tuple[int, int], list[Tensor]] = {}
                for p in group["params"]:
                    if p.grad is not None:
                        stacks.setdefault((len(p), p.numel() // len(p)), []).append(p)
                for params in stacks.values():
                    self._step_stack(params, group)
        super().step()

    def _step_stack(self, params: list[Tensor], group: dict[str, Any]) -> None:
        buffers = [self._momentum(p) for p in params]
        grads = [as_matrix(p.grad, p) for p in params if p.grad is not None]
        size = RMS * max(grads[0].shape) ** 0.5
        if is_fused(params):
            self._fused(params, grads, buffers, group, size)
        else:
            self._plain(params, torch.stack(grads), buffers, group, size)
        for p in params:
            p.grad = None  # AdamW leaves alone what has none

    def _momentum(self, p: Tensor) -> Tensor:
        """In the memory order of the weight; one that was loaded may have another."""
        state = self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        elif state["momentum_buffer"].stride() != p.stride():
            state["momentum_buffer"] = torch.empty_like(p).copy_(state["momentum_buffer"])
        return state["momentum_buffer"]

    def _fused(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[Tensor],
        group: dict[str, Any],
        size: float,
    ) -> None:
        from quintet.engine.machine import muon

        direction = grads[0].new_empty(len(grads), *grads[0].shape, dtype=self.dtype)
        scale = direction.new_ones((), dtype=torch.float32)
        scale = scale if self.grad_scale is None else self.grad_scale
        found_inf = torch.zeros_like(scale) if self.found_inf is None else self.found_inf
        rate = torch.as_tensor(group["lr"], device=direction.device, dtype=torch.float32)
        grads = [grad.contiguous() for grad in grads]
        muon.directions(grads, buffers, direction, scale, found_inf, MOMENTUM)
        direction = orthogonalised(direction).contiguous()
        muon.move(params, direction, rate, found_inf, group["weight_decay"], size)

    def _plain(
        self,
        params: list[Tensor],
        grad: Tensor,
        buffers: list[Tensor],
        group: dict[str, Any],
        size: float,
    ) -> None:
        taken = grad.new_ones(())
        if self.grad_scale is not None:
            grad = grad / self.grad_scale
        if self.found_inf is not None:
            taken = taken - self.found_inf
            grad = torch.where(self.found_inf > 0, 0.0, grad)  # 0 x NaN would be NaN
        momentum = torch.stack([as_matrix(buffer, p) for buffer, p in zip(buffers, params)])
        momentum.lerp_(grad, taken * (1 - MOMENTUM))
        direction = orthogonalised(grad.lerp(momentum, MOMENTUM).to(self.dtype)).to(grad.dtype)
        change = direction * (taken * -group["lr"] * size)
        torch._foreach_mul_(params, 1 - taken * group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, [as_weight(c, p) for c, p in zip(change, params)])
        torch._foreach_copy_(buffers, [as_weight(m, p) for m, p in zip(momentum, params)])


def is_fused(params: list[Tensor]) -> bool:
    return HAS_TRITON and all(
        p.is_cuda and p.dtype == torch.float32 and is_matrix_in_memory(p) for p in params
    )


def is_matrix_in_memory(weight: Tensor) -> bool:
    """Whether `as_matrix` of it walks its memory from front to back."""
    return weight.permute(memory_order(weight)).is_contiguous()


def memory_order(weight: Tensor) -> list[int]:
    """The first dimension, then the others as they lie in memory."""
    return [0, *sorted(range(1, weight.ndim), key=lambda dim: -weight.stride(dim))]


def as_matrix(tensor: Tensor, weight: Tensor) -> Tensor:
    """(rows, columns), columns as they lie in the memory of this weight: a view, if the tensor lies
    as the weight does."""
    return tensor.permute(memory_order(weight)).flatten(1)


def as_weight(matrix: Tensor, weight: Tensor) -> Tensor:
    """The inverse of `as_matrix`, in the shape and memory order of the weight: always a view."""
    order = memory_order(weight)
    sizes = [weight.shape[dim] for dim in order]
    return matrix.view(sizes).permute([order.index(dim) for dim in range(weight.ndim)])


def orthogonalised(stack: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly, by five steps of a Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    tall = stack.shape[1] > stack.shape[2]
    x = stack.mT if tall else stack
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": AdamW,
    "adam": Adam,
    "lion": Lion,
    "muon": Muon,
}
"""By the names of `OptimizerConfig.optimizer`; all take lr, betas, eps, fused and capturable."""
