"""Captioned small pictures: emoji of four vendors, by the names that Unicode has for them."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from naming import Sample, found, in_letters
from pictures import on_white
from PIL import Image, ImageOps

PACKAGES = (
    "npm:openmoji@17.0.0",
    "npm:@twemoji/svg@15.0.0",
    "npm:@svgmoji/noto@3.2.0",
    "npm:@lobehub/fluent-emoji-3d@1.1.0",
)
SIDE = 128
SKIN = re.compile(r"1f3f[b-f]")
"""Code points of skin tones, whose names say the same as those without."""


class Vendor(NamedTuple):
    name: str
    license: str
    style: str
    place: str
    """Folder of its files, or a file with all of them."""


VENDORS = (
    Vendor("openmoji", "CC-BY-SA-4.0", "outlined flat emoji", "openmoji/package/color/svg"),
    Vendor("twemoji", "CC-BY-4.0", "flat emoji", "twemoji-svg/package"),
    Vendor("noto", "Apache-2.0", "shaded emoji", "svgmoji-noto/package/sprites/all.svg"),
    Vendor("fluent-3d", "MIT", "3D emoji", "lobehub-fluent-emoji-3d/package/assets"),
)


def samples(raw: Path, scratch: Path) -> Iterator[Sample]:
    known = names(raw)
    for vendor in VENDORS:
        for path in drawings(raw / vendor.place, scratch):
            name = known.get(key_of(path.stem))
            if name is None or SKIN.search(path.stem.lower()):
                continue
            about = {"source": vendor.name, "license": vendor.license, "style": vendor.style}
            unique = f"{vendor.name}/{in_letters(name)}-{path.stem}.png"
            yield Sample(unique, name, key_of(path.stem), about, path)


def names(raw: Path) -> dict[str, str]:
    """By code points, from OpenMoji's table."""
    table = (raw / "openmoji/package/data/openmoji.json").read_text(encoding="utf-8")
    rows = [row for row in json.loads(table) if not row["skintone"]]
    return {key_of(row["hexcode"]): row["annotation"] for row in rows}


def key_of(code: str) -> str:
    """Vendors do not agree on the selector of coloured glyphs."""
    return code.lower().replace("-fe0f", "")


def drawings(place: Path, scratch: Path) -> Iterator[Path]:
    """Files that are named by code points."""
    if place.is_dir():
        yield from found(place, (".svg", ".webp"))
        return
    for drawing in ElementTree.parse(place).getroot():
        if code := drawing.get("id"):
            path = scratch / f"{code}.svg"
            path.write_bytes(ElementTree.tostring(drawing))
            yield path


def write(sample: Sample, path: Path) -> None:
    """A square; flags are centred in it."""
    with Image.open(rasterised(sample.path)) as opened:
        picture = on_white(opened)
    square = ImageOps.pad(picture, (SIDE, SIDE), Image.Resampling.LANCZOS, color="white")
    square.save(path, optimize=True)


def rasterised(path: Path) -> Path | io.BytesIO:
    if path.suffix != ".svg":
        return path
    import resvg_py  # pyright: ignore[reportMissingImports]

    svg = path.read_text(encoding="utf-8")
    return io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=svg, width=SIDE, height=SIDE)))
