"""`Trainer` for any module, and the keywords that all named trainers share."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import default_collate

from quintet.engine.config import OptimiserConfig, Recipe, from_json, to_json
from quintet.engine.errors import RunError, Stopped
from quintet.engine.folder import RunFolder
from quintet.engine.keys import Key, fold
from quintet.engine.launch import start
from quintet.engine.part import load_strictly
from quintet.engine.pretrained import initial_weights, weights_of
from quintet.engine.sinks import Callback, Sink
from quintet.engine.spellings import modern, notice
from quintet.engine.stream import name_of, read_sample
from quintet.engine.task import At, Batch, Loss, Measured, Part, Tally, Task, Update, each


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keywords:
    """What every trainer takes, beside its model and its data."""

    num_train_steps: int | None = None
    """Length of the run in steps; or give num_epochs."""
    num_epochs: float | None = None
    """Length of the run in passes over the data."""
    batch_size: int = 16
    """Samples per process and micro-batch."""
    grad_accum_every: int = 1
    """Micro-batches per step."""
    learning_rate: float = 3e-4
    """The rate after the warm-up."""
    weight_decay: float = 0.0
    """Decoupled decay on matrices."""
    optimizer: str = "adamw"
    """adamw, adam or lion."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Memory of the moments."""
    warmup_steps: int = 100
    """Steps of linear warm-up."""
    scheduler: str = "cosine"
    """constant, cosine, linear or rsqrt."""
    max_grad_norm: float | None = 1.0
    """Clip gradients to this norm; None leaves them alone."""
    ema_decay: float = 0.999
    """Moving average of the weights; 0 keeps none."""
    val_dataset: Any = None
    """Held-out data of your own."""
    valid_frac: float = 0.05
    """Or this share of the data, split off by the seed."""
    val_every: int = 500
    """Steps between evaluations."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    log_every: int = 10
    """Steps between reports."""
    results_folder: str | Path = "runs/run"
    """The run's folder."""
    seed: int = 0
    """Everything random follows from it."""
    precision: str = "auto"
    """fp32 or bf16."""
    compile: bool | str = "auto"
    """Compile the model."""
    device: str = "auto"
    """cpu or cuda."""
    num_workers: int = 2
    """Processes that load data."""
    minutes: float | None = None
    """Stop cleanly after so many minutes."""
    init_from: str | Path | None = None
    """Start from the weights of this run or exported folder."""
    deterministic: bool = False
    """Choose kernels whose results do not vary."""
    fit: bool = False
    """Find the largest micro-batch that fits into memory; the global batch stays."""
    trackers: Sequence[str] = ("tensorboard",)
    """tensorboard, wandb, trackio."""
    log_fn: Callable[[dict[str, Any]], Any] | None = None
    """Called with each report."""
    progress: bool = True
    """Show a progress bar."""

    def recipe(self, size: int, kind: type[Recipe] = Recipe, **more: Any) -> Any:
        """The engine's settings; `size` samples make an epoch. Through JSON, which checks them."""
        compile = self.compile
        if isinstance(compile, bool):
            compile = "on" if compile else "off"
        settings = {
            "steps": self._steps(size),
            "batch_size": self.batch_size,
            "accumulate": self.grad_accum_every,
            "seed": self.seed,
            "precision": checked_precision(self.precision),
            "compile": compile,
            "device": self.device,
            "workers": self.num_workers,
            "log_every": self.log_every,
            "evaluate_every": self.val_every,
            "save_every": self.checkpoint_every,
            "minutes": self.minutes,
            "init_from": str(Path(self.init_from).resolve()) if self.init_from else None,
            "deterministic": self.deterministic,
            "fit": self.fit,
            "trackers": tuple(self.trackers),
            **more,
        }
        return from_json(kind, {name: to_json(value) for name, value in settings.items()})

    def _steps(self, size: int) -> int:
        if (self.num_train_steps is None) == (self.num_epochs is None):
            raise RunError("give num_train_steps or num_epochs, and not both")
        if self.num_train_steps is not None:
            return self.num_train_steps
        batch = self.batch_size * self.grad_accum_every * int(os.environ.get("WORLD_SIZE", 1))
        return max(1, math.ceil(size * (self.num_epochs or 0) / batch))

    def optimiser(self, **changes: Any) -> OptimiserConfig:
        settings: dict[str, Any] = {
            "name": self.optimizer,
            "rate": self.learning_rate,
            "betas": tuple(self.betas),
            "decay": self.weight_decay,
            "clip": self.max_grad_norm or 0.0,
            "warmup": self.warmup_steps,
            "schedule": self.scheduler,
            "average": self.ema_decay,
        }
        return OptimiserConfig(**settings | changes)


