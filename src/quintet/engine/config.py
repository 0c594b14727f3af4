"""Configuration dataclasses, their validation, and strict conversion to and from JSON.

Imports no torch, so that help is instant. A hand-written codec, because it must refuse unknown
names and wrong types with the dotted name of the field, and must never import what a file names.
"""

import dataclasses
import functools
import math
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

C = TypeVar("C")

hints_of = functools.cache(typing.get_type_hints)
"""The types of a dataclass's fields; resolving them takes longer than building an instance."""


class ConfigError(ValueError):
    """An invalid setting: the message names the field and the remedy."""


def setting(
    default: Any = None,
    *,
    free: bool = False,
    recorded: bool = False,
    common: bool = False,
    path: bool = False,
    split: bool = False,
    words: tuple[str, ...] = (),
) -> Any:
    """A field with metadata: `free` may change on resume, and where that changes the result it is
    `recorded`; `common` is explained in the short help; a `path` is made absolute on the command
    line, so that a run resumes from any folder, unless it is one of `words`; a `split` is the file
    that lists training and validation data."""
    marks = {"free": free, "recorded": recorded, "common": common, "path": path, "split": split}
    marked = {name: value for name, value in marks.items() if value}
    return dataclasses.field(default=default, metadata={**marked, "words": words})


def resolved(path: str | Path | None) -> str | None:
    """An absolute path; addresses (s3://…) and objects of Python (python:…) stay as they are."""
    if path is None or "://" in str(path) or str(path).startswith("python:"):
        return None if path is None else str(path)
    return str(Path(path).resolve())


