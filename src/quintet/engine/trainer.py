"""`Trainer` for any module, and what all trainers share: settings by keyword, a run, a model."""

import copy
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

from torch import Tensor, nn
from torch.utils.data import default_collate

from quintet.compat.keywords import notice, translate
from quintet.compat.trainer import UpstreamNames, with_old_names
from quintet.engine.config import (
    ConfigError,
    OptimizerConfig,
    Recipe,
    require_not_fp16,
    resolved,
)
from quintet.engine.data.source import Source, as_source, split_indices, subset
from quintet.engine.errors import RunError, Stopped
from quintet.engine.evaluate import evaluate_run
from quintet.engine.launch import start
from quintet.engine.machine.world import World
from quintet.engine.models.hub import local
from quintet.engine.models.pretrained import initial_weights, weights_of
from quintet.engine.part import load_strictly
from quintet.engine.runs import frozen
from quintet.engine.runs.folder import RunFolder, at_step
from quintet.engine.runs.remote.mirror import folder_of
from quintet.engine.runs.sinks import Callback, Sink
from quintet.engine.settings import keywords_of, names_for, opening, settings_of, updated
from quintet.engine.task import (
    Batch,
    Loss,
    Measured,
    Part,
    StepContext,
    Tally,
    Task,
    Update,
    each,
)
from quintet.engine.trainer_call import check_call
from quintet.suggest import in_python

M = TypeVar("M", bound=nn.Module)
Sets = dict[str, Source | None]
"""Data sets of the user by split; `valid` is None where there is nothing to validate on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What a trainer takes beside the settings of its recipe: things of Python alone."""

    run: str | Path = "runs/run"
    """Folder of the run."""
    num_epochs: float | None = None
    """Length of the run in passes over the data, instead of `steps`."""
    val_dataset: Any = None
    """Your own validation data; by default `valid_fraction` of the data is held out."""
    log_fn: Callable[[dict[str, Any]], Any] | None = None
    """Called with each report and each evaluation; `loss` and `discr_loss` are there as well."""
    progress: bool = True
    """Show a progress bar."""


OPTIONS = frozenset(field.name for field in dataclasses.fields(Options))


