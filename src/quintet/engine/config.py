"""Settings that explain and defend themselves, and their way to JSON and back.

Imports no torch, so that help is instant. A hand-written codec, because it must refuse unknown
names and wrong types with the dotted name of the field, and must never import what a file names.
"""

import dataclasses
import math
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from quintet.engine.when import When

C = TypeVar("C")


class ConfigError(ValueError):
    """A setting that cannot be: the message names the field and the remedy."""


def path() -> Any:
    """A setting that is a path, or None: the command line writes it down whole, so that a run can
    go on from another working folder."""
    return dataclasses.field(default=None, metadata={"path": True})


def resolved(place: str | Path | None) -> str | None:
    """So that the run can go on from another working folder; addresses stay as they are."""
    if place is None or "://" in str(place):
        return None if place is None else str(place)
    return str(Path(place).resolve())


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """How one part learns."""

    name: Literal["adamw", "adam", "lion"] = "adamw"
    """The rule that turns gradients into steps."""
    rate: float = 3e-4
    """Learning rate after the warm-up; the same whatever the number of processes."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Memory of the first and second moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    decay: float = 0.0
    """Decoupled weight decay, on matrices only: vectors and norms are spared."""
    clip: float = 1.0
    """Gradients of this part are scaled down to this global norm; 0 leaves them alone."""
    warmup: int = 100
    """Steps of linear warm-up, counted from this part's own first step."""
    schedule: Literal["constant", "cosine", "linear", "rsqrt"] = "cosine"
    """The rate after the warm-up."""
    final: float = 0.0
    """Share of the rate that is left at the end of the schedule."""
    average: float = 0.999
    """Decay of the moving average of the weights (it grows into this value); 0 keeps none."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_finite(self)
        require(self.rate > 0, "rate", self.rate, "above 0, for example 3e-4")
        require(self.warmup >= 0, "warmup", self.warmup, "0 steps or more")
        require(0 <= self.average < 1, "average", self.average, "at least 0 and below 1")
        require(0 <= self.final <= 1, "final", self.final, "a share between 0 and 1")
        require(self.clip >= 0, "clip", self.clip, "0 (no clipping) or more")
        require(self.eps >= 0, "eps", self.eps, "0 or more")
        require(self.decay >= 0, "decay", self.decay, "0 (no decay) or more")
        decoupled = self.name != "adam" or self.decay == 0
        require(decoupled, "decay", self.decay, "0 with adam; name 'adamw' decays decoupled")
        require(all(0 <= b < 1 for b in self.betas), "betas", self.betas, "in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What every run has in common. A room's recipe adds its model, its data and its losses."""

    stages: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    """Settings that name a frozen model the run is built on, and the recipe that trains one."""
    data: str | None = None
    """Folder of data; without it the room's built-in data is used."""
    steps: int = 1000
    """Length of the run in steps (one step takes one global batch)."""
    batch_size: int = 16
    """Samples per process and micro-batch; global batch = batch_size x accumulate x processes."""
    accumulate: int = 1
    """Micro-batches per step; k of them give the gradient of the whole batch."""
    fit: bool = False
    """Find the largest micro-batch that fits into memory; the global batch stays as asked for."""
    shard: bool = False
    """Divide weights, averages and moments among the processes (FSDP2) instead of copying them."""
    checkpoint_activations: bool = False
    """Keep only the inputs of each block and compute it again in the backward: less memory."""
    seed: int = 0
    """Everything random follows from this number."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes the GPU where there is one."""
    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"
    """Arithmetic of the networks; auto is bf16 where the device is fast at it. fp64: for tests."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the networks; auto does so on a GPU only (a CPU takes a minute to gain a tenth)."""
    workers: int = 2
    """Processes that load data; 0 loads in the main process."""
    log_every: int = 10
    """Steps between reports."""
    evaluate_every: int = 500
    """Steps between evaluations on held-out data; 0 evaluates only at the end."""
    evaluate_batch: int | None = None
    """Held-out samples at once, per process; left out, batch_size. More are faster if they fit."""
    save_every: int = 500
    """Steps between checkpoints; the last step is always saved."""
    keep_last: int = 2
    """How many of the newest checkpoints stay."""
    keep_every: int = 0
    """Checkpoints at multiples of this stay for good; 0 keeps none of them."""
    minutes: float | None = None
    """Stop cleanly after so many minutes; resume goes on from there."""
    init_from: str | None = path()
    """Start from the weights of this run or exported folder, at step 0."""
    deterministic: bool = False
    """Choose kernels whose results do not vary between runs (a GPU is slower with them)."""
    schedule_steps: int | None = None
    """Length of the learning-rate schedule where it differs from `steps`."""
    max_skipped: int = 20
    """Stop once so many steps in a row had a loss or gradient that is not finite."""
    max_damaged: float = 0.1
    """Stop once more than this share of the samples could not be read."""
    rollback: int = 0
    """How often, instead of stopping for max_skipped, the run may go back to its last sound
    checkpoint and on from there with the data in another order."""
    patience: float = 300.0
    """Stop once loading one batch takes more than so many seconds, and name its samples."""
    processes: int | None = None
    """Refuse to start unless exactly so many processes take part."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """Where else reports go: tensorboard, wandb, trackio. metrics.jsonl is always written."""

    def __post_init__(self) -> None:
        reason = "bf16, fp32 or auto: fp16's range overflows without a loss scale"
        require(str(self.precision) != "fp16", "precision", self.precision, reason)
        require_choices(self)
        require_finite(self)
        for name in ("minutes", "schedule_steps", "processes", "evaluate_batch"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "above 0, or left out")
        share = 0 <= self.max_damaged <= 1
        require(share, "max_damaged", self.max_damaged, "a share between 0 and 1")
        for name in ("steps", "batch_size", "accumulate", "log_every", "max_skipped", "keep_last"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.patience > 0, "patience", self.patience, "above 0 seconds")
        require(self.workers <= 1024, "workers", self.workers, "1024 or fewer")
        for name in ("workers", "evaluate_every", "save_every", "keep_every", "seed", "rollback"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        known = {"tensorboard", "wandb", "trackio"}
        require(set(self.trackers) <= known, "trackers", self.trackers, f"among {sorted(known)}")

    @property
    def log(self) -> When:
        return When(every=self.log_every)

    @property
    def evaluate(self) -> When:
        return When(every=self.evaluate_every)

    @property
    def save(self) -> When:
        return When(every=self.save_every)

    @property
    def measured_at_once(self) -> int:
        return self.evaluate_batch or self.batch_size


# What may differ when a run goes on: none of these changes what is computed.
FREE = frozenset(
    {
        "minutes",
        "workers",
        "log_every",
        "evaluate_every",
        "evaluate_batch",
        "save_every",
        "keep_last",
        "keep_every",
        "processes",
        "trackers",
        "rollback",
        "patience",
        "accumulate",  # the global batch is held, by other means
        "batch_size",
        "fit",
        "shard",
        "checkpoint_activations",
        "max_skipped",
        "max_damaged",
    }
)


def require(holds: bool, field: str, value: object, remedy: str) -> None:
    if not holds:
        raise ConfigError(f"{field} is {value!r}; it must be {remedy}")


def require_choices(config: Any) -> None:
    """What the types say of choices holds for Python users too."""
    for name, kind in typing.get_type_hints(type(config)).items():
        if get_origin(kind) is Literal:
            value, choices = getattr(config, name), get_args(kind)
            require(value in choices, name, value, f"one of {', '.join(map(repr, choices))}")


def require_held_out(config: Any) -> None:
    """What every configuration of data says about the share held out and the built-in samples."""
    share = config.valid_fraction
    require(0 <= share < 1, "valid_fraction", share, "at least 0 and below 1")
    for name in ("valid_limit", "builtin_count"):
        require(getattr(config, name) >= 1, name, getattr(config, name), "1 or more")


def require_finite(config: Any) -> None:
    """JSON has no infinity and no NaN, so a run could not be written down."""
    for name, value in vars(config).items():
        require(not isinstance(value, float) or math.isfinite(value), name, value, "finite")


def to_json(value: Any) -> Any:
    """Dataclasses, tuples and plain values, as JSON knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def from_json(kind: type[C], data: Any, at: str = "") -> C:
    """Build `kind` from JSON. Unknown and missing names and wrong types are refused, by name."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{at or 'the configuration'} must be an object, not {data!r}")
    hints = typing.get_type_hints(kind)
    needed = {
        f.name: f.default is f.default_factory is dataclasses.MISSING
        for f in dataclasses.fields(typing.cast(Any, kind))
    }
    fields = set(needed)
    unknown = sorted(set(data) - fields)
    if unknown:
        known = ", ".join(sorted(fields))
        raise ConfigError(f"unknown setting {dotted(at, str(unknown[0]))}; known here: {known}")
    for name, kept in needed.items():
        if kept and name not in data:
            raise ConfigError(f"{dotted(at, name)} is missing; it must be given")
    values = {name: _value(hints[name], item, dotted(at, name)) for name, item in data.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(dotted(at, str(error))) from None
    except TypeError as error:
        raise ConfigError(f"{at or 'the configuration'}: {error}") from None


def dotted(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _value(kind: Any, item: Any, at: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast(type, kind), item, at)
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(arguments, item, at)
    if origin is Literal:
        if item in arguments:
            return item
        raise ConfigError(f"{at} is {item!r}; it must be one of {', '.join(map(repr, arguments))}")
    if origin is tuple:
        return _tuple(arguments, item, at)
    if kind is float and isinstance(item, (int, float)) and not isinstance(item, bool):
        if abs(item) <= sys.float_info.max:
            return float(item)
        raise ConfigError(f"{at} is {str(item)[:20]}; it must be finite")
    if isinstance(kind, type) and type(item) is kind:  # exact: True is no integer here
        return item
    raise ConfigError(f"{at} is {item!r}; it must be {getattr(kind, '__name__', kind)}")


def _tuple(arguments: tuple[Any, ...], item: Any, at: str) -> tuple[Any, ...]:
    if not isinstance(item, (list, tuple)):
        raise ConfigError(f"{at} is {item!r}; it must be a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(item)
    if len(arguments) != len(item):
        raise ConfigError(f"{at} has {len(item)} values; it must have {len(arguments)}")
    return tuple(_value(kind, x, f"{at}[{i}]") for i, (kind, x) in enumerate(zip(arguments, item)))


def _first_that_fits(kinds: tuple[Any, ...], item: Any, at: str) -> Any:
    problems = []
    for kind in kinds:
        try:
            return _value(kind, item, at)
        except ConfigError as problem:
            problems.append(str(problem))
    raise ConfigError(problems[0])


def differences(old: Any, new: Any, at: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted names of the settings that differ, with both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found: dict[str, tuple[Any, Any]] = {}
        for name in dict.fromkeys([*old, *new]):
            found |= differences(old.get(name), new.get(name), dotted(at, name))
        return found
    return {} if old == new else {at: (old, new)}
