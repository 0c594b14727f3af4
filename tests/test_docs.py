"""The documentation: the site builds, links and paths exist, commands parse, messages are those of
the source."""

import ast
import dataclasses
import importlib
import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from adopting import adopts
from harness import free_port
from quintet import rooms
from quintet.cli import COMMANDS, common
from quintet.engine import health
from quintet.engine.config import to_json
from quintet.engine.health import PlateauMonitor

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
TINY = [
    name
    for name in rooms.names()
    if name.endswith("_tiny") and not adopts(rooms.recipe_function(name)())
]

Patch = pytest.MonkeyPatch
Command = tuple[str, str]
"""A page, and the arguments of `quintet` on it."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def lines(page: str, language: str) -> list[str]:
    """Lines of the code blocks of a language, with backslash continuations joined."""
    texts = [text.replace("\\\n", " ") for text in blocks(page, language)]
    return [line for text in texts for line in text.splitlines() if line.strip()]


# -- the site -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    ended = subprocess.run(  # with --quiet, --strict would count no warnings
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out


class Loads(HTMLParser):
    """URLs that a browser fetches to show a page, unlike links that a reader follows."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        for name in ("src", "href") if tag != "a" else ():
            if attributes.get("rel") != "canonical" and attributes.get(name):
                self.urls.append(str(attributes[name]))


def test_the_site_builds_without_a_warning(site: Path) -> None:
    built = {path.stem for path in site.glob("*.html")}
    assert {Path(page).stem for page in PAGES} <= built


def test_the_site_loads_nothing_from_third_parties(site: Path) -> None:
    for path in site.glob("*.html"):
        reader = Loads()
        reader.feed(path.read_text(encoding="utf-8"))
        assert [url for url in reader.urls if re.match(r"(\w+:)?//", url)] == [], path.name
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)|@import[^;]*//", styles) == []


# -- links, paths and pictures --------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", PAGES[page])
    assert [link for link in links if not (DOCS / link).is_file()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    """Paths with a folder, from the root, from src/quintet or from docs."""
    spans = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|sh|slurm|toml))`", PAGES[page])
    spans += re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]*)`", PAGES[page])
    spans += re.findall(r"python (benchmarks/\w+\.py)", PAGES[page])
    paths = [span.replace("ROOM", "image") for span in spans]
    roots = (ROOT, ROOT / "src", ROOT / "src/quintet", DOCS)
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


def test_every_entry_of_the_log_has_a_date_and_a_commit() -> None:
    log = (DOCS / "dev/log.md").read_text(encoding="utf-8")
    entries = re.findall(r"^### .*\n\n(.*)", log, re.MULTILINE)
    stamp = re.compile(r"\*20\d\d-\d\d-\d\d, [0-9a-f]{7}.*\*")
    assert entries
    assert [line for line in entries if not stamp.fullmatch(line)] == []


def test_every_image_is_used_small_and_has_an_alt_text() -> None:
    shown = re.findall(r"!\[([^\]]*)\]\(images/([^)]+)\)", "".join(PAGES.values()))
    assert {name for _, name in shown} == {path.name for path in (DOCS / "images").iterdir()}
    assert all(len(alt_text) > 20 for alt_text, _ in shown)
    for path in (DOCS / "images").glob("*-curves.png"):
        assert path.stat().st_size < 40_000
        with Image.open(path) as picture:
            assert picture.width <= 1400


def test_the_pages_stay_short() -> None:
    """Together; what is measured or decided on the way belongs into dev/log.md."""
    words = {page: len(text.split()) for page, text in PAGES.items()}
    longest = sorted(words, key=lambda page: -words[page])[:3]
    shown = ", ".join(f"{page} {words[page]:,}" for page in longest)
    assert sum(words.values()) <= 35_000, f"{sum(words.values()):,} words; the longest: {shown}"


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_parses(page: str) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)


