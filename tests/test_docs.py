"""What the documentation says is so: it builds, its links lead somewhere, its commands parse, its
messages are those of the source, and its example for Slurm stops, queues again and goes on."""

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

from harness import free_port
from quintet import rooms
from quintet.cli import COMMANDS, words
from quintet.engine.config import to_json
from quintet.engine.health import Resting, common

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
SLURM = DOCS / "examples/train.slurm"
TINY = [name for name in rooms.names() if name.endswith("_tiny")]

Patch = pytest.MonkeyPatch
Command = tuple[str, str]
"""A page, and what stands there after the word `quintet`."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def lines(page: str, language: str) -> list[str]:
    """Those of the blocks of a language; one that ends in a backslash goes on in the next."""
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
    """What a browser fetches by itself to show a page, unlike links that a reader follows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        for name in ("src", "href") if tag != "a" else ():
            if named.get("rel") != "canonical" and named.get(name):
                self.found.append(str(named[name]))


def test_the_site_builds_without_a_warning(site: Path) -> None:
    made = {path.stem for path in site.glob("*.html")}
    assert {Path(page).stem for page in PAGES} <= made


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.glob("*.html"):
        reader = Loads()
        reader.feed(path.read_text(encoding="utf-8"))
        assert [url for url in reader.found if re.match(r"(\w+:)?//", url)] == [], path.name
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)|@import[^;]*//", styles) == []


# -- links, paths and pictures --------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", PAGES[page])
    assert [link for link in links if not (DOCS / link).is_file()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_is_named_is_there(page: str) -> None:
    """Files of the code with a folder before them, as src/quintet/…, or from there on."""
    spans = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|sh|slurm|toml))`", PAGES[page])
    spans += re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]*)`", PAGES[page])
    spans += re.findall(r"python (benchmarks/\w+\.py)", PAGES[page])
    named = [span.replace("ROOM", "image") for span in spans]
    places = (ROOT, ROOT / "src", ROOT / "src/quintet", DOCS)
    assert [path for path in named if not any((place / path).exists() for place in places)] == []


def test_every_picture_is_shown_small_and_described() -> None:
    shown = re.findall(r"!\[([^\]]*)\]\(images/([^)]+)\)", "".join(PAGES.values()))
    assert {name for _, name in shown} == {path.name for path in (DOCS / "images").iterdir()}
    assert all(len(described) > 20 for described, _ in shown)
    for path in (DOCS / "images").glob("*-curves.png"):
        assert path.stat().st_size < 40_000
        with Image.open(path) as picture:
            assert picture.width <= 1400


@pytest.mark.parametrize("page", PAGES)
def test_code_that_is_shown_is_python(page: str) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)


@pytest.mark.parametrize("name", rooms.names())
def test_the_length_of_a_recipe_is_what_its_page_says(name: str) -> None:
    recipe = rooms.recipe_function(name)()
    assert f"| {recipe.steps:,} × {recipe.batch_size} |" in PAGES[f"{rooms.room_of(name)}.md"]


# -- commands -------------------------------------------------------------------------------------

PLAIN = {"python3", ".venv/bin/pip", ".", "make"}
"""What the pages call beside `quintet` and launchers."""
STANDS_FOR = {"RUN": "runs/first", "ROOM/NAME": "image/vqgan", "FOLDER": "photos", "N": "3"}
STARTED = re.compile(r"(?:quintet|(?:torchrun|accelerate launch) .*quintet(?: --)?) (.*)")


def commands() -> list[Command]:
    """In blocks of shell, in indented ones up to a remark, and within the text."""
    found: list[Command] = []
    for page, text in PAGES.items():
        shown = lines(page, "bash") + re.findall(r"`((?:quintet|torchrun)\s[^`]+)`", text)
        shown += re.findall(r"^ {4}(quintet \S.*?)(?:  .*)?$", text, re.MULTILINE)
        started = [STARTED.fullmatch(" ".join(line.split())) for line in shown]
        found += [(page, match[1]) for match in started if match and "…" not in match[1]]
    return list(dict.fromkeys(found))


