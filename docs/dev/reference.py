"""Write the reference tables of the docs from the code, between their markers.

    python docs/dev/reference.py

`<!-- reference:NAME -->` and `<!-- /reference -->`, each on a line of its own, enclose the table
NAME of `TABLES` on any page of docs/.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from quintet import rooms
from quintet.cli import COMMANDS
from quintet.cli.common import HELP, listing
from quintet.engine.config import OptimizerConfig, Recipe
from quintet.engine.settings import settings_of
from quintet.judges import choosing
from quintet.media.meshes import files, scenes

DOCS = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=<!-- reference:)(\w+)( -->\n).*?(?=<!-- /reference -->)", re.DOTALL)
ENVIRONMENT = {
    "QUINTET_CACHE": "Folder of caches, which may be deleted at any time; default: `quintet` in "
    "`XDG_CACHE_HOME`, or in `~/.cache`.",
    "QUINTET_CACHE_BYTES": "Bytes at which each cache drops its oldest files; default: 20 GB.",
    "QUINTET_JUDGES": "Folder of the weights of judges; default: `quintet/judges` in "
    "`XDG_DATA_HOME`, or in `~/.local/share`.",
    "QUINTET_LEASE_SECONDS": "Seconds for which a process holds a run in object storage, unless it "
    "renews this; default: 90.",
    "QUINTET_UPLOAD_SECONDS": "Seconds for which a stopped run waits for its upload; default: 100.",
    "QUINTET_TOKEN": "What clients of `quintet serve` and `quintet watch` must show, unless "
    "`--token` says it.",
    "TORCHINDUCTOR_CACHE_DIR": "Code compiled by torch; default: in `QUINTET_CACHE`.",
    "TRITON_CACHE_DIR": "Kernels compiled by Triton; default: in `QUINTET_CACHE`.",
    "CC": "C compiler for Triton; default: gcc, clang or cc.",
    "WANDB_PROJECT": "Project of the tracker wandb, unless `--tracker.project` names one.",
    "TRACKIO_PROJECT": "Project of the tracker trackio, likewise.",
    "OMP_WAIT_POLICY": "Whether idle CPU threads spin; the commands set PASSIVE.",
}


def rows(header: str, cells: Iterable[Iterable[str]]) -> str:
    head = f"| {header} |"
    rule = re.sub(r"[^|]+", "---", head)
    return "\n".join([head, rule, *(f"| {' | '.join(row)} |" for row in cells)])


def recipes() -> str:
    lines = (line.split(maxsplit=1) for line in listing().splitlines())
    return rows("recipe | what it trains", ((f"`{name}`", about) for name, about in lines))


def commands() -> str:
    """What the first two lines of each command in the overview say."""
    lines = re.findall(r"^  quintet (\w+)(?: \S+)*? {2,}(\S.*)$", HELP, re.MULTILINE)
    said = {name: [about for verb, about in lines if verb == name][:2] for name in COMMANDS}
    cells = ((f"`quintet {name}`", "; ".join(said[name])) for name in COMMANDS)
    return rows("command | what it does", cells)


def settings(config: Recipe | OptimizerConfig) -> str:
    cells = (
        (
            f"`{s.name}`",
            "" if s.default is None else f"`{s.default}`",
            "yes" * s.free,
            s.description,
        )
        for s in settings_of(config)
    )
    return rows("setting | default | on resume | what it sets", cells)


def judges() -> str:
    cells = [
        (medium, f"`{name}`", judge.about, judge.unit, judge.better)
        for medium in choosing.MEDIA
        for name, judge in choosing.of_medium(medium).items()
    ]
    return rows("room | judge | what it measures | unit | better", cells)


def formats() -> str:
    """Suffixes of data; those of meshes do not depend on what is installed."""
    read = {room: rooms.Room(room).data.Folder.suffixes for room in rooms.rooms()}
    listed = {room: " ".join(f"`{suffix}`" for suffix in read[room]) for room in read}
    extra = " ".join(f"`{suffix}`" for suffix in scenes.SUFFIXES)
    own = " ".join(f"`{suffix}`" for suffix in files.SUFFIXES)
    listed["mesh"] = f"{own}; with the extra `meshes` also {extra}"
    return rows("room | files", listed.items())


def environment() -> str:
    cells = ((f"`{name}`", about) for name, about in ENVIRONMENT.items())
    return rows("variable | what it sets", cells)


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "recipes": recipes,
    "settings": lambda: settings(Recipe()),
    "optimizer": lambda: settings(OptimizerConfig()),
    "judges": judges,
    "formats": formats,
    "environment": environment,
}


def filled(text: str) -> str:
    """A page with its tables as the code has them."""
    return BLOCK.sub(lambda found: f"{found[1]}{found[2]}\n{TABLES[found[1]]()}\n\n", text)


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text), encoding="utf-8")
