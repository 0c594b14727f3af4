"""Help fits on a screen, begins with an example, is consistent across recipes, and is instant."""

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

from quintet import rooms
from quintet.cli import COMMANDS
from quintet.engine.config import Recipe, to_json
from quintet.engine.settings import descriptions as setting_descriptions

LINES, COLUMNS = 40, 100
TINY = [name for name in rooms.names() if name.endswith("_tiny")]


@pytest.fixture(autouse=True)
def _screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def assert_fits(text: str, first: str, most: int = LINES) -> None:
    lines = text.rstrip().splitlines()
    assert lines[0].strip().startswith(first), lines[0]
    assert len(lines) <= most, f"{len(lines)} lines"
    assert max(map(len, lines)) <= COLUMNS, max(lines, key=len)


# -- size -----------------------------------------------------------------------------------------


def test_the_overview_fits_on_a_screen_and_begins_with_an_example(quintet: Quintet) -> None:
    assert_fits(quintet("--help").out, "quintet ")


def test_the_overview_names_every_family_and_uses_runs_in_the_order_of_their_making(
    quintet: Quintet,
) -> None:
    lines = quintet("--help").out.splitlines()
    for room in rooms.rooms():
        (line,) = (line for line in lines if line.startswith(f"  {room} "))
        named = {word.strip(",") for word in line.split()[1:]}
        assert named == {family.name for family in rooms.Room(room).families}
    trained: set[str] = set()
    for line in lines:
        runs = set(re.findall(r"runs/[a-z]\b", line)) if line.startswith("  quintet") else set()
        new = set(re.findall(r"--run (runs/[a-z])", line))
        assert runs - new <= trained, line
        trained |= new


def test_the_learning_rate_and_the_stages_are_among_the_first_flags(quintet: Quintet) -> None:
    for name in ("image/vqgan", "mesh/transformer", "speech/voicebox"):
        rows = re.findall(r"^  (--[a-z.-]+)", quintet("train", name, "--help").out, re.MULTILINE)
        stages = [f"--{stage}" for stage in rooms.recipe_function(name)().stages]
        expected = [*stages, "--steps", "--optim.learning-rate"]
        assert rows[3 : 3 + len(expected)] == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_fits_on_a_screen_and_begins_with_an_example(
    command: str, quintet: Quintet
) -> None:
    answer = quintet(command, "--help")
    assert answer.status == 0
    assert_fits(answer.out, f"quintet {command}")


@pytest.mark.parametrize("name", rooms.names())
def test_help_of_a_recipe_fits_on_a_screen_and_names_help_all(name: str, quintet: Quintet) -> None:
    answer = quintet("train", name, "--help")
    assert answer.status == 0
    assert_fits(answer.out, f"quintet train {name} ")
    assert f"quintet train {name} --help-all" in answer.out


@pytest.mark.by_default(
    "*image/vqgan_tiny",
    "*mesh/transformer_tiny",
    "*music/mulan_tiny",
    "*speech/voicebox_tiny",
    "*video/tokenizer_tiny",
)
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("command", ["sample", "resume"])
def test_help_of_a_run_fits_on_a_screen_in_every_room(
    command: str, name: str, tmp_path: Path, quintet: Quintet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_of(name, tmp_path).parent)
    answer = quintet(command, "run", "--help")
    assert answer.status == 0
    assert_fits(answer.out, f"quintet {command} run ", 50 if "voicebox" in name else LINES)


def run_of(name: str, folder: Path) -> Path:
    """What of a run its help reads."""
    about = {"recipe": name, "settings": to_json(rooms.recipe_function(name)())}
    (folder / "run").mkdir()
    (folder / "run/config.json").write_text(json.dumps(about))
    return folder / "run"


# -- completeness and consistency ----------------------------------------------------------------


def flags_of(settings: Any, prefix: str = "") -> list[str]:
    flags: list[str] = []
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{prefix}{field.name.replace('_', '-')}"
        flags += flags_of(value, f"{name}.") if dataclasses.is_dataclass(value) else [f"--{name}"]
    return flags


