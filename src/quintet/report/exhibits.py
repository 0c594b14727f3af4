"""What a run left for a person to see and hear, laid out in groups and kept within limits."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet.media.errors import BadFile
from quintet.media.meshes import read_mesh
from quintet.report import sound
from quintet.report.markup import attribute, folded, size, text
from quintet.report.source import Source, content

PICTURES = {".png": "image/png", ".gif": "image/gif", ".jpg": "image/jpeg", ".webp": "image/webp"}
CLIPS = {".mp4": "video/mp4", ".webm": "video/webm"}
SOUNDS = {".wav": "audio/wav", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".flac": "audio/flac"}
MESHES = (".glb", ".obj", ".ply")
KNOWN = {*PICTURES, *CLIPS, *SOUNDS, *MESHES, ".txt"}

LARGEST = 6_000_000
"""Bytes of one exhibit in the page; a larger one is named instead."""
BUDGET = 20_000_000
"""Bytes of all exhibits of a page, shared by its runs."""
FILES = 60
TURNING = 8
"""Meshes of a run: a browser holds about sixteen 3-D views at a time."""
FACES = 20_000
WORDS = 20_000
"""Characters of a text."""
FIRST = ("original", "held-out")


@dataclass
class Group:
    """Files that belong together: speech-0.txt, speech-0-original.wav, speech-0-copy.wav …"""

    name: str
    files: dict[Path, str] = field(default_factory=dict[Path, str])
    """What each is, beyond the name of the group."""
    words: str = ""


@dataclass
class Purse:
    """What may still go into the page, and what did not."""

    room: int
    """Bytes."""
    files: int = FILES
    meshes: int = TURNING
    left: list[str] = field(default_factory=list[str])

    def take(self, path: Path) -> bytes | None:
        if self.files < 1:
            self.left.append(path.name)
            return None
        try:
            found = content(path, min(LARGEST, self.room))
        except OSError:
            why = "is too large for this page" if path.is_file() else "is no file"
            self.left.append(f"{path.name} {why}")
            return None
        self.room -= len(found)
        self.files -= 1
        return found


def grouped(files: Sequence[Path]) -> list[Group]:
    found: dict[str, Group] = {}
    for path in files:
        match = re.fullmatch(r"(.+?-[0-9]+)(?:-(.+))?", path.stem)
        name, rest = (match[1], match[2] or "") if match else (path.stem, "")
        found.setdefault(name, Group(name)).files[path] = rest
    return list(found.values())


def exhibits(source: Source, share: int = 1) -> str:
    """The newest ones, inside the page, so that it can be sent around alone."""
    step, files = source.exhibits()
    # The page travels: it holds nothing from outside the run.
    files = [path for path in files if path.suffix in KNOWN and not path.is_symlink()]
    if not files:
        return ""
    purse = Purse(BUDGET // share)
    groups = without_twins(grouped(files))
    hand_out_words(groups, purse)
    body = "".join(block(group, step, purse) for group in groups)
    return f'<div class="exhibits">{body}</div>{left_out(purse, step)}'


def without_twins(groups: list[Group]) -> list[Group]:
    """A GIF beside a video of the same name shows the same."""
    for group in groups:
        clips = {path.stem for path in group.files if path.suffix in CLIPS}
        group.files = {
            path: rest
            for path, rest in group.files.items()
            if path.suffix != ".gif" or path.stem not in clips
        }
    return groups


def hand_out_words(groups: list[Group], purse: Purse) -> None:
    """A text belongs to its group. Where its blocks begin with the names of other groups or files,
    each block belongs to the one that it names."""
    by_name = {name: group for group in groups for name in [group.name, *map(name_of, group.files)]}
    for group in groups:
        for path in [path for path in group.files if path.suffix == ".txt"]:
            del group.files[path]
            data = purse.take(path)
            for block in (data or b"").decode("utf-8", "replace")[:WORDS].split("\n\n"):
                head, _, rest = block.strip("\n").partition("\n")
                named = by_name.get(head.strip()) if rest else None
                (named or group).words += f"{rest if named else block}\n"


def name_of(path: Path) -> str:
    return path.name


def block(group: Group, step: str, purse: Purse) -> str:
    kinds = {path.suffix for path in group.files}
    if kinds & set(MESHES):
        return solids(group, step, purse)
    if kinds & set(SOUNDS):
        return sounds(group, step, purse)
    figures = "".join(figure(path, group, step, purse) for path in group.files)
    return figures or (f'<div class="card">{title(group)}</div>' if group.words.strip() else "")


def title(group: Group) -> str:
    words = group.words.strip("\n ")
    first, _, rest = words.partition("\n")
    rest = dedent(rest)
    head = f"<b>{text(first.strip() or group.name)}</b>"
    return f"<div class=caption>{head}{f'<pre>{text(rest)}</pre>' if rest.strip() else ''}</div>"


def alt(group: Group, rest: str, step: str) -> str:
    words = " ".join(group.words.split())[:300]
    what = " ".join(word for word in (group.name, rest) if word)
    return text(f"{what} at {step}{f': {words}' if words else ''}")


def embedded(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def figure(path: Path, group: Group, step: str, purse: Purse) -> str:
    data = purse.take(path)
    if data is None:
        return ""
    label = alt(group, group.files[path], step)
    if kind := CLIPS.get(path.suffix):
        inside = (
            f'<video controls loop muted playsinline preload="metadata" aria-label="{label}" '
            f'src="{embedded(kind, data)}"></video>'
        )
    else:
        inside = image(embedded(PICTURES[path.suffix], data), label)
    words = group.words.strip() and f" · {text(group.words.strip())}"
    return (
        f'<figure class="card whole">{inside}<figcaption>{text(path.name)}{words}</figcaption>'
        "</figure>"
    )


def image(source: str, label: str) -> str:
    """Inside a button that shows it in its own size."""
    return (
        '<button type="button" class="zoom" aria-pressed="false" title="own size, or fitted">'
        f'<img alt="{label}" src="{source}"></button>'
    )


def sounds(group: Group, step: str, purse: Purse) -> str:
    heard, others = "", ""
    for path in in_order(group):
        if path.suffix not in SOUNDS:
            others += figure(path, group, step, purse)
        elif data := purse.take(path):
            heard += player(path, data, group, step)
    pictures = folded("side by side", others)
    return (
        f'<div class="card">{title(group)}<div class="row">{heard}</div>{pictures}</div>'
        if heard
        else others
    )


def player(path: Path, data: bytes, group: Group, step: str) -> str:
    name = group.files[path] or path.stem
    label = alt(group, group.files[path], step)
    drawn = sound.picture(data) if path.suffix == ".wav" else None
    mel = ""
    if drawn:
        mel = f'<img class="mel" alt="log-mel of {label}" src="{embedded("image/png", drawn)}">'
    source = embedded(SOUNDS[path.suffix], data)
    return (
        f'<figure>{mel}<audio controls preload="metadata" aria-label="{label}" src="{source}">'
        f"</audio><figcaption>{text(name)}</figcaption></figure>"
    )


def in_order(group: Group) -> list[Path]:
    """What others are compared with comes first."""
    return sorted(group.files, key=lambda path: group.files[path] not in FIRST)


def solids(group: Group, step: str, purse: Purse) -> str:
    paths = in_order(group)
    count = len([path for path in paths if path.suffix in MESHES])
    if purse.meshes < min(count, TURNING):
        purse.left.append(f"{group.name} ({count} meshes)")
        return ""
    inside = ""
    for path in paths:
        if path.suffix not in MESHES:
            inside += figure(path, group, step, purse)
        elif data := solid(path, purse):
            label, name = alt(group, group.files[path], step), group.files[path] or path.stem
            inside += (
                f'<figure><div class="mesh" role="group" tabindex="0" data-mesh="{data}" '
                f'aria-label="mesh {label}; the arrow keys turn it"><p class="soft">'
                "A mesh; it turns where scripts and plotly are at hand.</p></div>"
                f"<figcaption>{text(name)}</figcaption></figure>"
            )
    return f'<div class="card turns">{title(group)}<div class="row">{inside}</div>{TURN}</div>'


def turn_button(way: str, sign: str) -> str:
    words = f"turn {way}" if way != "round" else "keep turning"
    return (
        f'<button type="button" data-turn="{way}" aria-label="{words}" title="{words}">'
        f"{sign}</button>"
    )


TURN = (
    '<p class="tools" hidden>'
    + "".join(turn_button(w, s) for w, s in zip(("left", "right", "up", "down"), "◀▶▲▼"))
    + turn_button("round", "⟳")
    + "</p>"
)


def solid(path: Path, purse: Purse) -> str:
    """Vertices and triangles for the script; empty, and named, where the file is none."""
    if purse.files < 1 or purse.meshes < 1:
        purse.left.append(path.name)
        return ""
    try:
        mesh = read_mesh(path, max_bytes=LARGEST, max_faces=FACES, upright=True)
    except BadFile as error:
        purse.left.append(f"{path.name} {error.reason}")
        return ""
    vertices, faces = mesh
    data: dict[str, Any] = {
        "vertices": numbers(vertices.astype("<f4")),
        "faces": numbers(faces.astype("<u4")),
        "count": len(faces),
    }
    purse.files -= 1
    purse.meshes -= 1
    purse.room -= len(data["vertices"]) + len(data["faces"])
    return attribute(data)


def numbers(values: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def left_out(purse: Purse, step: str) -> str:
    if not purse.left:
        return ""
    names = ", ".join(text(name) for name in purse.left[:30])
    more = f" and {len(purse.left) - 30} more" if len(purse.left) > 30 else ""
    return (
        f'<p class="soft">Not on this page, to keep it within {size(BUDGET)} and a few meshes; in '
        f"exhibits/{text(step)}: {names}{more}.</p>"
    )
