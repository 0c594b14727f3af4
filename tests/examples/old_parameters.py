"""Every parameter of the constructors that people come from, and what becomes of it here.

A value, and what is said of it: None where it is the same; the sentence's beginning where it is
taken with a notice; a `Refused` with a word of the remedy where it would be lost.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NamedTuple


class Refused(NamedTuple):
    remedy: str
    notice: str | None = None


class Was(NamedTuple):
    value: Any
    said: str | Refused | None = None


class Made(Enum):
    """What the test puts in."""

    MODEL = auto()
    DATASET = auto()
    FOLDER = auto()


MODEL, DATASET, FOLDER = Made

_MESH = {
    "model": [Was(MODEL)],
    "dataset": [Was(DATASET)],
    "num_train_steps": [Was(2, "num_train_steps is now called steps")],
    "batch_size": [Was(2)],
    "grad_accum_every": [Was(2, "grad_accum_every is now called accumulate")],
    "val_dataset": [Was(DATASET), Was(None)],
    "val_every": [Was(5, "val_every is now called evaluate_every")],
    "val_num_batches": [Was(5, "val_num_batches is not needed: all validation samples")],
    "learning_rate": [Was(1e-4)],
    "weight_decay": [Was(0.0), Was(0.1)],
    "max_grad_norm": [Was(None), Was(0.5)],
    "ema_kwargs": [
        Was({"use_foreach": True}, "ema_kwargs is not needed"),
        Was({"beta": 0.99}, Refused("ema_decay")),
    ],
    "scheduler": [
        Was(None, "scheduler=None is now scheduler='constant'"),
        Was(dict, Refused("cosine")),
    ],
    "scheduler_kwargs": [
        Was({}, "scheduler_kwargs is not needed"),
        Was({"T_max": 9}, Refused("ends at steps")),
    ],
    "accelerator_kwargs": [
        Was({}, "accelerator_kwargs is not needed"),
        Was({"mixed_precision": "fp16"}, Refused("precision")),
    ],
    "optimizer_kwargs": [
        Was({}, "optimizer_kwargs is not needed"),
        Was({"betas": (0.5, 0.9)}, Refused("betas")),
    ],
    "checkpoint_every": [Was(1000, "checkpoint_every is now called save_every")],
    "checkpoint_folder": [Was("a", "checkpoint_folder is now called run")],
    "data_kwargs": [Was(["vertices", "faces", "texts"])],
    "warmup_steps": [Was(1000)],
    "use_wandb_tracking": [
        Was(False, "use_wandb_tracking=False is the default and not needed"),
        Was(True, "use_wandb_tracking=True is now trackers=('wandb',)"),
    ],
}

_ACCELERATE = [
    Was({}, "accelerate_kwargs is not needed"),
    Was({"log_with": "wandb"}, Refused("trackers")),
]
_CLEAR = [
    Was(None, "force_clear_prev_results is not needed"),
    Was(False, "force_clear_prev_results is not needed"),
    Was(True, Refused("another run")),
]
_SEED = [Was(42, "random_split_seed is now called seed")]

_VIDEO = {
    "model": [Was(MODEL, "model is now called tokenizer")],
    "batch_size": [Was(2)],
    "num_train_steps": [Was(100, "num_train_steps is now called steps")],
    "learning_rate": [Was(1e-5)],
    "grad_accum_every": [Was(2, "grad_accum_every is now called accumulate")],
    "apply_gradient_penalty_every": [
        Was(4, "apply_gradient_penalty_every is now called penalty_every")
    ],
    "max_grad_norm": [Was(None), Was(0.5)],
    "dataset": [Was(DATASET)],
    "dataset_folder": [Was(FOLDER, "dataset_folder is now called data")],
    "dataset_type": [
        Was("videos", "dataset_type='videos' is the default and not needed"),
        Was("images", "dataset_type='images' is now frames=1"),
    ],
    "checkpoints_folder": [Was("a", "checkpoints_folder is not needed")],
    "results_folder": [Was("a", "results_folder is now called run")],
    "random_split_seed": _SEED,
    "valid_frac": [Was(0.1, "valid_frac is now called valid_fraction")],
    "validate_every_step": [Was(100, "validate_every_step is now called evaluate_every")],
    "checkpoint_every_step": [Was(100, "checkpoint_every_step is now called save_every")],
    "num_frames": [Was(5, "num_frames is now called frames")],
    "use_wandb_tracking": _MESH["use_wandb_tracking"],
    "discr_start_after_step": [
        Was(0.0, "discr_start_after_step=0.0 is now adversarial_from=0.0"),
        Was(1, "discr_start_after_step=1 is now adversarial_from=0.5"),
    ],
    "warmup_steps": [Was(1000)],
    "scheduler": _MESH["scheduler"],
    "scheduler_kwargs": _MESH["scheduler_kwargs"],
    "accelerate_kwargs": _ACCELERATE,
    "ema_kwargs": _MESH["ema_kwargs"],
    "optimizer_kwargs": _MESH["optimizer_kwargs"],
    "dataset_kwargs": [
        Was({}, "dataset_kwargs is not needed"),
        Was({"exts": ["gif"]}, Refused("dataset of your own")),
    ],
}

_IMAGE = {
    "vae": [Was(MODEL)],
    "folder": [Was(FOLDER, "folder is now called data")],
    "num_train_steps": [Was(2, "num_train_steps is now called steps")],
    "batch_size": [Was(2)],
    "image_size": [Was(16, "image_size is now called size")],
    "lr": [Was(3e-4, "lr is now called learning_rate")],
    "grad_accum_every": [Was(2, "grad_accum_every is now called accumulate")],
    "max_grad_norm": [Was(None), Was(0.5)],
    "discr_max_grad_norm": [
        Was(None, "discr_max_grad_norm is not needed"),
        Was(0.5, Refused("max_grad_norm clips the discriminator")),
    ],
    "save_results_every": [Was(100, "save_results_every is now called evaluate_every")],
    "save_model_every": [Was(1000, "save_model_every is now called save_every")],
    "results_folder": [Was("a", "results_folder is now called run")],
    "valid_frac": [Was(0.1, "valid_frac is now called valid_fraction")],
    "random_split_seed": _SEED,
    "use_ema": [
        Was(True, "use_ema=True is now ema_decay=0.999"),
        Was(False, "use_ema=False is now ema_decay=0.0"),
    ],
    "ema_beta": [Was(0.995, "ema_beta is now called ema_decay")],
    "ema_update_after_step": [Was(0, "ema_update_after_step is not needed")],
    "ema_update_every": [Was(1, "ema_update_every is not needed")],
    "apply_grad_penalty_every": [Was(4, "apply_grad_penalty_every is now called penalty_every")],
    "accelerate_kwargs": _ACCELERATE,
}

_MUSIC = {
    "mulan": [Was(MODEL)],
    "dataset": [Was(DATASET)],
    "num_train_steps": [Was(2, "num_train_steps is now called steps")],
    "batch_size": [Was(4)],
    "data_max_length": [Was(4000)],
    "folder": [
        Was(None, "folder is now called data"),
        Was(FOLDER, Refused("or dataset, not both", "folder is now called data")),
    ],
    "lr": _IMAGE["lr"],
    "grad_accum_every": [Was(2, "grad_accum_every is now called accumulate")],
    "betas": [Was((0.9, 0.99))],
    "max_grad_norm": [Was(0.5)],
    "valid_frac": [Was(0.1, "valid_frac is now called valid_fraction")],
    "random_split_seed": _SEED,
    "save_model_every": _IMAGE["save_model_every"],
    "results_folder": [Was("a", "results_folder is now called run")],
    "accelerate_kwargs": _ACCELERATE,
    "use_lion": [
        Was(True, "use_lion=True is now optimizer='lion'"),
        Was(False, "use_lion=False is now optimizer='adamw'"),
    ],
    "force_clear_prev_results": _CLEAR,
}

_SPEECH = {
    "cfm_wrapper": [Was(MODEL, "cfm_wrapper is now called voicebox")],
    "batch_size": [Was(2)],
    "dataset": [Was(DATASET)],
    "num_train_steps": [Was(2, "num_train_steps is now called steps")],
    "num_warmup_steps": [Was(5, "num_warmup_steps is now called warmup_steps")],
    "num_epochs": [Was(1)],
    "lr": _IMAGE["lr"],
    "initial_lr": [Was(1e-5, "initial_lr is not needed: the warm-up begins at learning_rate")],
    "grad_accum_every": [Was(2, "grad_accum_every is now called accumulate")],
    "wd": [Was(0.1, "wd is now called weight_decay")],
    "max_grad_norm": [Was(0.5)],
    "valid_frac": [Was(0.1, "valid_frac is now called valid_fraction")],
    "random_split_seed": _SEED,
    "log_every": [Was(10)],
    "save_results_every": _IMAGE["save_results_every"],
    "save_model_every": _IMAGE["save_model_every"],
    "results_folder": [Was("a", "results_folder is now called run")],
    "force_clear_prev_results": _CLEAR,
    "split_batches": [
        Was(False, "split_batches is not needed"),
        Was(True, Refused("batch_size is per process")),
    ],
    "drop_last": [Was(False, "drop_last is not needed"), Was(True, "drop_last is not needed")],
    "accelerate_kwargs": _ACCELERATE,
}

PARAMETERS: Mapping[str, Mapping[str, list[Was]]] = {
    "MeshAutoencoderTrainer": _MESH,
    "MeshTransformerTrainer": _MESH,
    "VideoTokenizerTrainer": _VIDEO,
    "VQGanVAETrainer": _IMAGE,
    "MuLaNTrainer": _MUSIC,
    "VoiceBoxTrainer": _SPEECH,
}
SECTIONS = {
    "MeshAutoencoderTrainer": "meshgpt-pytorch",
    "MeshTransformerTrainer": "meshgpt-pytorch",
    "VideoTokenizerTrainer": "magvit2-pytorch",
    "VQGanVAETrainer": "muse-maskgit-pytorch",
    "MuLaNTrainer": "musiclm-pytorch",
    "VoiceBoxTrainer": "voicebox-pytorch",
}
