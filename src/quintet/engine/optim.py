"""Optimisers, parameter groups, and schedules as pure functions of the step."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.config import OptimiserConfig


def rate_at(config: OptimiserConfig, step: int, length: int) -> float:
    """The rate for a part's own step (0 at its first) of a schedule that is `length` steps long.

    The warm-up is linear and reaches the asked-for rate in its last step.
    """
    if step < config.warmup:
        return config.rate * (step + 1) / config.warmup
    past, span = step - config.warmup, max(1, length - config.warmup)
    progress = min(1.0, past / span)
    floor = config.final
    match config.schedule:
        case "constant":
            factor = 1.0
        case "linear":
            factor = 1 - (1 - floor) * progress
        case "cosine":
            factor = floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
        case "rsqrt":
            base = max(1, config.warmup)
            factor = max(floor, math.sqrt(base / (base + past)))
    return config.rate * factor


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def groups(parameters: Mapping[str, nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices decay, vectors (norms, biases, scales) do not."""
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    both = ({"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0})
    return [group for group in both if group["params"]]


def build(config: OptimiserConfig, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """All of these take `found_inf` and `grad_scale` as tensors: no step waits for the device."""
    split = groups(parameters, config.decay)
    if config.name == "lion":
        return Lion(split, lr=config.rate, betas=config.betas)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return kind(split, lr=config.rate, betas=config.betas, eps=config.eps, fused=True)


class Lion(torch.optim.Optimizer):
    """Symbolic Discovery of Optimization Algorithms, arXiv 2302.06675. Decay is decoupled."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, params: Iterable[Any], lr: float, betas: tuple[float, float]):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            live = [p for p in group["params"] if p.grad is not None]
            if live:
                self._step_group(live, group)

    def _step_group(self, live: list[Tensor], group: dict[str, Any]) -> None:
        for p in live:
            if not self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)
        moments = [self.state[p]["exp_avg"] for p in live]
        grads = [p.grad for p in live if p.grad is not None]
        first, second = group["betas"]
        sound = torch.ones((), device=live[0].device)
        if self.grad_scale is not None:
            torch._foreach_div_(grads, self.grad_scale)
        if self.found_inf is not None:
            sound = 1 - self.found_inf
            # 0 × NaN is NaN, so a bad gradient is emptied before it is weighed; after the
            # division, because a bad gradient's norm makes the scale NaN as well.
            for grad in grads:
                grad.nan_to_num_(0.0, 0.0, 0.0)
        direction = torch._foreach_lerp(moments, grads, 1 - first)
        torch._foreach_sign_(direction)
        torch._foreach_mul_(direction, sound * -group["lr"])
        torch._foreach_mul_(live, 1 - sound * group["lr"] * group["weight_decay"])
        torch._foreach_add_(live, direction)
        change = torch._foreach_sub(grads, moments)
        torch._foreach_mul_(change, sound * (1 - second))
        torch._foreach_add_(moments, change)
