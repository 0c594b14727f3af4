"""The six trainings of the demo: what each is, how long it lasts, and its numbers in words."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quintet import rooms
from quintet.engine.config import Recipe, from_json, to_json

Length = Literal["full", "quick"] | int
"""The number is steps of each training: a test of an installation, and of nothing else."""
Numbers = Mapping[str, float]
"""What was measured on held-out data, without `val/`."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One training, in its own run folder below the demo's."""

    folder: str
    recipe: str
    title: str
    what: str
    """One sentence for the page."""
    steps: Mapping[str, int]
    """By length."""
    seconds: Mapping[str, int]
    """About how long that takes on two CPU cores, measuring included: for the time left."""
    less: Mapping[str, Any]
    """Settings, by dotted name, with which a quick demo warms up, prepares and measures less."""
    least: Mapping[str, Any]
    """And a test of an installation."""
    words: Callable[[Numbers, Any], str]
    """Numbers and settings as a sentence, with the baselines beside them."""
    halfway: bool = False
    """Also measured halfway through a full demo, where measuring is cheap."""
    needs: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that name the run folder of an earlier stage."""


def _pictures(found: Numbers, _: Any) -> str:
    return (
        f"{found['psnr']:.1f} dB; guessing each picture's mean colour: "
        f"{found['psnr_mean_colour']:.1f}; shrinking it to as many pixels as it has ids: "
        f"{found['psnr_shrink_enlarge']:.1f}"
    )


def _clips(found: Numbers, _: Any) -> str:
    return (
        f"{found['psnr']:.1f} dB; guessing each clip's mean colour: "
        f"{found['psnr_mean_colour']:.1f}; its mean frame: {found['psnr_mean_frame']:.1f}"
    )


def _codes(found: Numbers, settings: Any) -> str:
    """Coordinates come back exactly before anything is learned; learned is how surely."""
    return (
        f"a coordinate that comes back costs {found['loss']:.3f} nats; guessing one of "
        f"{settings.model.bins} places: {math.log(settings.model.bins):.2f}; {found['exact']:.1%} "
        "of them are exact"
    )


def _writing(found: Numbers, _: Any) -> str:
    return (
        f"{found['valid']:.0%} of the meshes it writes are sound, {found['agrees']:.0%} are what "
        f"the caption says; a code costs {found['loss']:.2f} nats, without the caption "
        f"{found['loss_without_text']:.2f}"
    )


def _music(found: Numbers, settings: Any) -> str:
    count = settings.sounds.valid_limit
    return (
        f"the right one of {count} is among the first ten in {found['recall_at_10']:.0%} of "
        f"searches; by chance: {min(1.0, 10 / count):.0%}"
    )


def _speech(found: Numbers, _: Any) -> str:
    return (
        f"hidden sound is filled in with an error of {found['mel_error']:.2f}; copying its "
        f"neighbours: {found['mel_error_copied']:.2f}; {found['syllables']:.0%} of syllables "
        f"spoken from text are recognised, {found['syllables_recorded']:.0%} of recorded ones"
    )


STAGES = (
    Stage(
        folder="image",
        recipe="image/vqgan_tiny",
        title="Pictures",
        what="A tokenizer: pictures become a grid of ids, and ids become pictures.",
        steps={"full": 500, "quick": 80},
        seconds={"full": 98, "quick": 16},
        less={"images.valid_limit": 128, "vae.warmup": 20},
        least={"images.valid_limit": 16},
        words=_pictures,
        halfway=True,
    ),
    Stage(
        folder="codes",
        recipe="mesh/autoencoder_tiny",
        title="Mesh codes",
        what="An autoencoder: meshes become codes at their vertices, and codes become meshes.",
        steps={"full": 200, "quick": 60},
        seconds={"full": 28, "quick": 7},
        less={"meshes.valid_limit": 128, "autoencoder.warmup": 20},
        least={"meshes.valid_limit": 16},
        words=_codes,
        halfway=True,
    ),
    Stage(
        folder="writer",
        recipe="mesh/transformer_tiny",
        title="Meshes from text",
        what="A transformer in those codes: it writes new meshes from a sentence.",
        steps={"full": 800, "quick": 140},
        seconds={"full": 155, "quick": 33},
        less={
            "meshes.builtin_count": 1500,
            "meshes.valid_limit": 32,
            "writing.count": 16,
            "transformer.warmup": 30,
        },
        least={"meshes.builtin_count": 64, "meshes.valid_limit": 4, "writing.count": 2},
        words=_writing,
        needs={"autoencoder": "codes"},
    ),
    Stage(
        folder="video",
        recipe="video/tokenizer_tiny",
        title="Clips",
        what="A tokenizer of clips that never looks ahead: ids of a frame need no later one.",
        steps={"full": 330, "quick": 70},
        seconds={"full": 80, "quick": 16},
        less={"videos.valid_limit": 32, "tokenizer.warmup": 20},
        least={"videos.valid_limit": 4},
        words=_clips,
        halfway=True,
    ),
    Stage(
        folder="music",
        recipe="music/mulan_tiny",
        title="Music and text",
        what="Two towers: sounds and sentences meet in one space, where either finds the other.",
        steps={"full": 130, "quick": 36},
        seconds={"full": 81, "quick": 22},
        less={"sounds.valid_limit": 64, "mulan.warmup": 15},
        least={"sounds.valid_limit": 16, "batch_size": 8},
        words=_music,
    ),
    Stage(
        folder="voice",
        recipe="speech/voicebox_tiny",
        title="Speech",
        what="Flow matching: it fills gaps in recordings, and says a text in a voice of choice.",
        steps={"full": 300, "quick": 80},
        seconds={"full": 111, "quick": 32},
        less={"recordings.valid_limit": 24, "speaking.count": 4},
        least={"recordings.valid_limit": 4, "speaking.count": 1, "recordings.builtin_count": 64},
        words=_speech,
    ),
)


def steps_of(stage: Stage, length: Length) -> int:
    return length if isinstance(length, int) else stage.steps[length]


def seconds_of(stage: Stage, length: Length) -> float:
    return 3 if isinstance(length, int) else stage.seconds[length]


def settings_of(stage: Stage, length: Length, demo: Path) -> Recipe:
    """The recipe, cut to the demo's length; its schedule follows the steps."""
    recipe = rooms.recipe_function(stage.recipe)()
    steps = steps_of(stage, length)
    changes: dict[str, Any] = {
        "steps": steps,
        "device": "cpu",
        "save_every": math.ceil(steps / 4),  # what a kill may cost
        "evaluate_every": math.ceil(steps / 2) if stage.halfway and length == "full" else 0,
        "trackers": [],
        **{name: str((demo / folder).resolve()) for name, folder in stage.needs.items()},
    }
    if length != "full":
        changes |= stage.less
    if isinstance(length, int):
        changes |= {"workers": 0, "log_every": 1, **stage.least}
    settings = to_json(recipe)
    for name, value in changes.items():
        *groups, last = name.split(".")
        group = settings
        for key in groups:
            group = group[key]
        group[last] = value
    return from_json(type(recipe), settings)