def is_gone(data: str | None) -> bool:
    """Whether a file or folder of data is not there; addresses and patterns are not looked up."""
    if data is None or "://" in data or data.startswith("python:") or set("*?[{#") & set(data):
        return False
    return not Path(data).exists()


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer, learning-rate schedule and weight average of one part."""

    optimizer: Literal["adamw", "adam", "lion", "muon"] = "adamw"
    """The optimizer; muon orthogonalises the updates of hidden matrices and leaves the rest to
    adamw."""
    learning_rate: float = setting(3e-4, free=True, recorded=True)
    """Peak learning rate, reached after the warm-up; not scaled by the number of processes."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay rates of the first and second moments."""
    eps: float = 1e-8
    """Term added to the denominator for numerical stability."""
    weight_decay: float = 0.0
    """Decoupled weight decay, applied to matrices only, not to biases and norms."""
    max_grad_norm: float = 1.0
    """Clip the gradients of this part to this global norm; 0 disables clipping."""
    warmup_steps: int = 100
    """Steps of linear warm-up, counted from the first step of this part."""
    scheduler: Literal["constant", "cosine", "linear", "rsqrt"] = "cosine"
    """Learning-rate schedule after the warm-up."""
    final_lr_ratio: float = 0.0
    """Learning rate at the end of the schedule, as a share of the peak."""
    ema_decay: float = 0.999
    """Decay of the exponential moving average of the weights (ramped up); 0 disables it."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_finite(self)
        rate, ratio = self.learning_rate, self.final_lr_ratio
        require(rate > 0, "learning_rate", rate, "above 0, for example 3e-4")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 steps or more")
        require_fraction(self, "ema_decay")
        require(0 <= ratio <= 1, "final_lr_ratio", ratio, "a share between 0 and 1")
        norm, decay = self.max_grad_norm, self.weight_decay
        require(norm >= 0, "max_grad_norm", norm, "0 (no clipping) or more")
        require_at_least(0, self, "eps")
        require(decay >= 0, "weight_decay", decay, "0 (no decay) or more")
        decoupled = self.optimizer != "adam" or decay == 0
        require(decoupled, "weight_decay", decay, "0 with adam; optimizer adamw decouples it")
        require(all(0 <= b < 1 for b in self.betas), "betas", self.betas, "in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class TrackerConfig:
    """How a run appears in W&B and trackio."""

    project: str | None = setting(None, free=True)
    """Project; the default is WANDB_PROJECT, or quintet."""
    run_name: str | None = setting(None, free=True)
    """Name of the run; the default is that of its folder."""
    entity: str | None = setting(None, free=True)
    """User or team of W&B."""
    tags: tuple[str, ...] = setting((), free=True)
    """Tags of the run in W&B."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of every run. A room's recipe adds its model, data, losses and optimizers."""

    stages: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    """Settings that name a frozen model the run depends on, and the recipe that trains it (or, in
    words, what to give)."""
    stage_families: ClassVar[Mapping[str, tuple[str, ...]]] = types.MappingProxyType({})
    """Families whose models such a setting takes, where these are not called as the recipe."""
    data: str | None = setting(None, free=True)
    """Folder of data; the default is the room's built-in procedural data."""
    steps: int = setting(1000, free=True, common=True)
    """Length of the run in steps; one step consumes one global batch."""
    batch_size: int = setting(16, free=True, common=True)
    """Samples per process and micro-batch; global batch = batch_size x accumulate x processes."""
    accumulate: int = setting(1, free=True, common=True)
    """Gradient accumulation: micro-batches per step."""
    auto_batch: bool = setting(False, free=True)
    """Find the largest micro-batch that fits into memory; the global batch stays the same."""
    fsdp: bool = setting(False, free=True)
    """Shard weights, averages and optimizer state over the processes (FSDP2)."""
    checkpoint_activations: bool = setting(False, free=True)
    """Recompute each block in the backward pass instead of storing activations."""
    seed: int = setting(0, common=True)
    """Seed of everything random: weights, data order, augmentation, noise, dropout."""
    device: Literal["auto", "cpu", "cuda"] = setting("auto", free=True, common=True)
    """Device; auto selects the GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16", "fp64"] = setting("auto", common=True)
    """Precision: auto is bf16 on GPUs and on CPUs with AMX, else fp32; fp64 is for tests."""
    compile: Literal["auto", "on", "off"] = setting("auto", free=True)
    """torch.compile; auto waits 20 steps on a GPU and compiles if the rest of the run is long."""
    capture: bool = setting(True, free=True)
    """On one GPU, replay steps as CUDA graphs after a few eager ones."""
    workers: int = setting(2, free=True, common=True)
    """Data loader processes; 0 loads in the main process."""
    log_every: int = setting(10, free=True, common=True)
    """Steps between reports; in a log file each report is one line."""
    evaluate_every: int = setting(500, free=True, common=True)
    """Steps between evaluations on validation data; 0 evaluates only at the end."""
    evaluate_batch: int | None = setting(None, free=True)
    """Batch size of evaluation, per process; the default is batch_size."""
    judges: tuple[str, ...] = setting((), free=True)
    """External metrics at evaluations, as listed by quintet judges; all: those that work here."""
    judge_count: int = setting(32, free=True)
    """Number of validation samples to judge."""
    save_every: int = setting(500, free=True, common=True)
    """Steps between checkpoints; the last step is always saved."""
    keep_last: int = setting(2, free=True)
    """Number of newest checkpoints to keep."""
    keep_every: int = setting(0, free=True)
    """Also keep every checkpoint at a multiple of this step; 0 keeps none."""
    minutes: float | None = setting(None, free=True, common=True)
    """Time limit in minutes: save, stop with status 0, and resume later."""
    init_from: str | None = setting(None, common=True, path=True)
    """Run (RUN@STEP, RUN@best) or exported folder whose weights initialise the model at step 0."""
    init_partial: bool = False
    """Load the weights of init_from that match by name and shape, and list the others."""
    stop_when_flat: int = setting(0, free=True)
    """Stop after this many evaluations in a row without a new best; 0 never does."""
    deterministic: bool = False
    """Use deterministic kernels only (slower on a GPU)."""
    schedule_steps: int | None = setting(None, free=True)
    """Length of the learning-rate schedule; the default is `steps`, also when a run is extended."""
    planned_steps: int | None = None
    """Number of steps that fractions of the run refer to; the default is `schedule_steps` of the
    first start."""
    max_skipped: int = setting(20, free=True)
    """Stop after this many consecutive steps with a non-finite loss or gradient."""
    max_damaged: float = setting(0.1, free=True)
    """Stop if more than this share of the samples is unreadable."""
    accept_changed_data: bool = setting(False, free=True)
    """Resume although training files are gone, and include new ones."""
    rollback: int = setting(0, free=True)
    """At max_skipped, restore the last intact checkpoint and reshuffle the data, this many
    times."""
    data_timeout: float = setting(300.0, free=True)
    """Seconds to wait for one batch before the run stops and names its samples."""
    processes: int | None = setting(None, free=True)
    """Expected number of processes; any other number is refused."""
    trackers: tuple[str, ...] = setting(("tensorboard",), free=True)
    """Trackers beside metrics.jsonl: tensorboard, wandb, trackio."""
    tracker: TrackerConfig = dataclasses.field(default_factory=TrackerConfig)
    """Name, project and tags of the run in trackers."""

    def __post_init__(self) -> None:
        require_not_fp16(self.precision)
        require_choices(self)
        require_finite(self)
        for name in ("minutes", "schedule_steps", "planned_steps", "processes", "evaluate_batch"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "above 0, or left out")
        share = 0 <= self.max_damaged <= 1
        require(share, "max_damaged", self.max_damaged, "a share between 0 and 1")
        counts = ("steps", "batch_size", "accumulate", "log_every", "max_skipped", "keep_last")
        require_at_least(1, self, *counts, "judge_count")
        require(self.data_timeout > 0, "data_timeout", self.data_timeout, "above 0 seconds")
        require(self.workers <= 1024, "workers", self.workers, "1024 or fewer")
        counts = ("workers", "evaluate_every", "save_every", "keep_every", "seed", "rollback")
        require_at_least(0, self, *counts, "stop_when_flat")
        known = {"tensorboard", "wandb", "trackio"}
        require(set(self.trackers) <= known, "trackers", self.trackers, f"among {sorted(known)}")

    def built_in_stage(self, name: str) -> Any:
        """The frozen model that a word in place of a path names; None for a path."""
        return None

    @property
    def evaluation_batch(self) -> int:
        return self.evaluate_batch or self.batch_size

    def global_batch(self, processes: int = 1) -> int:
        """Samples of a step."""
        return self.batch_size * self.accumulate * processes

    def with_micro_batch(self, size: int) -> Self:
        """The same global batch in micro-batches of another size; the evaluation batch scales."""
        evaluated = self.evaluate_batch and max(1, self.evaluate_batch * size // self.batch_size)
        accumulate = self.global_batch() // size
        return dataclasses.replace(
            self, batch_size=size, accumulate=accumulate, evaluate_batch=evaluated
        )


def require(holds: bool, field: str, value: object, remedy: str) -> None:
    if not holds:
        raise ConfigError(f"{field} is {value!r}; it must be {remedy}")


def require_at_least(least: int, config: Any, *names: str) -> None:
    for name in names:
        require(getattr(config, name) >= least, name, getattr(config, name), f"{least} or more")


def require_fraction(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(0 <= value < 1, name, value, "at least 0 and below 1")


def require_not_fp16(precision: str) -> None:
    reason = "bf16, fp32 or auto: fp16's range overflows without a loss scale"
    require(precision not in ("fp16", "float16", "half"), "precision", precision, reason)


def require_choices(config: Any) -> None:
    """Enforce Literal types for Python users too."""
    for name, kind in hints_of(type(config)).items():
        if get_origin(kind) is Literal:
            value, choices = getattr(config, name), get_args(kind)
            require(value in choices, name, value, f"one of {', '.join(map(repr, choices))}")


def require_held_out(config: Any) -> None:
    """Checks common to every data configuration."""
    require_fraction(config, "valid_fraction")
    require_at_least(1, config, "valid_limit", "builtin_count")


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
    hints = hints_of(kind)
    required = {
        f.name: f.default is f.default_factory is dataclasses.MISSING
        for f in dataclasses.fields(typing.cast(Any, kind))
    }
    fields = set(required)
    unknown = sorted(set(data) - fields)
    if unknown:
        known = ", ".join(sorted(fields))
        raise ConfigError(f"unknown setting {dotted(at, str(unknown[0]))}; known here: {known}")
    for name, is_required in required.items():
        if is_required and name not in data:
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
        changed: dict[str, tuple[Any, Any]] = {}
        for name in dict.fromkeys([*old, *new]):
            changed |= differences(old.get(name), new.get(name), dotted(at, name))
        return changed
    return {} if old == new else {at: (old, new)}