@pytest.mark.parametrize("name", rooms.names())
def test_the_page_of_a_room_states_the_length_of_each_recipe(name: str) -> None:
    recipe = rooms.recipe_function(name)()
    room = name.partition("/")[0]
    page = "scaling" if "_large" in name else room
    batch = recipe.batch_size * recipe.accumulate
    assert f"| {recipe.steps:,} × {batch} |" in PAGES[f"{page}.md"]
    assert f"`{name}`" in PAGES[f"{room}.md"]


# -- commands -------------------------------------------------------------------------------------

OTHER_PROGRAMS = {"curl", "python3", ".venv/bin/pip", ".", "make", "uv", "python"}
"""Programs on the pages beside `quintet` and launchers; tests/ray has the commands of python."""
PLACEHOLDERS = {"RUN": "runs/first", "ROOM/NAME": "image/vqgan", "FOLDER": "photos", "N": "3"}
QUINTET = re.compile(
    r"(?:quintet|(?:torchrun|accelerate launch) .*quintet(?: --)?) (.*?)(?: > \S+)?"
)


def commands() -> list[Command]:
    """In shell blocks, in indented blocks up to a comment, and inline."""
    commands: list[Command] = []
    for page, text in PAGES.items():
        shown = lines(page, "bash") + re.findall(r"`((?:quintet|torchrun)\s[^`]+)`", text)
        shown += re.findall(r"^ {4}(quintet \S.*?)(?:  .*)?$", text, re.MULTILINE)
        matches = [QUINTET.fullmatch(" ".join(line.split())) for line in shown]
        commands += [(page, match[1]) for match in matches if match and "…" not in match[1]]
    return list(dict.fromkeys(commands))


