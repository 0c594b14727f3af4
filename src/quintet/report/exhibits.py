"""Exhibits of a run (images, audio, video, meshes, text), grouped and embedded within limits."""

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
from quintet.media.meshes.files import read_mesh
from quintet.report import script, sound
from quintet.report.markup import attribute, details, file_size, text
from quintet.report.source import Source, content

IMAGES = {".png": "image/png", ".gif": "image/gif", ".jpg": "image/jpeg", ".webp": "image/webp"}
VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm"}
AUDIO = {".wav": "audio/wav", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".flac": "audio/flac"}
MESHES = (".glb", ".obj", ".ply")
SUFFIXES = {*IMAGES, *VIDEOS, *AUDIO, *MESHES, ".txt"}

MAX_FILE_BYTES = 6_000_000
"""Size of an embedded file; larger ones are listed by name."""
MAX_PAGE_BYTES = 20_000_000
"""Size of all exhibits on a page, shared by its runs."""
MAX_FILES = 60
MAX_MESHES = 8
"""Meshes per run: browsers allow about sixteen WebGL contexts."""
MAX_FACES = 20_000
MAX_TEXT = 20_000
"""Characters of a text file."""
PLACEHOLDER = "Loading the 3-D view.<noscript> It needs JavaScript.</noscript>"
REFERENCES = ("original", "validation")


@dataclass
class Group:
    """Files of one sample: speech-0.txt, speech-0-original.wav, speech-0-copy.wav …"""

    name: str
    files: dict[Path, str] = field(default_factory=dict[Path, str])
    """For each path, the part of its name after the name of the group."""
    caption: str = ""


@dataclass
class SizeBudget:
    """Remaining capacity of the page, and what did not fit."""

    remaining_bytes: int
    files: int = MAX_FILES
    meshes: int = MAX_MESHES
    omitted: list[str] = field(default_factory=list[str])

    def read(self, path: Path) -> bytes | None:
        if self.files < 1:
            self.omitted.append(path.name)
            return None
        try:
            data = content(path, min(MAX_FILE_BYTES, self.remaining_bytes))
        except OSError:
            reason = "is too large for this page" if path.is_file() else "is not a file"
            self.omitted.append(f"{path.name} {reason}")
            return None
        self.remaining_bytes -= len(data)
        self.files -= 1
        return data


def group_files(files: Sequence[Path]) -> list[Group]:
    groups: dict[str, Group] = {}
    for path in files:
        match = re.fullmatch(r"(.+?-[0-9]+)(?:-(.+))?", path.stem)
        name, rest = (match[1], match[2] or "") if match else (path.stem, "")
        groups.setdefault(name, Group(name)).files[path] = rest
    return list(groups.values())


