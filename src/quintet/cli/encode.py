"""`quintet encode`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from quintet.cli.common import is_main, parse
from quintet.engine.settings import flag
from quintet.suggest import command


@dataclasses.dataclass(kw_only=True)
class Encode:
    """Encode a data set by a trained tokenizer into shards, from which generators train without
    encoding again. Stopped at any time, the same command goes on; so do several processes under
    torchrun, with the same bytes."""

    run: tyro.conf.Positional[Path]
    """Tokenizer: a run (RUN@STEP for a checkpoint), an export, or a folder of diffusers."""
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Folder of files, or shards of them."""
    out: str
    """Folder for the shards."""
    recipe: str | None = None
    """Recipe of the generator, whose size, crops and variants are taken, e.g. image/flow_large; by
    default the size and the crops are those of training the tokenizer."""
    size: Annotated[tuple[int, int] | None, tyro.conf.arg(metavar="H W")] = None
    """Height and width of images or clips."""
    variants: int | None = None
    """Fixed augmentations of each sample, the original included; by default those of the recipe."""
    shard_samples: int = 1024
    """Samples of a shard; what a kill may cost."""
    workers: int = 2
    """Processes that read the data."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the tokenizer runs."""


def encode(argv: list[str]) -> None:
    args = parse(Encode, argv, "encode")
    from quintet.encoding import encode as encode_data

    words = {f.name: getattr(args, f.name) for f in dataclasses.fields(args)}
    about = encode_data(words.pop("run"), words.pop("data"), words.pop("out"), **words)
    if is_main():
        show(Path(args.out), about)


def show(out: Path, about: dict[str, Any]) -> None:
    from quintet.shared.encoded import name_of

    missing = sum(not (out / name_of(n)).exists() for n in range(about["shards"]))
    print(f"{out}: {about['samples']} {about['what']} in {about['shards']} shards.")
    if missing:
        print(f"{missing} of them are still being written by other processes.")
    flags = (flag(about["stage"]), about["source"])
    print("Train from them:", command("train", about["recipe"], out, *flags))