class Parsed(Exception):
    """Raised in place of the action of a command."""


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configurations of the runs that the pages train."""
    folder = tmp_path_factory.mktemp("docs")
    for _, text in commands():
        arguments = shlex.split(text)
        if arguments[0] == "train" and "--run" in arguments:
            run = folder / arguments[arguments.index("--run") + 1]
            if run.is_relative_to(folder):
                run.mkdir(parents=True, exist_ok=True)
                settings = to_json(rooms.recipe_function(arguments[1])())
                about = {"recipe": arguments[1], "settings": settings}
                (run / "config.json").write_text(json.dumps(about))
    return folder


DIFFERENT = [*{text: (page, text) for page, text in commands()}.values()]
"""What several pages show is the same to the parser."""


@pytest.mark.parametrize("command", DIFFERENT, ids=lambda command: f"{command[0]}: {command[1]}")
def test_every_command_parses(command: Command, workdir: Path, monkeypatch: Patch) -> None:
    verb, *arguments = [PLACEHOLDERS.get(word, word) for word in shlex.split(command[1])]
    assert verb in COMMANDS
    if not arguments:
        return  # the text mentions the command
    name, _, function = COMMANDS[verb].partition(":")
    module = importlib.import_module(f"quintet.cli.{name}")
    run_command = getattr(module, function or verb)

    def parse_and_stop(*values: Any) -> None:
        common.parse(*values)
        raise Parsed

    monkeypatch.chdir(workdir)
    monkeypatch.setattr(module, "parse", parse_and_stop)
    if "--help" in arguments:
        run_command(arguments)
        return
    expected = SystemExit if "--help-all" in arguments else Parsed  # the parser exits after help
    with pytest.raises(expected):
        run_command(arguments)


@pytest.mark.parametrize("wrong", ["train image/vqgan --stepz 3", "resume runs/first --rate 1"])
def test_a_wrong_command_does_not_parse(wrong: str, workdir: Path, monkeypatch: Patch) -> None:
    with pytest.raises(SystemExit):
        test_every_command_parses(("", wrong), workdir, monkeypatch)


def test_every_shell_line_is_checked() -> None:
    for page in PAGES:
        for line in lines(page, "bash"):
            known = QUINTET.fullmatch(" ".join(line.split())) or line.split()[0] in OTHER_PROGRAMS
            assert known or line.startswith("--8<--"), f"{page}: {line}"


# -- messages -------------------------------------------------------------------------------------


@cache
def templates() -> list[tuple[str, str]]:
    """Every string of the source as a pattern, with a wildcard for each formatted value, behind the
    longest of its words that a message must contain."""
    texts: set[str] = set()
    for path in (ROOT / "src/quintet").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values]
                texts.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
    messages = [t for t in texts if len(re.findall(r"[a-z]", t)) >= 5 and "\n" not in t]
    parts = [text.split("\0") for text in messages]
    return [(max(each, key=len), ".*".join(map(re.escape, each))) for each in parts]


def is_in_the_source(line: str) -> bool:
    """Few patterns are compiled: thousands would take longer than all else here."""
    return any(part in line and re.fullmatch(pattern, line) for part, pattern in templates())


SAME_MONITORS = ("image/autoencoder_tiny", "video/autoencoder_tiny", "video/tokenizer_tiny")
"""Recipes with those of image/vqgan_tiny, or fewer."""


@cache
def monitors() -> list[PlateauMonitor]:
    """Monitors of every room, built as in a run; those of each part once, for `PART`."""
    from quintet.engine.machine.world import World

    alone = [n for n in TINY if n not in SAME_MONITORS and not rooms.recipe_function(n)().stages]
    tasks: dict[str, Any] = {n: rooms.build(rooms.recipe_function(n)()) for n in alone}
    recipe = rooms.recipe_function("mesh/transformer_tiny")()
    with tempfile.TemporaryDirectory() as coder:
        tasks["mesh/autoencoder_tiny"].parts["autoencoder"].network.save_pretrained(coder)
        built_on = dataclasses.replace(recipe, autoencoder=coder)
        tasks["mesh/transformer_tiny"] = rooms.build(built_on)
    music = tasks["music/mulan_tiny"]
    music.prepare(World(music.recipe))  # its monitor depends on the global batch size
    every: list[Any] = health.default_monitors(["PART"])
    sounds = ("period_discriminator", "resolution_discriminator")  # as those of pictures
    own = [monitor for task in tasks.values() for monitor in task.monitors]
    return every + [m for m in own if m.metric.partition("/")[0] not in sounds]


def said(monitor: PlateauMonitor) -> str:
    """Its sentence, with … for the value."""
    stayed = f"has stayed at … for {monitor.patience} reports"
    return f"health: {monitor.metric} {stayed}: {monitor.cause}"


MESSAGES = [(page, line) for page in PAGES for line in lines(page, "text")]


@pytest.mark.parametrize(
    "message", MESSAGES, ids=lambda message: f"{message[0]}: {message[1][:60]}"
)
def test_every_message_is_in_the_source(message: Command) -> None:
    line = message[1]
    if line.startswith("health: ") and not line.startswith("health: …"):
        line = line.replace("vae/update_ratio", "PART/update_ratio")
        assert line in {said(monitor) for monitor in monitors()}
    else:
        assert is_in_the_source(line), line


def band(monitor: PlateauMonitor) -> str:
    low, high = monitor.low, monitor.high
    if high == float("inf"):
        return f"{low:g} or more"
    if low == float("-inf") or low == -1.0:
        return f"{high:g} or less".replace("e-0", "e-")
    if low == -high:
        return f"within {high:g} of 0"
    return f"within {(high - low) / 2:g} of the chance-level loss"


def test_the_table_of_monitors_matches_the_code() -> None:
    table = PAGES["health.md"].split("## The monitors")[1].split("\n\n")[1]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    shown = [(row[1].strip("`"), row[2], int(row[3].split()[0]), row[4]) for row in rows]
    assert sorted(shown) == sorted((m.metric, band(m), m.patience, m.cause) for m in monitors())


# -- scaling out ----------------------------------------------------------------------------------

SMALL = [
    *("--workers", "0", "--batch-size", "2", "--images.valid-limit", "4", "--device", "cpu"),
    *("--evaluate-every", "0", "--images.size", "32", "32", "--model.dim", "16"),
    *("--discriminator.dim", "8"),
]
HERE = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
LAUNCHED = [
    line
    for line in lines("scaling.md", "bash")
    if re.match(r"(torchrun|accel).* train", line) and "_large" not in line
]
BIN = Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.parametrize("line", LAUNCHED)
def test_launchers_start_two_processes_as_shown(line: str, tmp_path: Path) -> None:
    """A command for two nodes is started twice, with one process each."""
    nodes = 2 if "--nnodes 2" in line else 1
    for shown, here in {
        "--nproc-per-node 8": f"--nproc-per-node {2 // nodes}",
        "--num_processes 8": "--num_processes 2",
        "node0:29500": f"127.0.0.1:{free_port()}",
        "image/vqgan /shared/photos": "image/vqgan_tiny",
        "image/vqgan photos": "image/vqgan_tiny",
        "/shared/runs": "runs",
    }.items():
        line = line.replace(shown, here)
    command = [str(BIN / line.split()[0]), *shlex.split(line)[1:], "--steps", "2", *SMALL]
    with (tmp_path / "log").open("w") as log:
        run = partial(subprocess.Popen, command, cwd=tmp_path, env=HERE, stdout=log, stderr=log)
        ended = [process.wait(timeout=200) for process in [run() for _ in range(nodes)]]
    assert ended == [0] * nodes, (tmp_path / "log").read_text()
    about = json.loads((tmp_path / "runs/many/config.json").read_text())
    assert (about["processes"], about["global_batch"]) == (2, 4)


# -- reference tables -----------------------------------------------------------------------------

REFERENCE = runpy.run_path(str(DOCS / "dev/reference.py"))


@pytest.mark.parametrize("page", PAGES)
def test_reference_tables_are_those_of_the_code(page: str) -> None:
    assert PAGES[page] == REFERENCE["filled"](PAGES[page]), "run python docs/dev/reference.py"


def test_every_reference_table_is_on_a_page() -> None:
    shown = re.findall(r"<!-- reference:(\w+) -->", "".join(PAGES.values()))
    assert sorted(shown) == sorted(REFERENCE["TABLES"])


def test_every_environment_variable_of_quintet_is_listed() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = {name for text in sources for name in re.findall(r"\bQUINTET_[A-Z_]+\b", text)}
    assert named <= {*REFERENCE["ENVIRONMENT"]}


# -- curves ---------------------------------------------------------------------------------------


CURVES = runpy.run_path(str(ROOT / "benchmarks/curves.py"))


def test_every_tiny_recipe_has_curves() -> None:
    assert sorted(CURVES["PANELS"]) == sorted(TINY)


@pytest.mark.by_default(
    "image/vqgan_tiny",
    "mesh/transformer_tiny",
    "music/mulan_tiny",
    "speech/voicebox_tiny",
    "video/flow_tiny",
)
@pytest.mark.parametrize("name", TINY)
def test_curves_are_drawn_from_reports(name: str) -> None:
    panels = CURVES["PANELS"][name]
    metrics = [metric for panel in panels for metric in panel.lines]
    rising = [{"step": 10 * n, **dict.fromkeys(metrics, n)} for n in range(1, 9)]
    falling = [{"step": 10 * n, **dict.fromkeys(metrics, 9 - n)} for n in range(1, 9)]
    first, second = (CURVES["picture"](rows, panels).tobytes() for rows in (rising, falling))
    assert first != second
    if name == TINY[0]:
        assert CURVES["picture"](rising, panels).tobytes() == first


def test_a_run_without_the_metrics_is_an_error() -> None:
    with pytest.raises(SystemExit, match="the run has no metric"):
        CURVES["picture"]([{"step": 1}], CURVES["PANELS"][TINY[0]])
