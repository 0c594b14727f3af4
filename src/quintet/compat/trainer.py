"""Attributes and methods that trainers of the older packages have, or what to use instead."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

REMEDIES = {
    "save": "checkpoints are written every save_every steps; to write the model, call"
    " averaged_model().save_pretrained(folder)",
    "load": "train(resume=True) resumes a run, init_from= starts from its weights, and"
    " averaged_model(step=…) loads a checkpoint",
    "train_step": "train() takes all steps; log_fn= is called with each report",
    "valid_step": "evaluate() measures the validation data; train() does so every evaluate_every",
    "warmup": "warmup_steps= is the length of the warm-up",
    "optim": "the optimizer exists while train() runs; its settings are in recipe.optim",
    "discr_optim": "the optimizer exists while train() runs; see recipe.discriminator_optim",
    "scheduler": "the schedule is a function of the step; its settings are in recipe.optim",
    "dl": "the data loader exists while train() runs; the data sets are in sets",
    "valid_dl": "the data loader exists while train() runs; the data sets are in sets",
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

    model: Any
    recipe: Any
    folder: Path

    def __getattr__(self, name: str) -> Any:
        """Name the replacement of a removed attribute; called only if the name is missing."""
        if name in REMEDIES:
            raise AttributeError(f"trainer.{name} is not available: {REMEDIES[name]}")
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
