"""`quintet doctor`."""

import dataclasses
import importlib
from pathlib import Path

import tyro

from quintet import rooms
from quintet.cli.words import parse, table
from quintet.engine.errors import RunError


@dataclasses.dataclass(kw_only=True)
class Doctor:
    """Say what the machine has, and what is wrong with a folder of data, file by file."""

    room: tyro.conf.Positional[str | None] = None
    """The room that is to read the folder, for example image."""
    data: tyro.conf.Positional[Path | None] = None
    """The folder."""


def doctor(given: list[str]) -> None:
    asked = parse(Doctor, given, "doctor")
    if asked.room is None:
        from quintet.engine.doctor import machine

        table(machine())
        return
    if asked.room not in rooms.rooms() or asked.data is None:
        raise RunError(f"doctor takes a room ({', '.join(rooms.rooms())}) and a folder")
    bad = count = 0
    for _, problem in importlib.import_module(f"quintet.{asked.room}.data").check(asked.data):
        count += 1
        if problem:
            bad += 1
            print(problem)
    print(f"{count} files, {count - bad} sound, {bad} that training would skip")
    if bad == count:
        raise RunError(f"nothing in {asked.data} can be used")
