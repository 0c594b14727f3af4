"""`python -m quintet.ray train|encode …`: the commands of `quintet`, on a Ray cluster."""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintet import cli, ray
from quintet.cli.common import ASKING, parse
from quintet.cli.encode import Encode, show
from quintet.cli.train import asked_for
from quintet.engine.errors import RunError

USAGE = """\
python -m quintet.ray train RECIPE [DATA] --run RUN [--workers 8] [SETTINGS of the recipe]
python -m quintet.ray encode RUN DATA --out SHARDS [--workers 8] [FLAGS of encode]

RUN of train is started or resumed: a folder that all nodes share, or an address in object storage.
The cluster is that of RAY_ADDRESS or of this machine; without one, Ray is started here."""


def workers(text: str) -> int | tuple[int, int]:
    fewest, colon, most = text.partition(":")
    return (int(fewest), int(most)) if colon else int(fewest)


def flags(verb: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(usage=USAGE, allow_abbrev=False, exit_on_error=False)
    add = parser.add_argument
    if verb == "train":
        add("--run", help="folder or address of the run")
        add("--storage", help="where Ray keeps notes of its own; default: .ray beside the run")
    fewest = "; 2:8 takes what there is, from 2 to 8" if verb == "train" else ""
    add("--workers", type=workers, default=1, help=f"processes, each with a GPU if any{fewest}")
    add("--readers", type=int, help="processes that read data, for each worker")
    add("--gpu", action=argparse.BooleanOptionalAction, help="ask for GPUs; default: if any")
    add("--cpus", type=int, default=1, help="CPU cores of each process (1)")
    about = f"deaths of processes before Ray gives up ({ray.RESTARTS})"
    add("--restarts", type=int, default=ray.RESTARTS, help=about)
    return parser


def answered(arguments: list[str]) -> int:
    verb, *rest = arguments or ["--help"]
    verbs: dict[str, Callable[..., None]] = {"train": train, "encode": encode}
    if verb in verbs and not set(ASKING) & {*rest}:
        try:
            own, others = flags(verb).parse_known_args(rest)
        except argparse.ArgumentError as error:
            raise RunError(f"{error}; see python -m quintet.ray --help") from None
        verbs[verb](others, **vars(own))
        return 0
    flags(verb).print_help()
    if verb in verbs or verb in ASKING:
        return 0
    raise RunError(f"there is no {verb} on Ray; there are {', '.join(verbs)}")


def train(others: list[str], *, run: str | None, readers: int | None, **placed: Any) -> None:
    name, *words = others or [""]
    if run is None:
        raise RunError("--run is missing; give the folder or the address of the run")
    words += [] if readers is None else ["--workers", str(readers)]
    metrics = ray.fit(name, asked_for(name, words)[0], run, **placed)
    print(f"{run} is at step {metrics['step']}.")


def encode(others: list[str], *, readers: int | None, **placed: Any) -> None:
    words = dataclasses.asdict(parse(Encode, others, "encode"))
    model, data, out = (words.pop(name) for name in ("run", "data", "out"))
    words["readers"] = words.pop("workers") if readers is None else readers
    show(Path(out), ray.encode(model, data, out, **placed, **words))


if __name__ == "__main__":
    cli.main(run=answered)
