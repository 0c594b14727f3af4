"""Pictures: photographs, paintings, drawings, maps and textures of packages, whole and in parts."""

import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from naming import Sample, as_words, found, in_letters, untaken
from PIL import Image

Image.MAX_IMAGE_PIXELS = None  # panoramas
PART = 512
"""Side of parts, and short side of what is kept of a whole picture."""
SMALLEST = 256
MOST_PARTS = 12
SIDE = 256
"""Short side of the pictures in the end."""


class Folder(NamedTuple):
    package: str
    inside: str
    """Part of the path; empty for the whole package."""
    caption: str
    license: str
    style: str


SKY = "CC-BY-SA / CC0 / public domain (per file)"
WESNOTH, HEDGEWARS = "GPL-2+ / CC-BY-SA-4.0", "GPL-2 / GFDL-1.3"
STARS = "GPL-2+ / public domain (per file)"
LOMIRI = "CC-BY-4.0 / CC-BY-SA-4.0 / CC-BY-SA-3.0 (per file)"
MAPS = "GPL-2+ (maps: see package copyright)"
FOLDERS = [
    Folder("endless-sky-data", "images/land", "landscape photograph", SKY, "photo"),
    Folder("endless-sky-data", "images/scene", "science fiction scene", SKY, "photo"),
    Folder(
        "gnome-backgrounds",
        "backgrounds/gnome",
        "abstract desktop background",
        "CC-BY-SA-3.0",
        "rendering",
    ),
    Folder("lomiri-wallpapers-20.04", "", "wallpaper", LOMIRI, "photo"),
    Folder("sway-backgrounds", "", "geometric wallpaper", "Expat", "rendering"),
    Folder("libjs-jquery-backstretch", "", "photograph", "Expat or GPL (package)", "photo"),
    Folder("labelme-examples", "", "street or object photograph", "GPL-3+ (package)", "photo"),
    Folder("kphotoalbum", "demo", "holiday photograph", "GPL-2+ (package)", "photo"),
    Folder("openuniverse-common", "textures", "surface map of", MAPS, "map"),
    Folder("stellarium-data", "nebulae", "astronomical photograph of", STARS, "photo"),
    Folder("stellarium-data", "landscapes", "panorama photograph", "GPL-2+ (per file)", "photo"),
    Folder("stellarium-data", "textures", "planet surface map", STARS, "map"),
    Folder(
        "stellarium-data",
        "skycultures",
        "drawing of a constellation",
        "GPL-2+ / FAL (per file)",
        "drawing",
    ),
    Folder("wesnoth-1.16-data", "portraits", "painted fantasy portrait", WESNOTH, "painting"),
    Folder("wesnoth-1.16-data", "story", "painted fantasy story scene", WESNOTH, "painting"),
    Folder("wesnoth-1.16-data", "maps", "drawn fantasy map", WESNOTH, "painting"),
    Folder("freeorion-data", "art", "science fiction art", "CC-BY-SA-3.0", "painting"),
    Folder("mypaint-data-extras", "", "paper or canvas texture", "CC0-1.0", "texture"),
    Folder("hedgewars-data", "Themes", "cartoon landscape", HEDGEWARS, "drawing"),
    Folder("hedgewars-data", "Forts", "cartoon fort", HEDGEWARS, "drawing"),
    Folder("hedgewars-data", "Missions", "cartoon scene", HEDGEWARS, "drawing"),
    Folder("extremetuxracer-data", "env", "winter sky panorama", "GPL-2", "rendering"),
    Folder("extremetuxracer-data", "terrains", "snow and ground texture", "GPL-2", "texture"),
    Folder("trackballs-data", "images", "game texture", "GPL-2", "texture"),
    Folder(
        "supertux-data",
        "images/background",
        "cartoon landscape",
        "GPL-3+ / CC-BY-SA-4.0",
        "drawing",
    ),
    Folder("frozen-bubble-data", "gfx", "cartoon scene", "GPL-2", "drawing"),
    Folder("zaz-data", "", "fantasy scene", "GPL-3 / CC-BY-SA-3.0", "painting"),
]
PACKAGES = tuple(dict.fromkeys(folder.package for folder in FOLDERS))
LEFT_OUT = re.compile(
    r"/HTML/|/\.readme/|_viz|Class|Object|Visualization"  # screenshots and label maps
    r"|Sway_Wallpaper_Blue_(?!2048x1536\.)|sample\d_(480|960|1280)\."  # smaller copies
)
SAYS_NOTHING = {
    *("land", "scene", "images", "textures", "art", "demo"),
    *("default", "gfx", "story", "portraits", "zaz"),
}
"""Names of folders that add nothing to a caption."""