class Parsed(Exception):
    """Raised in place of what a command would do next."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs that the pages train, as far as their configuration."""
    folder = tmp_path_factory.mktemp("docs")
    for _, text in commands():
        given = shlex.split(text)
        if given[0] == "train" and "--run" in given:
            run = folder / given[given.index("--run") + 1]
            if run.is_relative_to(folder):
                run.mkdir(parents=True, exist_ok=True)
                about = {"recipe": given[1], "settings": to_json(rooms.recipe_function(given[1])())}
                (run / "config.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize("command", commands(), ids=lambda command: f"{command[0]}: {command[1]}")
def test_every_command_parses(command: Command, place: Path, monkeypatch: Patch) -> None:
    given = [STANDS_FOR.get(word, word) for word in shlex.split(command[1])]
    assert given[0] in COMMANDS
    if len(given) == 1:
        return  # the text speaks of the command and does not give it
    name, _, function = COMMANDS[given[0]].partition(":")
    module = importlib.import_module(f"quintet.cli.{name}")
    command_itself = getattr(module, function or given[0])

    def parse_and_stop(*arguments: Any) -> None:
        words.parse(*arguments)
        raise Parsed

    monkeypatch.chdir(place)
    monkeypatch.setattr(module, "parse", parse_and_stop)
    if "--help" in given:
        command_itself(given[1:])
        return
    wanted = SystemExit if "--help-all" in given else Parsed  # the parser's own help ends there
    with pytest.raises(wanted):
        command_itself(given[1:])


@pytest.mark.parametrize("wrong", ["train image/vqgan --stepz 3", "resume runs/first --rate 1"])
def test_a_wrong_command_is_noticed(wrong: str, place: Path, monkeypatch: Patch) -> None:
    with pytest.raises(SystemExit):
        test_every_command_parses(("", wrong), place, monkeypatch)


def test_no_line_of_shell_is_left_unchecked() -> None:
    for page in PAGES:
        for line in lines(page, "bash"):
            known = STARTED.fullmatch(" ".join(line.split())) or line.split()[0] in PLAIN
            assert known or line.startswith("--8<--"), f"{page}: {line}"


# -- messages -------------------------------------------------------------------------------------


@cache
def templates() -> list[re.Pattern[str]]:
    """Every sentence in the source, with anything where a value is put in."""
    found: set[str] = set()
    for path in (ROOT / "src/quintet").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values]
                found.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    said = [text for text in found if len(re.findall(r"[a-z]", text)) >= 5 and "\n" not in text]
    return [re.compile(".*".join(map(re.escape, text.split("\0")))) for text in said]


@cache
def monitors() -> list[Resting]:
    """Those of every room, made as a run makes them; those of each part once, for `PART`."""
    from quintet.engine.world import World

    alone = [name for name in TINY if name not in ("mesh/transformer_tiny", "video/tokenizer_tiny")]
    tasks: dict[str, Any] = {n: rooms.build(n, rooms.recipe_function(n)()) for n in alone}
    recipe = rooms.recipe_function("mesh/transformer_tiny")()
    with tempfile.TemporaryDirectory() as coder:
        tasks["mesh/autoencoder_tiny"].parts["autoencoder"].network.save_pretrained(coder)
        built_on = dataclasses.replace(recipe, autoencoder=coder)
        tasks["mesh/transformer_tiny"] = rooms.build("mesh/transformer_tiny", built_on)
    music = tasks["music/mulan_tiny"]
    music.prepare(World(music.recipe))  # only there the batch, and what it rests at, is known
    every: list[Any] = common(["PART"])
    return every + [monitor for task in tasks.values() for monitor in task.monitors]


def said(monitor: Resting) -> str:
    """Its sentence, with … for the value."""
    rested = f"has rested at … for {monitor.patience} reports"
    return f"health: {monitor.metric} {rested}: {monitor.cause}"


MESSAGES = [(page, line) for page in PAGES for line in lines(page, "text")]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda found: f"{found[0]}: {found[1][:60]}")
def test_every_message_is_one_of_the_source(message: Command) -> None:
    line = message[1]
    if line.startswith("health: ") and not line.startswith("health: …"):
        line = line.replace("vae/update_ratio", "PART/update_ratio")
        assert line in {said(monitor) for monitor in monitors()}
    else:
        assert any(template.fullmatch(line) for template in templates()), line


def band(monitor: Resting) -> str:
    low, high = monitor.low, monitor.high
    if high == float("inf"):
        return f"{low:g} or more"
    if low == float("-inf") or low == -1.0:
        return f"{high:g} or less".replace("e-0", "e-")
    if low == -high:
        return f"within {high:g} of 0"
    return f"within {(high - low) / 2:g} of the loss of no learning"


def test_the_table_of_monitors_is_that_of_the_code() -> None:
    table = PAGES["health.md"].split("## The monitors")[1].split("\n\n")[1]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    shown = [(row[1].strip("`"), row[2], int(row[3].split()[0]), row[4]) for row in rows]
    assert sorted(shown) == sorted((m.metric, band(m), m.patience, m.cause) for m in monitors())


