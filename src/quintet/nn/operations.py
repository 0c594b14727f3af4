"""Custom operations without torch's compiler."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.library import CustomOpDef


def without_compiler(operation: CustomOpDef) -> CustomOpDef:
    """The operation, whose first call no longer imports torch's compiler: that takes seconds, is
    meant to keep it from tracing kernels, and it traces nothing before it is imported."""
    for kernel in operation._backend_fns.values():
        function: Any = getattr(kernel, "__wrapped__", kernel)
        function.__dynamo_disable = _untraced(function)  # where torch looks for it
    return operation


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """The `setup_context` of an operation whose gradient needs all its inputs."""
    ctx.save_for_backward(*inputs)


def _untraced(function: Any) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **options)
        function.__dynamo_disable = torch.compiler.disable(function)
        return function.__dynamo_disable(*args, **options)

    return call