def exhibits(source: Source, num_runs: int = 1) -> str:
    """The newest exhibits, embedded, so that the page is self-contained."""
    step, files = source.exhibits()
    # The page may be shared: no links to files outside of the run.
    files = [path for path in files if path.suffix in SUFFIXES and not path.is_symlink()]
    if not files:
        return ""
    budget = SizeBudget(MAX_PAGE_BYTES // num_runs)
    groups = drop_duplicate_gifs(group_files(files))
    assign_texts(groups, budget)
    body = "".join(group_card(group, step, budget) for group in groups)
    return f'<div class="exhibits">{body}</div>{omitted_note(budget, step)}'


def drop_duplicate_gifs(groups: list[Group]) -> list[Group]:
    """Drop each GIF that has a video of the same name."""
    for group in groups:
        clips = {path.stem for path in group.files if path.suffix in VIDEOS}
        group.files = {
            path: rest
            for path, rest in group.files.items()
            if path.suffix != ".gif" or path.stem not in clips
        }
    return groups


def assign_texts(groups: list[Group], budget: SizeBudget) -> None:
    """Move the text files into captions. A text belongs to its own group; a paragraph that begins
    with the name of another group or file belongs to that one."""
    by_name = {group.name: group for group in groups}
    by_name |= {path.name: group for group in groups for path in group.files}
    for group in groups:
        for path in [path for path in group.files if path.suffix == ".txt"]:
            del group.files[path]
            data = budget.read(path)
            for paragraph in (data or b"").decode("utf-8", "replace")[:MAX_TEXT].split("\n\n"):
                head, _, rest = paragraph.strip("\n").partition("\n")
                owner = by_name.get(head.strip()) if rest else None
                (owner or group).caption += f"{rest if owner else paragraph}\n"


def group_card(group: Group, step: str, budget: SizeBudget) -> str:
    kinds = {path.suffix for path in group.files}
    if kinds & set(MESHES):
        return mesh_card(group, step, budget)
    if kinds & set(AUDIO):
        return audio_card(group, step, budget)
    figures = "".join(figure(path, group, step, budget) for path in group.files)
    return figures or (f'<div class="card">{title(group)}</div>' if group.caption.strip() else "")


def title(group: Group) -> str:
    first, _, rest = group.caption.strip("\n ").partition("\n")
    rest = dedent(rest)
    head = f"<b>{text(first.strip() or group.name)}</b>"
    return f"<div class=caption>{head}{f'<pre>{text(rest)}</pre>' if rest.strip() else ''}</div>"


def alt_text(group: Group, rest: str, step: str) -> str:
    caption = " ".join(group.caption.split())[:300]
    name = f"{group.name} {rest}".strip()
    return text(f"{name} at {step}{f': {caption}' if caption else ''}")


def data_uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def figure(path: Path, group: Group, step: str, budget: SizeBudget) -> str:
    data = budget.read(path)
    if data is None:
        return ""
    label = alt_text(group, group.files[path], step)
    if kind := VIDEOS.get(path.suffix):
        inside = (
            f'<video controls loop muted playsinline preload="metadata" aria-label="{label}" '
            f'src="{data_uri(kind, data)}"></video>'
        )
    else:
        inside = image(data_uri(IMAGES[path.suffix], data), label)
    caption = group.caption.strip() and f" · {text(group.caption.strip())}"
    return (
        f'<figure class="card whole">{inside}<figcaption>{text(path.name)}{caption}</figcaption>'
        "</figure>"
    )


def image(source: str, label: str) -> str:
    """An image inside a button that toggles between fitted and full size."""
    return (
        '<button type="button" class="zoom" aria-pressed="false" title="toggle full size">'
        f'<img alt="{label}" src="{source}"></button>'
    )


def audio_card(group: Group, step: str, budget: SizeBudget) -> str:
    players, others = "", ""
    for path in references_first(group):
        if path.suffix not in AUDIO:
            others += figure(path, group, step, budget)
        elif data := budget.read(path):
            players += audio_player(path, data, group, step)
    images = details("comparison", others)
    return (
        f'<div class="card">{title(group)}<div class="row">{players}</div>{images}</div>'
        if players
        else others
    )


def audio_player(path: Path, data: bytes, group: Group, step: str) -> str:
    name = group.files[path] or path.stem
    label = alt_text(group, group.files[path], step)
    spectrogram = sound.spectrogram_png(data) if path.suffix == ".wav" else None
    mel = ""
    if spectrogram:
        uri = data_uri("image/png", spectrogram)
        mel = f'<img class="mel" alt="log-mel spectrogram of {label}" src="{uri}">'
    source = data_uri(AUDIO[path.suffix], data)
    return (
        f'<figure>{mel}<audio controls preload="metadata" aria-label="{label}" src="{source}">'
        f"</audio><figcaption>{text(name)}</figcaption></figure>"
    )


def references_first(group: Group) -> list[Path]:
    """Files of the group, references (originals, validation data) before generated ones."""
    return sorted(group.files, key=lambda path: group.files[path] not in REFERENCES)


def mesh_card(group: Group, step: str, budget: SizeBudget) -> str:
    paths = references_first(group)
    count = len([path for path in paths if path.suffix in MESHES])
    if budget.meshes < min(count, MAX_MESHES):
        budget.omitted.append(f"{group.name} ({count} meshes)")
        return ""
    inside = ""
    for path in paths:
        if path.suffix not in MESHES:
            inside += figure(path, group, step, budget)
        elif data := mesh_data(path, budget):
            label, name = alt_text(group, group.files[path], step), group.files[path] or path.stem
            inside += (
                f'<figure><div class="mesh" role="group" tabindex="0" data-mesh="{data}" '
                f'aria-label="mesh {label}; rotate with the arrow keys"><p class="soft">'
                f"{PLACEHOLDER if script.plotly() else ''}</p></div>"
                f"<figcaption>{text(name)}</figcaption></figure>"
            )
    return f'<div class="card meshes">{title(group)}<div class="row">{inside}</div>{CONTROLS}</div>'


def rotate_button(direction: str, sign: str) -> str:
    label = direction if direction == "spin" else f"rotate {direction}"
    return (
        f'<button type="button" data-rotate="{direction}" aria-label="{label}" title="{label}">'
        f"{sign}</button>"
    )


CONTROLS = (
    '<p class="tools" hidden>'
    + "".join(rotate_button(w, s) for w, s in zip(("left", "right", "up", "down"), "◀▶▲▼"))
    + rotate_button("spin", "⟳")
    + "</p>"
)


def mesh_data(path: Path, budget: SizeBudget) -> str:
    """Vertices and triangles for the script; an unreadable file is noted as omitted."""
    if budget.files < 1 or budget.meshes < 1:
        budget.omitted.append(path.name)
        return ""
    try:
        mesh = read_mesh(path, max_bytes=MAX_FILE_BYTES, max_faces=MAX_FACES, upright=True)
    except BadFile as error:
        budget.omitted.append(f"{path.name} {error.reason}")
        return ""
    vertices, faces = mesh
    data: dict[str, Any] = {
        "vertices": encode_array(vertices.astype("<f4")),
        "faces": encode_array(faces.astype("<u4")),
        "count": len(faces),
    }
    budget.files -= 1
    budget.meshes -= 1
    budget.remaining_bytes -= len(data["vertices"]) + len(data["faces"])
    return attribute(data)


def encode_array(values: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def omitted_note(budget: SizeBudget, step: str) -> str:
    if not budget.omitted:
        return ""
    names = ", ".join(text(name) for name in budget.omitted[:30])
    more = f" and {len(budget.omitted) - 30} more" if len(budget.omitted) > 30 else ""
    return (
        f'<p class="soft">Not embedded, to limit the page to {file_size(MAX_PAGE_BYTES)}; see '
        f"exhibits/{text(step)}: {names}{more}.</p>"
    )
