"""What steps and generation are to reach on one H200 (docs/performance.md). A benchmark on a GPU
prints what it missed, and ends with status 1 then."""

from collections.abc import Mapping
from typing import Any

import torch

AT_MOST = ("ms", "seconds_to_tenth_step", "seconds_4000")
"""Fields that are to be small; others are to be large."""
START = {"seconds_to_tenth_step": 15.0}
GOALS: dict[str, dict[str, float]] = {
    "image/vqgan": {"ms": 30.0, **START},
    "video/tokenizer": {"ms": 30.0, **START},
    "speech/voicebox": {"ms": 22.0},
    "music/mulan": {"ms": 50.0},
    "image_speed": {"share_of_matrix_rate": 0.48},
    "video_speed": {"share_of_matrix_rate": 0.28},
    "music_speed": {"share_of_matrix_rate": 0.48},
    "speech_speed": {"share_of_matrix_rate": 0.45},
    "autoencoder": {"share_of_matrix_rate": 0.38},
    "transformer": {"share_of_matrix_rate": 0.38},
    "generation": {"batch_1": 5_000, "batch_8": 35_000, "batch_32": 130_000},
    "mesh/retopology": {"batch_8": 30_000, "seconds_4000": 60.0},
    "mesh/retopology_large": {"seconds_4000": 60.0},
    "flow sample": {"pictures_per_second": 250.0, "share_of_matrix_rate": 0.4},
    "flow few": {"pictures_per_second": 2500.0},
    "flow train": {"share_of_matrix_rate": 0.48},
    "maskgit sample": {"pictures_per_second": 300.0},
    "maskgit train": {"share_of_matrix_rate": 0.4},
}


def missed(name: str, row: Mapping[str, Any]) -> list[str]:
    """What a row of a benchmark at its full size lacks; nothing without a GPU."""
    return short_of(name, row) if torch.cuda.is_available() else []


def short_of(name: str, row: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for field, goal in GOALS.get(name, {}).items():
        value = row.get(field)
        if value is None or (value > goal if field in AT_MOST else value < goal):
            found.append(f"{name}: {field} is {value}, to reach {goal:g}")
    return found