def checked_precision(asked: str) -> str:
    if asked in ("fp16", "float16", "half"):
        raise RunError(
            "fp16 is not offered: its range overflows in losses and penalties; use precision='bf16'"
        )
    return {"no": "fp32", "bfloat16": "bf16", "float32": "fp32"}.get(asked, asked)


def shared_keywords() -> set[str]:
    return {field.name for field in dataclasses.fields(Keywords)}


class Split:
    """A share of a data set of the user's, chosen by the seed."""

    def __init__(self, source: Any, indices: list[int]):
        self.source, self.indices = source, indices

    def __len__(self) -> int:
        return len(self.indices)

    def keyed(self, index: int, key: Key | None) -> Any:
        return read_sample(self.source, self.indices[index], key)

    def name(self, index: int) -> str:
        return name_of(self.source, self.indices[index])


def split(source: Any, fraction: float, seed: int) -> dict[str, Any]:
    """Train and valid, disjoint; which side a sample is on depends on the seed and its index."""
    try:
        size = len(source)
    except TypeError:
        raise RunError(
            f"a data set needs a length and items by index; {type(source).__name__} has none: "
            "wrap it in a torch Dataset with __len__ and __getitem__"
        ) from None
    held = round(size * fraction)
    if not held or size < 2:
        return {"train": source, "valid": None}
    ranked = sorted(range(size), key=lambda index: fold(seed, "valid", index))
    return {
        "train": Split(source, sorted(ranked[held:])),
        "valid": Split(source, sorted(ranked[:held])),
    }


RESERVED = {"norm", "skipped", "rate", "update_ratio"}  # the engine's own names in a report


