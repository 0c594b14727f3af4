"""Help fits a screen, begins with an example, says the same of the same, and is there at once."""

import dataclasses
import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import Quintet

import quintet as library
from quintet import rooms
from quintet.cli import COMMANDS
from quintet.cli.words import sentences
from quintet.engine.config import Recipe, to_json

LINES, COLUMNS = 40, 100
TINY = [name for name in rooms.names() if name.endswith("_tiny")]
TRAINERS = [name for name in library.__all__ if name.endswith("Trainer")]


@pytest.fixture(autouse=True)
def _screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def assert_fits(text: str, first: str) -> None:
    lines = text.rstrip().splitlines()
    assert lines[0].strip().startswith(first), lines[0]
    assert len(lines) <= LINES, f"{len(lines)} lines"
    assert max(map(len, lines)) <= COLUMNS, max(lines, key=len)


# -- it fits --------------------------------------------------------------------------------------


def test_the_overview_fits_a_screen_and_begins_with_an_example(quintet: Quintet) -> None:
    assert_fits(quintet("--help").out, "quintet ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_fits_a_screen_and_begins_with_an_example(
    command: str, quintet: Quintet
) -> None:
    said = quintet(command, "--help")
    assert said.status == 0
    assert_fits(said.out, f"quintet {command}")


@pytest.mark.parametrize("name", rooms.names())
def test_help_of_a_recipe_fits_a_screen_and_points_to_the_rest(name: str, quintet: Quintet) -> None:
    said = quintet("train", name, "--help")
    assert said.status == 0
    assert_fits(said.out, f"quintet train {name} ")
    assert f"quintet train {name} --help-all" in said.out


@pytest.mark.parametrize("name", TINY)
def test_help_of_sampling_fits_a_screen_in_every_room(
    name: str, tmp_path: Path, quintet: Quintet, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"recipe": name, "settings": to_json(rooms.recipe_function(name)())}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(about))
    monkeypatch.chdir(tmp_path)
    said = quintet("sample", "run", "--help")
    assert said.status == 0
    assert_fits(said.out, "quintet sample run ")


# -- it says all, and the same of the same --------------------------------------------------------


def leaves(settings: Any, at: str = "") -> list[str]:
    found: list[str] = []
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{at}{field.name.replace('_', '-')}"
        found += leaves(value, f"{name}.") if dataclasses.is_dataclass(value) else [f"--{name}"]
    return found


@pytest.mark.parametrize("name", TINY)
def test_all_help_explains_every_setting(name: str, quintet: Quintet) -> None:
    said = quintet("train", name, "--help-all")
    assert said.status == 0
    assert said.out.startswith(f"  quintet train {name} ")
    shown = set(re.findall(r"--[a-z][a-z0-9.-]*", said.out))
    assert [flag for flag in leaves(rooms.recipe_function(name)()) if flag not in shown] == []


def explained(text: str) -> dict[str, str]:
    """Flags of a recipe's short help and their sentences, without the recipe's own values."""
    rows = re.findall(r"^  (FOLDER|--[a-z-]+)[^\n]*? {2,}(\S[^\n]*)$", text, re.MULTILINE)
    return {flag: re.sub(r"runs/[\w-]+", "RUN", sentence) for flag, sentence in rows}


def test_all_trainers_answer_the_same_flags_with_the_same_words(quintet: Quintet) -> None:
    helps = {name: explained(quintet("train", name, "--help").out) for name in rooms.names()}
    shared = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Recipe)}
    common = {"FOLDER", "--run", "--continue", *shared}
    first = next(iter(helps.values()))
    assert {"FOLDER", "--run", "--continue", "--steps", "--batch-size", "--device"} <= set(first)
    for name, flags in helps.items():
        same = {flag: sentence for flag, sentence in flags.items() if flag in common}
        assert same == {flag: first[flag] for flag in first if flag in common}, name


def test_no_recipe_says_anything_else_of_a_setting_that_all_have() -> None:
    said = sentences(Recipe)
    fields = {field.name for field in dataclasses.fields(Recipe)}
    assert fields <= set(said)
    for name in rooms.names():
        kind = type(rooms.recipe_function(name)())
        assert {f: sentences(kind)[f] for f in fields} == {f: said[f] for f in fields}
        hints = {f.name: f.type for f in dataclasses.fields(kind)}
        assert {f.name: f.type for f in dataclasses.fields(Recipe)}.items() <= hints.items()


# -- it is there at once --------------------------------------------------------------------------


def cpu_seconds(*words: str) -> float:
    """Of a fresh process: unlike the clock it does not depend on who else is at work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_overview_takes_less_than_half_a_second_and_no_torch() -> None:
    asked = ("-X", "importtime", "-m", "quintet", "--help")
    ended = subprocess.run([sys.executable, *asked], check=True, capture_output=True, text=True)
    loaded = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "quintet.cli" in loaded
    assert not {"torch", "tyro", "numpy"} & loaded
    assert min(cpu_seconds("-m", "quintet", "--help") for _ in range(2)) < 0.5


IMPORT = f"""
import json, time
started = time.process_time()
import torch
loaded = time.process_time()
from quintet import {", ".join(TRAINERS)}
print(json.dumps([loaded - started, time.process_time() - loaded]))
"""


def test_all_trainers_together_load_in_less_than_two_seconds_beyond_torch() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True)
    torch_alone, beyond = json.loads(ended.stdout)
    slow = max(1.0, torch_alone / 2)  # where torch itself takes more than two seconds
    assert beyond < 2 * slow, f"{beyond:.2f} s beyond torch's own {torch_alone:.2f}"
