"""Optimizers, parameter groups, and learning rate schedules as pure functions of the step."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.config import OptimiserConfig


def learning_rate_at(config: OptimiserConfig, step: int, length: int) -> float:
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


def param_groups(parameters: Mapping[str, nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for vectors (norms, biases, scales)."""
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    both = ({"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0})
    return [group for group in both if group["params"]]


def build_optimizer(
    config: OptimiserConfig, parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """All of these take `found_inf` and `grad_scale` as tensors, so no step syncs with the host."""
    groups = param_groups(parameters, config.weight_decay)
    if config.optimizer == "lion":
        return Lion(groups, lr=config.learning_rate, betas=config.betas)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    capturable = next(iter(parameters.values())).is_cuda
    return kind(
        groups,
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=True,
        capturable=capturable,
    )


class Lion(torch.optim.Optimizer):
    """Lion (arXiv 2302.06675), with decoupled weight decay."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, params: Iterable[Any], lr: float, betas: tuple[float, float]):
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