def loss_of(output: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and its named parts, from whatever a module returned."""
    parts: Mapping[str, Any] = {}
    loss = getattr(output, "loss", None)
    if isinstance(output, Tensor):
        loss = output
    elif isinstance(output, Mapping) and "loss" in output:
        loss, parts = output["loss"], output
    elif hasattr(output, "loss"):
        pass
    elif isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        loss = output[0]
        second = output[1] if len(output) > 1 else {}
        fields = getattr(second, "_asdict", lambda: second)()
        parts = fields if isinstance(fields, Mapping) else {}
    else:
        raise RunError(
            f"the model returned {type(output).__name__}; it must return a loss, a tuple that "
            "begins with a loss, or something with 'loss'"
        )
    if loss is None or loss.ndim != 0:
        raise RunError("the model's loss must be a single number; does the batch hold labels?")
    scalars = {
        f"own_{name}" if name in RESERVED else str(name): value.reshape(())
        for name, value in parts.items()
        if isinstance(value, Tensor) and value.numel() == 1
    }
    return loss, {**scalars, "loss": loss}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnyRecipe(Recipe):
    """Settings of a run of any module."""

    optimiser: OptimiserConfig = dataclasses.field(default_factory=OptimiserConfig)
    """How it learns."""


class AnyTask(Task):
    """One part, one update: the module called with the batch as keyword arguments."""

    main = "model"
    best = ("loss", "min")

    def __init__(
        self,
        model: nn.Module,
        sets: Mapping[str, Any],
        optimiser: OptimiserConfig,
        names: Sequence[str] = (),
        collate: Callable[[list[Any]], Any] = default_collate,
    ):
        self.parts = {"model": Part(model, optimiser)}
        self.updates = [Update("model", each(self.loss))]
        self.sets, self.names, self._collate = sets, tuple(names), collate

    def data(self, split: str) -> Any:
        return self.sets[split]

    def collate(self, items: list[Any]) -> Any:
        return self._collate(items)

    def _call(self, model: Callable[..., Any], data: Any) -> Any:
        if isinstance(data, Mapping):
            return model(**data)
        values = data if isinstance(data, (tuple, list)) else (data,)
        if not self.names:
            return model(*values)
        if len(self.names) != len(values):
            raise RunError(
                f"data_kwargs names {len(self.names)} fields, the data has {len(values)}"
            )
        return model(**dict(zip(self.names, values)))

    def loss(self, nets: Any, batch: Batch, at: At) -> Loss:
        return loss_of(self._call(nets["model"], batch.data))

    def measure(self, nets: Any, batch: Batch) -> Measured:
        _, parts = loss_of(self._call(nets["model"], batch.data))
        return {n: Tally(v.detach().double() * batch.size, batch.size) for n, v in parts.items()}


class BaseTrainer:
    """What the named trainers and `Trainer` have in common: a recipe, a task, and a folder."""

    name: str | None = None
    main = "model"
    """The part that is the model."""

    def __init__(self, model: nn.Module, keywords: Keywords, recipe: Recipe):
        self.model, self.keywords, self.recipe = model, keywords, recipe
        self.folder = Path(keywords.results_folder)
        self.stopped: Stopped | None = None

    def task(self, recipe: Any) -> Task:
        raise NotImplementedError

    def stages(self) -> Mapping[str, Any]:
        """Frozen models that the run is built on, by the name of the recipe's setting."""
        return {}

    def train(
        self, log_fn: Callable[[dict[str, Any]], Any] | None = None, *, resume: bool = False
    ) -> int:
        """Train, and return the step reached. `resume=True` starts the run or goes on with it.

        `log_fn` is the constructor's keyword, where older packages have it.
        """
        if log_fn is not None:
            notice("log_fn is now given to the trainer, and no longer to train")
            self.keywords = dataclasses.replace(self.keywords, log_fn=log_fn)
        self.stopped = None
        wanted = {parameter: parameter.requires_grad for parameter in self.model.parameters()}
        try:
            return start(
                self.task,
                self.recipe,
                self.folder,
                name=self.name,
                mode="continue" if resume else "new",
                sinks=self._sinks,
                weights=initial_weights,
                stages=self.stages(),
                progress=self.keywords.progress,
            )
        except Stopped as stop:
            if stop.status:
                raise
            self.stopped = stop  # the clock: a clean end
            return max(RunFolder.open(self.folder).steps())
        finally:
            for parameter, grad in wanted.items():  # an update of another part has frozen them
                parameter.requires_grad_(grad)

    __call__ = train

    def _sinks(self, folder: RunFolder) -> list[Sink]:
        return [Callback(self.keywords.log_fn)] if self.keywords.log_fn else []

    def averaged_model(self) -> nn.Module:
        """The model with the averaged weights of the newest checkpoint, in eval mode."""
        load_strictly(self.model, weights_of(self.folder, self.main), str(self.folder))
        return self.model.eval()


class Trainer(BaseTrainer):
    """Train any module whose forward, called with a batch, returns a loss.

    The loss may stand alone, begin a tuple, or be under `loss` in a mapping or an object. A batch
    that is a mapping is passed by keyword; a tuple by position, or by the names in `data_kwargs`.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Any,
        *,
        data_kwargs: Sequence[str] = (),
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **keywords: Any,
    ):
        shared = Keywords(**modern(keywords, shared_keywords()))
        if shared.val_dataset is not None:
            self.sets = {"train": dataset, "valid": shared.val_dataset}
        else:
            self.sets = split(dataset, shared.valid_frac, shared.seed)
        self.names, self.collate = tuple(data_kwargs), collate_fn or default_collate
        recipe = shared.recipe(len(self.sets["train"]), AnyRecipe, optimiser=shared.optimiser())
        super().__init__(model, shared, recipe)

    def task(self, recipe: AnyRecipe) -> AnyTask:
        return AnyTask(self.model, self.sets, recipe.optimiser, self.names, self.collate)