# -- scaling out ----------------------------------------------------------------------------------

SRUN = """#!/bin/bash
export SLURM_NTASKS=2
SLURM_PROCID=0 SLURM_LOCALID=0 "$@" & first=$!
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" & second=$!
if [ ! -e stopped ]; then
    until compgen -G 'run/checkpoints/step-*' > /dev/null; do sleep 0.1; done
    touch stopped
    kill -TERM $first $second
fi
wait $first; one=$?
wait $second; two=$?
exit $((one > two ? one : two))
"""
SCONTROL = '#!/bin/bash\nif [ "$1" = requeue ]; then echo "$2" >> queued; else echo 127.0.0.1; fi\n'


def test_the_script_for_slurm_is_sound_shell() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    asked = re.findall(r"^#SBATCH --([\w-]+)", SLURM.read_text(encoding="utf-8"), re.MULTILINE)
    assert {"signal", "requeue", "ntasks-per-node", "open-mode"} <= set(asked)


SMALL = [
    *("--workers", "0", "--batch-size", "2", "--images.valid-limit", "4", "--device", "cpu"),
    *("--evaluate-every", "0", "--images.size", "32", "32", "--model.dim", "16"),
    *("--discriminator.dim", "8"),
]
HERE = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
LAUNCHED = [
    line for line in lines("scaling.md", "bash") if re.match(r"(torchrun|accel).* train", line)
]
BIN = Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.parametrize("line", LAUNCHED)
def test_launchers_start_two_processes_as_shown(line: str, tmp_path: Path) -> None:
    """A command for two nodes is given twice, for one process each."""
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
    asked = [str(BIN / line.split()[0]), *shlex.split(line)[1:], "--steps", "2", *SMALL]
    with (tmp_path / "log").open("w") as log:
        run = partial(subprocess.Popen, asked, cwd=tmp_path, env=HERE, stdout=log, stderr=log)
        ended = [process.wait(timeout=200) for process in [run() for _ in range(nodes)]]
    assert ended == [0] * nodes, (tmp_path / "log").read_text()
    about = json.loads((tmp_path / "runs/many/config.json").read_text())
    assert (about["processes"], about["global_batch"]) == (2, 4)


@pytest.mark.slow
def test_a_slurm_job_that_is_told_to_stop_queues_again_and_goes_on(tmp_path: Path) -> None:
    """With programs in the place of srun and scontrol that start two processes here."""
    (tmp_path / "bin").mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o700)
    lasting = ["--steps", "40", "--save-every", "3"]
    path = os.pathsep.join([str(tmp_path / "bin"), str(BIN), os.defpath])
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "here", "PATH": path}

    def turn() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(SLURM), "image/vqgan_tiny", "--run", "run", *lasting, *SMALL],
            cwd=tmp_path,
            env={**HERE, **job},
            capture_output=True,
            text=True,
            timeout=200,
        )

    first = turn()
    assert first.returncode == 143, first.stderr
    assert "by SIGTERM; the state is saved" in first.stderr
    assert (tmp_path / "queued").read_text().split() == [job["SLURM_JOB_ID"]]
    second = turn()
    assert second.returncode == 0, second.stderr
    assert "resuming at step" in second.stderr
    assert (tmp_path / "run/checkpoints/step-00000040/state.json").is_file()
    assert (tmp_path / "queued").read_text().split() == [job["SLURM_JOB_ID"]]


# -- the pictures of curves -----------------------------------------------------------------------


CURVES = runpy.run_path(str(ROOT / "benchmarks/curves.py"))


def test_every_small_recipe_has_curves_to_show() -> None:
    assert sorted(CURVES["PANELS"]) == sorted(TINY)


@pytest.mark.parametrize("name", TINY)
def test_curves_are_drawn_from_reports(name: str) -> None:
    panels = CURVES["PANELS"][name]
    metrics = [metric for panel in panels for metric in panel.lines]
    rising = [{"step": 10 * n, **dict.fromkeys(metrics, n)} for n in range(1, 9)]
    falling = [{"step": 10 * n, **dict.fromkeys(metrics, 9 - n)} for n in range(1, 9)]
    drawn = [CURVES["picture"](rows, panels) for rows in (rising, rising, falling)]
    assert drawn[0].tobytes() == drawn[1].tobytes() != drawn[2].tobytes()


def test_a_run_without_the_reports_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="never reported"):
        CURVES["picture"]([{"step": 1}], CURVES["PANELS"][TINY[0]])