def settings_from(recipe: Recipe, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted settings out of Python keywords, with the values that Python users write."""
    settings: dict[str, Any] = {}
    for keyword, value in keywords.items():
        for name in names_for(recipe, keyword):
            # A part without an average (a discriminator) does not get one by the common keyword.
            optim = getattr(recipe, name.partition(".")[0])
            if keyword != "ema_decay" or optim.ema_decay:
                settings[name] = _plain(keyword, value)
    return settings


def _plain(name: str, value: Any) -> Any:
    if name == "compile" and isinstance(value, bool):
        return "on" if value else "off"
    if name == "precision":
        require_not_fp16(value)
        return {"no": "fp32", "bfloat16": "bf16", "float32": "fp32"}.get(value, value)
    if name == "max_grad_norm" and value is None:
        return 0.0
    if name == "size" and isinstance(value, int):
        return [value, value]
    if name == "init_from" and value is not None:
        return resolved(local(value))
    return resolved(value) if isinstance(value, Path) or name == "data" else value


RESERVED = {
    "grad_norm",
    "skipped",
    "learning_rate",
    "update_ratio",
}  # the engine's own names in a report


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
    if loss is not None and not isinstance(loss, Tensor):
        kind = type(loss).__name__
        raise RunError(f"the model's loss is a {kind} of Python; return the tensor, without item()")
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

    optim: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    """Optimizer of the module."""
    valid_fraction: float = 0.05
    """Share of the data set held out for validation, chosen by the seed."""


class AnyTask(Task):
    """One part, one update: the module called with the batch as keyword arguments."""

    main = "model"
    best = ("loss", "min")

    def __init__(
        self,
        model: nn.Module,
        sets: Mapping[str, Any],
        optimizer: OptimizerConfig,
        names: Sequence[str] = (),
        collate: Callable[[list[Any]], Any] = default_collate,
    ):
        self.parts = {"model": Part(model, optimizer)}
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

    def loss(self, nets: Any, batch: Batch, context: StepContext) -> Loss:
        return loss_of(self._call(nets["model"], batch.data))

    def measure(self, nets: Any, batch: Batch) -> Measured:
        _, parts = loss_of(self._call(nets["model"], batch.data))
        return {n: Tally(v.detach().double() * batch.size, batch.size) for n, v in parts.items()}


class BaseTrainer(UpstreamNames, Generic[M]):
    """What the named trainers and `Trainer` share: a recipe, a task and a run folder.

    Its defaults are those of its recipe, beside what follows from the model. Every setting is a
    keyword under its own name (`steps`, `batch_size`, …); one of a group too, if no other group has
    that name. `learning_rate` and the other settings of optimizers apply to all parts. Otherwise
    pass the group (`losses={"l1": 2.0}`, or its dataclass), or
    `settings={"discriminator_optim.learning_rate": 1e-4}`. `recipe` is another one to start from.
    """

    name: str | None = None
    """The recipe, as `quintet train` calls it."""
    default_recipe: Callable[[], Recipe]
    """Its function."""
    main = "model"
    """The part that is the model."""

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        if args or keywords:  # a copy is built without
            check_call(cls, args, keywords)
        return super().__new__(cls)

    def __init__(
        self,
        model: M,
        dataset: Any,
        keywords: Mapping[str, Any],
        derived: Mapping[str, Any],
    ):
        """`derived`: settings that follow from the model, unless keywords say otherwise."""
        default, keywords = self.default_recipe(), dict(keywords)
        explicit, own_recipe = keywords.pop("settings", None) or {}, keywords.pop("recipe", None)
        if own_recipe is not None and not isinstance(own_recipe, type(default)):
            kind = type(default).__name__
            raise TypeError(f"recipe is a {type(own_recipe).__name__}; this trainer takes a {kind}")
        recipe = own_recipe or default
        known = translate(keywords, keywords_of(recipe) | OPTIONS)
        if known.get("steps", 0) is None:  # beside num_epochs
            del known["steps"]
        self.model, self.options = model, Options(**{n: known.pop(n) for n in OPTIONS & {*known}})
        settings = {**settings_from(recipe, known), **explicit}
        if dataset is not None and settings.get("data") is not None:
            raise RunError("give data (a folder) or dataset, not both")
        if self.options.val_dataset is not None and dataset is None:
            raise RunError("val_dataset goes with dataset; a folder holds out its valid_fraction")
        if dataset is not None:
            settings["data"] = "python:dataset"
        derived = {"judges": (), **derived}  # judges work in runs of the command line
        recipe = updated(recipe, {**derived, **settings})
        self.sets = None if dataset is None else self._split(dataset, recipe)
        self.recipe: Any = recipe
        lengths = ("steps" in settings) + (self.options.num_epochs is not None)
        if lengths > 1 or not (lengths or own_recipe or self.name):
            raise RunError("give steps or num_epochs, not both")
        train = self.sets["train"] if self.sets else self.open(recipe)
        self.recipe = self._with_steps(recipe, train)
        unlisted = {"data"} | derived.keys() - settings.keys()
        self.opening = self.name and opening(self.name, default, self.recipe, unlisted)
        self.folder = folder_of(self.options.run)
        self.stopped: Stopped | None = None

    def _with_steps(self, recipe: Any, train: Any) -> Any:
        epochs = self.options.num_epochs
        if epochs is None:
            return recipe
        batch = recipe.global_batch(int(os.environ.get("WORLD_SIZE", 1)))
        samples = self.epoch_size(train, recipe)
        return dataclasses.replace(recipe, steps=max(1, math.ceil(samples * epochs / batch)))

    def _split(self, dataset: Any, recipe: Any) -> Sets:
        source = self.adapt(dataset, recipe)
        if self.options.val_dataset is not None:
            valid = self.adapt(self.options.val_dataset, recipe)
            if not len(valid):
                raise RunError("val_dataset is empty; leave it out to hold out valid_fraction")
            return {"train": source, "valid": valid}
        (fraction,) = (s for s in settings_of(recipe) if s.name.endswith("valid_fraction"))
        train, valid = split_indices(len(source), fraction.default, recipe.seed)
        if not valid:
            return {"train": source, "valid": None}
        return {"train": subset(source, train), "valid": subset(source, valid)}

    # -- what a room says -------------------------------------------------------------------

    def task(self, recipe: Any) -> Task:
        raise NotImplementedError

    def adapt(self, dataset: Any, recipe: Any) -> Source:
        """A data set of the user's as a source of the samples that the task expects."""
        return as_source(dataset)

    def open(self, recipe: Any) -> Any:
        """The training samples of the recipe's folder, or the built-in ones."""
        raise NotImplementedError

    def epoch_size(self, train: Any, recipe: Any) -> int:
        """Samples of one epoch, in units of `batch_size`."""
        return len(train)

    def stages(self) -> Mapping[str, Any]:
        """Frozen models that the run is built on, by the name of the recipe's setting."""
        return {}

    # -- what a user calls ------------------------------------------------------------------

    def train(
        self, log_fn: Callable[[dict[str, Any]], Any] | None = None, *, resume: bool = False
    ) -> int:
        """Train, and return the step reached. `resume=True` starts the run, or resumes it.

        `log_fn` is the constructor's keyword, where older packages have it.
        """
        if log_fn is not None:
            notice("log_fn is now an argument of the trainer, not of train")
            self.options = dataclasses.replace(self.options, log_fn=log_fn)
        self.stopped = None
        trainable = {parameter: parameter.requires_grad for parameter in self.model.parameters()}
        try:
            return start(
                self.task,
                self.recipe,
                self.folder,
                name=self.name,
                opening=self.opening,
                mode="resume_or_new" if resume else "new",
                sinks=self._sinks,
                weights=initial_weights,
                stages=self.stages(),
                progress=self.options.progress,
            )
        except (RunError, ConfigError) as error:
            raise type(error)(in_python(str(error))) from error
        except Stopped as stop:
            if stop.status:
                raise
            self.stopped = stop  # the clock: a clean end
            return max(RunFolder.open(self.folder).steps())
        finally:
            for parameter, grad in trainable.items():  # an update of another part has frozen them
                parameter.requires_grad = grad  # the method refuses an uninitialised one

    __call__ = forward = train

    def _sinks(self, folder: RunFolder) -> list[Sink]:
        log, adversarial = self.options.log_fn, hasattr(self.recipe, "discriminator_optim")
        return [Callback(with_old_names(log, self.main, adversarial))] if log else []

    def averaged_model(self, step: int | Literal["best"] | None = None) -> M:
        """The model with the averaged weights of a checkpoint, the newest by default, in eval mode.

        Before the first checkpoint these are the weights that the model has.
        """
        if step is None and not self.step:
            return self.model.eval()
        weights = weights_of(at_step(self.folder, step), self.main)
        load_strictly(self.model, weights, str(self.folder))
        return self.model.eval()

    @property
    def ema_model(self) -> M:
        """A copy of the model with the averaged weights of the newest checkpoint, in eval mode."""
        copied = copy.deepcopy(self.model)
        if self.step:
            load_strictly(copied, weights_of(self.folder, self.main), str(self.folder))
        return copied.eval()

    ema_tokenizer = ema_vae = ema_model

    def evaluate(self, step: int | Literal["best"] | None = None) -> dict[str, float]:
        """Metrics on the validation data; the averaged weights of the checkpoint stay loaded."""
        recipe = frozen.resolved(dataclasses.replace(self.recipe, compile="off"), self.folder)
        run, world = at_step(self.folder, step), World(recipe)
        return evaluate_run(self.task(recipe), recipe, run, world, whole=False)


class Trainer(BaseTrainer[nn.Module]):
    """Train any module whose forward, called with a batch, returns a loss.

    The loss may stand alone, begin a tuple, or be under `loss` in a mapping or an object. A batch
    that is a mapping is passed by keyword; a tuple by position, or by the names in `data_kwargs`.
    """

    default_recipe = AnyRecipe

    def __init__(
        self,
        model: nn.Module,
        dataset: Any = None,
        *,
        data_kwargs: Sequence[str] = (),
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **keywords: Any,
    ):
        self.names, self.collate = tuple(data_kwargs), collate_fn or default_collate
        super().__init__(model, dataset, keywords, {})

    def open(self, recipe: AnyRecipe) -> Any:
        raise RunError(
            "Trainer does not read folders: give a data set with a length and items by index,"
            " Trainer(model, dataset, steps=…)"
        )

    def task(self, recipe: AnyRecipe) -> AnyTask:
        assert self.sets is not None
        return AnyTask(self.model, self.sets, recipe.optim, self.names, self.collate)
