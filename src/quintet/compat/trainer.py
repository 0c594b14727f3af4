"""Attributes and methods that trainers of the older packages have, or what to use instead."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from quintet.compat.keywords import CHANGED, OLD, REMOVED
from quintet.engine.settings import keywords_of, value_of

_OPTIMIZER = "the optimizer exists while train() runs; its settings are in recipe.optim"
_DISCRIMINATOR = "the optimizer exists while train() runs; see recipe.discriminator_optim"
_SCHEDULE = "the schedule is a function of the step; its settings are in recipe.optim"
_LOADER = "the data loader exists while train() runs; the data sets are in sets"
_SETS = "a data set of your own is in sets, split; a folder is opened while train() runs"

REMEDIES = {
    "save": "checkpoints are written every save_every steps; to write the model, call"
    " averaged_model().save_pretrained(folder)",
    "load": "train(resume=True) resumes a run, init_from= starts from its weights, and"
    " averaged_model(step=…) loads a checkpoint",
    "train_step": "train() takes all steps; log_fn= is called with each report",
    "valid_step": "evaluate() measures the validation data; train() does so every evaluate_every",
    "warmup": "warmup_steps= is the length of the warm-up",
    **dict.fromkeys(("optim", "optimizer"), _OPTIMIZER),
    **dict.fromkeys(("discr_optim", "discr_optimizer", "discr_warmup"), _DISCRIMINATOR),
    **dict.fromkeys(("multiscale_discr_optimizers", "has_multiscale_discrs"), _DISCRIMINATOR),
    **dict.fromkeys(("scheduler", "discr_scheduler"), _SCHEDULE),
    **dict.fromkeys(("dl", "valid_dl", "dl_iter", "valid_dl_iter", "dataloader"), _LOADER),
    **dict.fromkeys(("val_dataloader", "valid_dataloader", "train_dataloader"), _LOADER),
    "next_data_to_forward_kwargs": _LOADER,
    **dict.fromkeys(("ds", "valid_ds", "dataset", "valid_dataset", "should_validate"), _SETS),
    **dict.fromkeys(("data_kwargs", "ds_fields"), "the fields of a data set's tuples are in names"),
    "data_max_length": "the longest crop is recipe.sounds.seconds",
    "vae_parameters": "use trainer.model.parameters()",
    "accelerator": "torchrun starts the processes; is_main, device and wait() are here",
    "ema": "ema_model is the model with averaged weights",
    "log": "log_fn= is called with each report; trackers= names TensorBoard, W&B or trackio",
    "trackers": "give trackers=, project= and run_name= to the trainer; no context is needed",
    "wandb_tracking": "give trackers=('wandb',) and project= to the trainer; no context is needed",
    "to": "device= selects the device; auto uses the GPU if there is one",
    "cuda": "device= selects the device; auto uses the GPU if there is one",
    "state_dict": "runs are saved automatically; averaged_model().state_dict() has the weights",
    "eval": "averaged_model() is in eval mode; training sets the mode itself",
    "parameters": "use trainer.model.parameters()",
}


class UpstreamNames:
    """Mixin of the trainers, which define `model`, `recipe`, `folder` and `averaged_model`."""

    main: str
    model: Any
    recipe: Any
    folder: Path

    def __getattr__(self, name: str) -> Any:
        """Name the replacement of a removed attribute; called only if the name is missing."""
        recipe, new = self.__dict__.get("recipe"), OLD.get(name, name)
        if "model" in self.__dict__ and name in (self.main, "cfm_wrapper"):
            return self.model
        if recipe is not None and name not in REMEDIES and new in keywords_of(recipe):
            try:
                return value_of(recipe, new)
            except TypeError as error:  # several groups have it
                raise AttributeError(str(error)) from None
        remedy = REMEDIES.get(name) or (name in REMOVED and REMOVED[name].instead)
        if not remedy and name in CHANGED:
            remedy = f"it became {CHANGED[name].new}"
        if remedy:
            raise AttributeError(f"trainer.{name} is not available: {remedy}")
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    @property
    def is_main(self) -> bool:
        """Whether this is the process that reports and writes."""
        return os.environ.get("RANK", "0") == "0"

    @property
    def is_local_main(self) -> bool:
        return os.environ.get("LOCAL_RANK", "0") == "0"

    @property
    def is_distributed(self) -> bool:
        return int(os.environ.get("WORLD_SIZE", "1")) > 1

    @property
    def device(self) -> torch.device:
        """The device that training uses."""
        on_gpu = self.recipe.device != "cpu" and torch.cuda.is_available()
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else CPU

    @property
    def steps(self) -> int:
        """Length of the run, as the keyword."""
        return self.recipe.steps

    @property
    def step(self) -> int:
        """Step of the newest checkpoint; 0 before the first."""
        names = (self.folder / "checkpoints").glob("step-*")
        return max((int(path.name.removeprefix("step-")) for path in names), default=0)

    num_train_steps = steps

    @property
    def batch_size(self) -> int:
        return self.recipe.batch_size

    @property
    def results_folder(self) -> Path:
        return self.folder

    checkpoint_folder = results_folder

    @property
    def unwrapped_model(self) -> Any:
        return self.model

    def wait(self) -> None:
        """Wait until all processes get here."""
        if dist.is_available() and dist.is_initialized():
            dist.barrier()

    def print(self, *values: Any) -> None:
        if self.is_main:
            print(*values)  # noqa: T201


CPU = torch.device("cpu")
Log = Callable[[dict[str, Any]], Any]


def with_old_names(log: Log, main: str, adversarial: bool) -> Log:
    """A log function that always gets `loss`, and `discr_loss` where there are discriminators:
    those of the last report, also at an evaluation; NaN before the first."""
    last = {"loss": math.nan} | ({"discr_loss": math.nan} if adversarial else {})

    def call(record: dict[str, Any]) -> Any:
        losses = {name: record[name] for name in record if name.endswith("/loss")}
        critics = [losses[name] for name in losses if "discriminator" in name]
        if f"{main}/loss" in losses:
            last["loss"] = losses[f"{main}/loss"]
        if critics:
            last["discr_loss"] = sum(critics)
        return log({**last, **record})

    return call
