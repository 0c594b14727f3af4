"""Functions of a model as modules, which exporters take."""

from collections.abc import Callable
from typing import Any

from torch import nn


def graph(model: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """A module with the signature of `forward(self, ...)`, which finds the model as self.model."""
    module = type("Graph", (nn.Module,), {"forward": forward})()
    module.model = model
    return module
