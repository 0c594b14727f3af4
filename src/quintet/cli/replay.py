"""`quintet replay`."""

import dataclasses
import json
from pathlib import Path

import tyro

from quintet import rooms
from quintet.cli.common import (
    need_data,
    parse,
    recorded,
    table,
)


@dataclasses.dataclass(kw_only=True)
class Replay:
    """Take one step again from the checkpoint before it; show its losses and its samples."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    step: int
    """The step to take again: the one that brought the run to this number."""


def replay(given: list[str]) -> None:
    from quintet.engine.runs.folder import finite
    from quintet.engine.tools.replay import replay as again

    asked = parse(Replay, given, "replay")
    name, recipe = recorded(asked.run)
    need_data(recipe, asked.run, "its steps cannot be replayed from the command line")
    found = again(
        lambda settings: rooms.build(name, settings, asked.run), recipe, asked.run, asked.step
    )
    table(found.losses)
    print(f"samples: {', '.join(found.samples)}")
    line = {"step": asked.step, "losses": finite(found.losses), "samples": found.ids}
    print(json.dumps(line, allow_nan=False))
