"""Keywords of the older packages: the setting that replaces each, or what to do instead."""

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec

P = ParamSpec("P")

OLD = {
    "num_train_steps": "steps",
    "grad_accum_every": "accumulate",
    "val_every": "evaluate_every",
    "checkpoint_every": "save_every",
    "num_workers": "workers",
    "results_folder": "run",
    "valid_frac": "valid_fraction",
    "folder": "data",
    "dataset_folder": "data",
    "image_size": "size",
    "num_frames": "frames",
    "data_max_length_seconds": "seconds",
    "temporal_discriminator": "motion_discriminator",
    "lr": "learning_rate",
    "wd": "weight_decay",
    "num_warmup_steps": "warmup_steps",
    "warmup": "warmup_steps",
    "save_model_every": "save_every",
    "checkpoint_every_step": "save_every",
    "validate_every_step": "evaluate_every",
    "validate_every": "evaluate_every",
    "save_results_every": "evaluate_every",
    "checkpoint_folder": "run",
    "num_steps": "steps",
    "gradient_accumulation_steps": "accumulate",
    "valid_dataset": "val_dataset",
    "ema_beta": "ema_decay",
    "apply_grad_penalty_every": "penalty_every",
    "apply_gradient_penalty_every": "penalty_every",
    "random_split_seed": "seed",
}
"""Keywords that were renamed; the meaning of their values is unchanged."""


class Changed(NamedTuple):
    """A keyword whose name and form of value both changed."""

    new: str
    value: Callable[[Any, Mapping[str, Any]], Any]
    """Returns the new value from the old one and all keywords of the call."""


def share_of_run(step: Any, keywords: Mapping[str, Any]) -> float:
    length = next(
        (keywords[n] for n in ("steps", "num_train_steps", "num_steps") if keywords.get(n)), None
    )
    if not length:
        raise TypeError(
            "discr_start_after_step goes with steps; with num_epochs give"
            " adversarial_from, the share of the run before the discriminators start"
        )
    return min(1.0, step / length)


UNCHANGED: Any = object()
"""Marks a value that means the default."""
CHANGED = {
    "use_ema": Changed(
        "ema_decay", lambda on, keywords: keywords.get("ema_beta", 0.999) if on else 0.0
    ),
    "dataset_type": Changed("frames", lambda kind, keywords: 1 if kind == "images" else UNCHANGED),
    "use_lion": Changed("optimizer", lambda on, _: "lion" if on else "adamw"),
    "use_wandb_tracking": Changed("trackers", lambda on, _: ("wandb",) if on else UNCHANGED),
    "discr_start_after_step": Changed("adversarial_from", share_of_run),
}


MOOT = {"ema_beta": ("use_ema", False), "num_frames": ("dataset_type", "images")}
"""Keywords that have no effect beside another keyword with this value."""


def anything(_: Any) -> bool:
    return True


def nothing(value: Any) -> bool:
    return not value


class Removed(NamedTuple):
    """A keyword that has no counterpart."""

    instead: str
    harmless: Callable[[Any], bool] = anything
    """Whether a value can be ignored without changing the result; others are refused."""
    part_of: str = ""
    """A keyword that, if False, makes every value harmless."""


_LAUNCH = "give precision for mixed_precision and trackers for log_with; torchrun starts processes"

REMOVED = {
    "accelerate_kwargs": Removed(_LAUNCH, nothing),
    "accelerator_kwargs": Removed(_LAUNCH, nothing),
    "checkpoints_folder": Removed("checkpoints are inside the run folder"),
    "dataset_kwargs": Removed("give size and frames, or a dataset of your own", nothing),
    "discr_max_grad_norm": Removed(
        "max_grad_norm clips the discriminator as well, or discriminator_optim.max_grad_norm",
        nothing,
    ),
    "drop_last": Removed("batches run across epochs, so none is short"),
    "ema_kwargs": Removed(
        "give its beta as ema_decay; the EMA is updated every step",
        lambda value: not value or set(value) <= {"use_foreach"},
    ),
    "ema_update_after_step": Removed(
        "the EMA starts at the first step, with a lower decay at first"
    ),
    "ema_update_every": Removed("the EMA is updated every step"),
    "force_clear_prev_results": Removed(
        "Quintet deletes no folder; give another run, or resume with train(resume=True)",
        nothing,
    ),
    "initial_lr": Removed("the warm-up begins at learning_rate / warmup_steps"),
    "optimizer_kwargs": Removed("give betas, weight_decay and optimizer as keywords", nothing),
    "scheduler_kwargs": Removed("scheduler is a name, and the schedule ends at steps", nothing),
    "split_batches": Removed(
        "batch_size is per process; divide it by the number of processes", nothing
    ),
    "val_num_batches": Removed("all validation samples are used"),
}


def notice(sentence: str) -> None:
    """Warn at the first frame outside this package, which is the user's code."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("quintet."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, FutureWarning, stacklevel=level)


def translate(keywords: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Replace older names, with a notice each; refuse unknown names, with a list."""
    translated: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in keywords.items():
        if name not in known and name in REMOVED:
            _let_go(name, value)
            continue
        if name in MOOT and keywords.get(MOOT[name][0]) == MOOT[name][1]:
            notice(f"{name} is not needed: {MOOT[name][0]} is {MOOT[name][1]!r}")
            continue
        new, now = _translated(name, value, keywords, known)
        if now is UNCHANGED:
            continue
        if new == "warmup_steps" and now is None:
            now = 0
        if new not in known:
            raise TypeError(f"unknown keyword {name!r}; known: {', '.join(sorted(known))}")
        if new in translated and translated[new] != now:
            raise TypeError(twice(new, name, names[new]))
        translated[new], names[new] = now, name
    return translated


def twice(new: str, *names: str) -> str:
    """The message about two values for one setting."""
    return f"{new} is given twice, as {' and as '.join(sorted(names))}: give one of them"


def _let_go(name: str, value: Any) -> None:
    removed = REMOVED[name]
    if not removed.harmless(value):
        raise TypeError(f"{name}={value!r} is not supported: {removed.instead}")
    notice(f"{name} is not needed: {removed.instead}")


def _translated(
    name: str, value: Any, keywords: Mapping[str, Any], known: set[str]
) -> tuple[str, Any]:
    if name == "scheduler":
        return name, _schedule(value)
    if name in known:
        return name, value
    if name in CHANGED and CHANGED[name].new in known:
        new, now = CHANGED[name].new, CHANGED[name].value(value, keywords)
        default = f"{name}={value!r} is the default and not needed"
        notice(default if now is UNCHANGED else f"{name}={value!r} is now {new}={now!r}")
        return new, now
    new = OLD.get(name, name)
    if new != name and new in known:
        notice(f"{name} is now called {new}")
    return new, value


def _schedule(value: Any) -> str:
    if value is None:
        notice("scheduler=None is now scheduler='constant'")
        return "constant"
    if not isinstance(value, str):
        raise TypeError(f"scheduler is {value!r}; give one of constant, cosine, linear and rsqrt")
    return value


def renamed(**names: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorator for constructors that also accept parameters under their old names."""

    def wrap(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def inner(*args: P.args, **keywords: P.kwargs) -> None:
            translated: dict[str, Any] = dict(keywords)
            for old, new in names.items():
                if old not in translated:
                    continue
                if new in translated:
                    raise TypeError(twice(new, old, new))
                notice(f"{old} is now called {new}")
                translated[new] = translated.pop(old)
            function(*args, **translated)  # type: ignore[arg-type]

        return inner

    return wrap
