"""What a trainer is called with: a mistake there is a sentence with the remedy."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from torch import nn

OLDER = ("model", "cfm_wrapper")
"""Names that older packages have for the first argument."""


def check_call(trainer: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Refuse values by position that belong to keywords, and what is no model.

    The name and the class of the model are those of the constructor's first parameter; of a
    constructor that several trainers share, the class is the one that they name as their base's.
    """
    parameters = list(inspect.signature(trainer.__init__).parameters.values())[1:]
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = [p.name for p in positional]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or not names:
        return  # a subclass with a constructor of its own
    if len(args) > len(names):
        raise TypeError(
            f"{trainer.__name__} takes {' and '.join(names)} by position, but got {len(args)}"
            " values: give the others by keyword, such as steps=…, batch_size=…, accumulate=…"
        )
    by_name = (keywords[name] for name in (names[0], *OLDER) if name in keywords)
    model = args[0] if args else next(by_name, None)
    kind = positional[0].annotation
    if isinstance(kind, TypeVar):
        kind = get_args(trainer.__orig_bases__[0])[0]
    is_class = isinstance(kind, type) and issubclass(kind, nn.Module)
    if model is not None and is_class and not isinstance(model, kind):
        raise TypeError(_no_model(trainer, model, kind))


def _no_model(trainer: Any, model: Any, kind: type) -> str:
    name, what = trainer.__name__, "module" if kind is nn.Module else kind.__name__
    if isinstance(model, type):
        return f"{name} got the class {model.__name__}; give an object of it: {model.__name__}(…)"
    if isinstance(model, (str, Path)):
        data = f"data={str(model)!r}" if trainer.name else "dataset"
        return f"{name} got {str(model)!r} as its model; write {name}(model, {data}), a {what}"
    return f"{name} got a {type(model).__name__} as its model; give a {what}"
