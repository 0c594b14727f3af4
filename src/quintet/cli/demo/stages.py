"""Stages of the demo: one training run per recipe, its length, and its metrics as a sentence."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quintet import rooms
from quintet.engine.config import Recipe, from_json, to_json

Length = Literal["full", "quick"] | int
"""A number is steps per stage: it tests the installation only."""
Metrics = Mapping[str, float]
"""Validation metrics by name, without `val/`."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One training run, in its own folder below that of the demo."""

    folder: str
    recipe: str
    title: str
    description: str
    """One sentence for the page."""
    steps: Mapping[str, int]
    """By length."""
    seconds: Mapping[str, int]
    """Duration on two CPU cores, evaluation included, to estimate the remaining time."""
    quick_settings: Mapping[str, Any]
    """Settings by dotted name for a quick demo: less warm-up, preparation and evaluation."""
    minimal_settings: Mapping[str, Any]
    """Further settings for a test of the installation."""
    summarise: Callable[[Metrics, Any], str]
    """Format the metrics and their baselines as a sentence, given the recipe."""
    evaluate_halfway: bool = False
    """Evaluate halfway through a full demo as well, where evaluation is cheap."""
    depends_on: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that take the run folder of an earlier stage."""


def _image_summary(metrics: Metrics, _: Any) -> str:
    return (
        f"PSNR {metrics['psnr']:.1f} dB; baselines: mean colour of the image "
        f"{metrics['psnr_mean_colour']:.1f} dB, downsampling to one pixel per token "
        f"{metrics['psnr_bicubic']:.1f} dB"
    )


def _video_summary(metrics: Metrics, _: Any) -> str:
    return (
        f"PSNR {metrics['psnr']:.1f} dB; baselines: mean colour of the clip "
        f"{metrics['psnr_mean_colour']:.1f} dB, mean frame {metrics['psnr_mean_frame']:.1f} dB"
    )


def _autoencoder_summary(metrics: Metrics, settings: Any) -> str:
    """Coordinates are reconstructed exactly early in training; cross-entropy keeps improving."""
    return (
        f"cross-entropy {metrics['loss']:.3f} nats per coordinate; baseline: uniform over "
        f"{settings.model.bins} bins {math.log(settings.model.bins):.2f}; {metrics['exact']:.1%} "
        "of coordinates exact"
    )


def _transformer_summary(metrics: Metrics, _: Any) -> str:
    return (
        f"{metrics['valid']:.0%} of generated meshes valid, {metrics['agrees']:.0%} match the "
        f"caption; cross-entropy {metrics['loss']:.2f} nats per code, without the caption "
        f"{metrics['loss_without_text']:.2f}"
    )


def _music_summary(metrics: Metrics, settings: Any) -> str:
    count = settings.sounds.valid_limit
    return (
        f"recall at 10 of {count} is {metrics['recall_at_10']:.0%}; "
        f"chance: {min(1.0, 10 / count):.0%}"
    )


def _speech_summary(metrics: Metrics, _: Any) -> str:
    return (
        f"infilling error {metrics['mel_error']:.2f} (log-mel); baseline: copying adjacent frames "
        f"{metrics['mel_error_copied']:.2f}; {metrics['syllables']:.0%} of synthesised syllables "
        f"recognised, {metrics['syllables_recorded']:.0%} of recorded ones"
    )


STAGES = (
    Stage(
        folder="image",
        recipe="image/vqgan_tiny",
        title="Images",
        description="A VQGAN tokenizer: encodes images as a grid of tokens and decodes them.",
        steps={"full": 500, "quick": 80},
        seconds={"full": 98, "quick": 16},
        quick_settings={"images.valid_limit": 128, "optim.warmup_steps": 20},
        minimal_settings={"images.valid_limit": 16},
        summarise=_image_summary,
        evaluate_halfway=True,
    ),
    Stage(
        folder="autoencoder",
        recipe="mesh/autoencoder_tiny",
        title="Mesh autoencoder",
        description="An autoencoder: encodes meshes as discrete codes per vertex and decodes them.",
        steps={"full": 200, "quick": 60},
        seconds={"full": 28, "quick": 7},
        quick_settings={"meshes.valid_limit": 128, "optim.warmup_steps": 20},
        minimal_settings={"meshes.valid_limit": 16},
        summarise=_autoencoder_summary,
        evaluate_halfway=True,
    ),
    Stage(
        folder="transformer",
        recipe="mesh/transformer_tiny",
        title="Text to mesh",
        description="An autoregressive transformer over those codes: generates meshes from text.",
        steps={"full": 800, "quick": 140},
        seconds={"full": 155, "quick": 33},
        quick_settings={
            "meshes.builtin_count": 1500,
            "meshes.valid_limit": 32,
            "generation.count": 16,
            "optim.warmup_steps": 30,
        },
        minimal_settings={
            "meshes.builtin_count": 64,
            "meshes.valid_limit": 4,
            "generation.count": 2,
        },
        summarise=_transformer_summary,
        depends_on={"autoencoder": "autoencoder"},
    ),
    Stage(
        folder="video",
        recipe="video/tokenizer_tiny",
        title="Video",
        description="A causal video tokenizer: tokens of a frame do not depend on later frames.",
        steps={"full": 330, "quick": 70},
        seconds={"full": 80, "quick": 16},
        quick_settings={"videos.valid_limit": 32, "optim.warmup_steps": 20},
        minimal_settings={"videos.valid_limit": 4},
        summarise=_video_summary,
        evaluate_halfway=True,
    ),
    Stage(
        folder="music",
        recipe="music/mulan_tiny",
        title="Music and text",
        description="Two towers with a joint embedding of audio and text, for retrieval both ways.",
        steps={"full": 130, "quick": 36},
        seconds={"full": 81, "quick": 22},
        quick_settings={"sounds.valid_limit": 64, "optim.warmup_steps": 15},
        minimal_settings={"sounds.valid_limit": 16, "batch_size": 8},
        summarise=_music_summary,
    ),
    Stage(
        folder="speech",
        recipe="speech/voicebox_tiny",
        title="Speech",
        description="Flow matching: infills recordings and synthesises text in a given voice.",
        steps={"full": 300, "quick": 80},
        seconds={"full": 111, "quick": 32},
        quick_settings={"recordings.valid_limit": 24, "sampling.count": 4},
        minimal_settings={
            "recordings.valid_limit": 4,
            "sampling.count": 1,
            "recordings.builtin_count": 64,
        },
        summarise=_speech_summary,
    ),
)


def steps_of(stage: Stage, length: Length) -> int:
    return length if isinstance(length, int) else stage.steps[length]


def seconds_of(stage: Stage, length: Length) -> float:
    return 3 if isinstance(length, int) else stage.seconds[length]


def settings_of(stage: Stage, length: Length, demo: Path) -> Recipe:
    """The recipe at the length of the demo; the learning-rate schedule follows the steps."""
    recipe = rooms.recipe_function(stage.recipe)()
    steps = steps_of(stage, length)
    changes: dict[str, Any] = {
        "steps": steps,
        "device": "cpu",
        "save_every": math.ceil(steps / 4),  # bounds what a kill costs
        "evaluate_every": math.ceil(steps / 2)
        if stage.evaluate_halfway and length == "full"
        else 0,
        "trackers": [],
        **{name: str((demo / folder).resolve()) for name, folder in stage.depends_on.items()},
    }
    if length != "full":
        changes |= stage.quick_settings
    if isinstance(length, int):
        changes |= {"workers": 0, "log_every": 1, **stage.minimal_settings}
    settings = to_json(recipe)
    for name, value in changes.items():
        *groups, last = name.split(".")
        group = settings
        for key in groups:
            group = group[key]
        group[last] = value
    return from_json(type(recipe), settings)