def samples(raw: Path, scratch: Path) -> Iterator[Sample]:
    seen: set[str] = set()
    taken: set[str] = set()
    for folder, path in files(raw):
        try:
            with Image.open(path) as opened:
                if min(opened.size) < SMALLEST:
                    continue
                picture = on_white(opened)
        except OSError:
            continue
        content = hashlib.md5(picture.resize((32, 32)).tobytes()).hexdigest()
        strip = max(picture.size) > 8 * min(picture.size)
        if content in seen or strip or detail(picture) < 0.6:
            continue
        seen.add(content)
        text = caption(folder, path)
        # The pictures of a panorama show the same place.
        panorama = "landscapes" in path.relative_to(raw).parts
        group = f"{folder.package}/{path.parent.name if panorama else path.stem}"
        about = {"source": folder.package, "license": folder.license}
        for part, box in [("whole", None), *(("tile", box) for box in parts(picture))]:
            stem = path.stem if box is None else f"{path.stem}-tile-{box[0]}-{box[1]}"
            name = untaken(f"{folder.package}/{in_letters(stem)}", taken)
            words = text if box is None else f"detail of {text}"
            more = {"part": part, "style": folder.style}
            yield Sample(f"{name}.jpg", words, group, about | more, path, box)


def files(raw: Path) -> Iterator[tuple[Folder, Path]]:
    seen: set[Path] = set()
    for folder in FOLDERS:
        for path in found(raw / folder.package, (".jpg", ".jpeg", ".png", ".webp")):
            place = f"/{path.relative_to(raw).as_posix()}"
            wanted = not folder.inside or f"/{folder.inside}/" in place
            if wanted and path not in seen and not LEFT_OUT.search(place):
                seen.add(path)
                yield folder, path


def caption(folder: Folder, path: Path) -> str:
    name, parent = as_words(path.stem), as_words(path.parent.name)
    if path.parent.name.lower() not in SAYS_NOTHING and len(parent) > 2:
        name = f"{name}, {parent}"
    return f"{folder.caption}{' ' if folder.caption.endswith(' of') else ', '}{name}"


def on_white(picture: Image.Image) -> Image.Image:
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        white = Image.new("RGBA", picture.size, "white")
        white.alpha_composite(picture.convert("RGBA"))
        return white.convert("RGB")
    return picture.convert("RGB")


def detail(picture: Image.Image) -> float:
    """Mean difference of neighbours; near 0 for a flat picture."""
    grey = np.asarray(picture.convert("L").resize((128, 128)), np.float32)
    return float(np.abs(np.diff(grey)).mean() + np.abs(np.diff(grey, axis=0)).mean()) / 2


def parts(picture: Image.Image) -> list[tuple[int, int, int, int]]:
    """Squares of a large picture with something on them, spread over it."""
    if min(picture.size) < 2 * PART:
        return []
    columns, rows = picture.width // PART, picture.height // PART
    corners = [(x * PART, y * PART) for y in range(rows) for x in range(columns)]
    boxes = [(x, y, x + PART, y + PART) for x, y in corners[:: -(-len(corners) // MOST_PARTS)]]
    return [box for box in boxes if detail(picture.crop(box)) >= 1]


def write(sample: Sample, path: Path) -> None:
    with Image.open(sample.path) as opened:
        picture = on_white(opened)
    picture = picture.crop(sample.box) if sample.box else shrunk(picture, PART)
    if max(picture.size) > 4 * PART:
        picture.thumbnail((4 * PART, 4 * PART))
    # A JPEG of its own, as the files of the published results were made.
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    shrunk(Image.open(buffer).convert("RGB"), SIDE).save(path, quality=88)


def shrunk(picture: Image.Image, side: int) -> Image.Image:
    scale = side / min(picture.size)
    if scale >= 1:
        return picture
    size = (max(side, round(picture.width * scale)), max(side, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS)