@pytest.mark.by_default(
    "image/vqgan_tiny",
    "mesh/transformer_tiny",
    "music/adopt_tiny",
    "speech/voicebox_tiny",
    "video/maskgit_tiny",
)
@pytest.mark.parametrize("name", TINY)
def test_help_all_describes_every_setting(name: str, quintet: Quintet) -> None:
    answer = quintet("train", name, "--help-all")
    assert answer.status == 0
    assert answer.out.startswith(f"  quintet train {name} ")
    shown = set(re.findall(r"--[a-z][a-z0-9.-]*", answer.out))
    assert [flag for flag in flags_of(rooms.recipe_function(name)()) if flag not in shown] == []


@pytest.mark.by_default(
    "image/adopt_tiny",
    "mesh/retopology_tiny",
    "music/mulan_tiny",
    "speech/vocoder_tiny",
    "video/flow_tiny",
)
@pytest.mark.parametrize("name", TINY)
def test_a_run_has_the_flags_of_its_own_model_alone(
    name: str, tmp_path: Path, quintet: Quintet
) -> None:
    run = run_of(name, tmp_path)
    flags = rooms.family_of(rooms.recipe_function(name)()).sample.Flags()
    own = {flag.removesuffix("-") for flag in flags_of(flags)}
    rows = re.findall(
        r"^[│ ]+(-h, )?(--[a-z][a-z-]*)", quintet("sample", run, "--help").out, re.MULTILINE
    )
    assert {flag for _, flag in rows} == {"--help", "--out", "--step", *own}
    for foreign in {"--text", "--any-model", "--seconds"} - own:
        answer = quintet("sample", run, foreign, "1")
        assert answer.status == 2
        assert foreign in answer.err


def descriptions(text: str) -> dict[str, str]:
    """Flags of a recipe's short help and their descriptions, without recipe-specific values."""
    rows = re.findall(r"^  (DATA|--[a-z-]+)[^\n]*? {2,}(\S[^\n]*)$", text, re.MULTILINE)
    return {flag: re.sub(r"runs/[\w-]+", "RUN", sentence) for flag, sentence in rows}


def test_all_recipes_describe_shared_flags_alike(quintet: Quintet) -> None:
    helps = {name: descriptions(quintet("train", name, "--help").out) for name in rooms.names()}
    shared = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Recipe)}
    common = {"DATA", "--run", "--resume", *shared}
    first = next(iter(helps.values()))
    assert {"DATA", "--run", "--resume", "--steps", "--batch-size", "--device"} <= set(first)
    for name, flags in helps.items():
        same = {flag: sentence for flag, sentence in flags.items() if flag in common}
        assert same == {flag: first[flag] for flag in first if flag in common}, name


def test_no_recipe_redefines_a_shared_setting() -> None:
    shared = setting_descriptions(Recipe)
    fields = {field.name for field in dataclasses.fields(Recipe)}
    assert fields <= set(shared)
    for name in rooms.names():
        kind = type(rooms.recipe_function(name)())
        assert {f: setting_descriptions(kind)[f] for f in fields} == {f: shared[f] for f in fields}
        hints = {f.name: f.type for f in dataclasses.fields(kind)}
        assert {f.name: f.type for f in dataclasses.fields(Recipe)}.items() <= hints.items()


# -- speed ---------------------------------------------------------------------------------------


def cpu_seconds(*arguments: str) -> float:
    """CPU time of a fresh process; unlike wall time it does not depend on the load."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_overview_takes_half_a_second_at_most_and_imports_no_torch() -> None:
    command = ("-X", "importtime", "-m", "quintet", "--help")
    ended = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True)
    loaded = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "quintet.cli" in loaded
    assert not {"torch", "tyro", "numpy"} & loaded
    machine = cpu_seconds("-c", "import argparse, asyncio, email.message")  # a third of it
    limit = max(0.5, 4 * machine)
    assert any(
        cpu_seconds("-m", "quintet", "--help") < limit for _ in range(6)
    )  # others disturb it
