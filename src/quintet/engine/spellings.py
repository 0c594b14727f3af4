"""Spellings of the packages that people come from: what each is now, or what to do instead."""

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec

P = ParamSpec("P")

OLD = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "num_warmup_steps": "warmup_steps",
    "warmup": "warmup_steps",
    "save_model_every": "checkpoint_every",
    "checkpoint_every_step": "checkpoint_every",
    "validate_every_step": "val_every",
    "validate_every": "val_every",
    "save_results_every": "val_every",
    "checkpoint_folder": "results_folder",
    "num_steps": "num_train_steps",
    "gradient_accumulation_steps": "grad_accum_every",
    "valid_dataset": "val_dataset",
    "ema_beta": "ema_decay",
    "apply_grad_penalty_every": "penalty_every",
    "apply_gradient_penalty_every": "penalty_every",
    "random_split_seed": "seed",
}
"""Renamed; the value means what it did."""


class Changed(NamedTuple):
    """A keyword whose value is written in another way, too."""

    new: str
    value: Callable[[Any, Mapping[str, Any]], Any]
    """Of the old value, beside all keywords that were given."""


def share_of_run(step: Any, given: Mapping[str, Any]) -> float:
    length = given.get("num_train_steps") or given.get("num_steps")
    if not length:
        raise TypeError(
            "discr_start_after_step goes with num_train_steps; with num_epochs give"
            " adversarial_from, the share of the run before the critics start"
        )
    return min(1.0, step / length)


CHANGED = {
    "use_ema": Changed("ema_decay", lambda on, given: given.get("ema_beta", 0.999) if on else 0.0),
    "use_lion": Changed("optimizer", lambda on, _: "lion" if on else "adamw"),
    "use_wandb_tracking": Changed("trackers", lambda on, _: ("wandb",) if on else ("tensorboard",)),
    "discr_start_after_step": Changed("adversarial_from", share_of_run),
}


def anything(_: Any) -> bool:
    return True


def nothing(value: Any) -> bool:
    return not value


class Gone(NamedTuple):
    """A keyword that has no counterpart."""

    instead: str
    harmless: Callable[[Any], bool] = anything
    """Of which values it may be left out without a loss; others are refused."""


_LAUNCH = "give precision for mixed_precision and trackers for log_with; torchrun starts processes"

GONE = {
    "accelerate_kwargs": Gone(_LAUNCH, nothing),
    "accelerator_kwargs": Gone(_LAUNCH, nothing),
    "checkpoints_folder": Gone("checkpoints lie inside of results_folder"),
    "dataset_kwargs": Gone("give image_size and num_frames, or a dataset of your own", nothing),
    "dataset_type": Gone("a folder may hold videos and images"),
    "discr_max_grad_norm": Gone(
        "max_grad_norm clips the critic as well; on the command line it has --critic.clip", nothing
    ),
    "drop_last": Gone("epochs follow each other, and no batch is short"),
    "ema_kwargs": Gone(
        "give its beta as ema_decay; every step is averaged",
        lambda given: not given or set(given) <= {"use_foreach"},
    ),
    "ema_update_after_step": Gone("the average follows from the first step on, closely at first"),
    "ema_update_every": Gone("the average follows every step"),
    "force_clear_prev_results": Gone(
        "nothing here deletes a folder; give a new results_folder, or go on by train(resume=True)",
        nothing,
    ),
    "initial_lr": Gone("the warm-up begins at learning_rate / warmup_steps"),
    "optimizer_kwargs": Gone("give betas, weight_decay and optimizer by themselves", nothing),
    "scheduler_kwargs": Gone("scheduler is a word, and ends at num_train_steps", nothing),
    "split_batches": Gone("batch_size is that of each process; divide it by their number", nothing),
    "val_num_batches": Gone("all that is held out is measured"),
}


def notice(sentence: str) -> None:
    """Warn at the first line that is not of this package, which is the user's own."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("quintet."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, FutureWarning, stacklevel=level)


def modern(keywords: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Old spellings become new ones, with a notice each; unknown names are refused with a list."""
    found: dict[str, Any] = {}
    for name, value in keywords.items():
        if name not in known and name in GONE:
            _let_go(name, value)
            continue
        new, now = _translated(name, value, keywords, known)
        if new not in known:
            raise TypeError(f"unknown keyword {name!r}; known: {', '.join(sorted(known))}")
        if new in found and found[new] != now:
            raise TypeError(f"{new} is given twice, once by an old name")
        found[new] = now
    return found


def _let_go(name: str, value: Any) -> None:
    instead, harmless = GONE[name]
    if not harmless(value):
        raise TypeError(f"{name}={value!r} cannot be kept: {instead}")
    notice(f"{name} is not needed: {instead}")


def _translated(
    name: str, value: Any, given: Mapping[str, Any], known: set[str]
) -> tuple[str, Any]:
    if name == "scheduler":
        return name, _schedule(value)
    if name in known:
        return name, value
    if name in CHANGED and CHANGED[name].new in known:
        new, now = CHANGED[name].new, CHANGED[name].value(value, given)
        notice(f"{name}={value!r} is now {new}={now!r}")
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
        raise TypeError(
            f"scheduler is {value!r}; give one of the words constant, cosine, linear and rsqrt"
        )
    return value


def renamed(**names: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """For a constructor: takes parameters under their old names as well."""

    def wrap(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def inner(*args: P.args, **keywords: P.kwargs) -> None:
            given: dict[str, Any] = dict(keywords)
            for old, new in names.items():
                if old not in given:
                    continue
                if new in given:
                    raise TypeError(f"{new} is given twice, once by an old name")
                notice(f"{old} is now called {new}")
                given[new] = given.pop(old)
            function(*args, **given)  # type: ignore[arg-type]

        return inner

    return wrap
