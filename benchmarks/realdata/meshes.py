"""Meshes of 8 to 5,000 faces: furniture, models of geometry, robots and skeletons."""

import hashlib
import re
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from naming import Sample, as_words, copied, found, in_letters, untaken

from quintet.media.errors import BadFile
from quintet.media.meshes.files import read_mesh, simplify, write_mesh
from quintet.media.meshes.polygons import Mesh

PACKAGES = (
    "sweethome3d-furniture",
    "libcgal-demo",
    "pip:robosuite==1.5.2",
    "pip:dm_control==1.0.50",
)
FEWEST, MOST, MOST_READ = 8, 5_000, 60_000
"""Faces; those with more than MOST are simplified."""
MAX_BYTES = 6_000_000
FURNITURE = {
    "BlendSwap-CC-0": "CC0-1.0",
    **dict.fromkeys(("BlendSwap-CC-BY", "KatorLegaz", "Reallusion", "Scopia"), "CC-BY-3.0"),
}
"""Licences of the catalogues."""
SAYS_NOTHING = ("meshes", "obj_meshes", "assets", "visual", "collision")
"""Names of folders that add nothing to a caption."""


class Solid(NamedTuple):
    package: str
    license: str
    name: str
    category: str
    suffix: str
    data: bytes


def samples(raw: Path, scratch: Path) -> Iterator[Sample]:
    seen: set[str] = set()
    taken: set[str] = set()
    for solid in solids(raw):
        try:
            mesh = small(read(solid, scratch))
        except (BadFile, ValueError):  # also meshes of too many faces
            continue
        if mesh is None or (shape := shape_of(mesh)) in seen:
            continue
        seen.add(shape)
        path = scratch / f"{len(seen)}.ply"
        write_mesh(path, mesh.vertices, mesh.faces)
        # Numbered ones and both sides of one thing are in one split.
        kin = re.sub(r"\b(l|r|left|right)\b|[0-9]+$", " ", solid.name.lower())
        name = untaken(f"{solid.package}/{in_letters(solid.name)}", taken)
        about = {"source": solid.package, "license": solid.license, "faces": len(mesh.faces)}
        text, group = f"{solid.name}, {solid.category}", f"{solid.package}/{' '.join(kin.split())}"
        yield Sample(f"{name}.ply", text, group, about, path)


write = copied


def read(solid: Solid, scratch: Path) -> Mesh:
    if solid.suffix == ".msh":
        return mujoco(solid.data)
    path = scratch / f"solid{solid.suffix}"
    path.write_bytes(solid.data)
    return read_mesh(path, max_faces=MOST_READ, upright=True)


def mujoco(data: bytes) -> Mesh:
    """MuJoCo's older format: counts, vertices, normals, texture coordinates, faces."""
    vertices, normals, texels, faces = struct.unpack_from("<4i", data)
    points = np.frombuffer(data, "<f4", 3 * vertices, 16).reshape(-1, 3)
    begin = 16 + 12 * vertices + 12 * normals + 8 * texels
    corners = np.frombuffer(data, "<i4", 3 * faces, begin).reshape(-1, 3)
    return Mesh(points.astype(np.float64), corners.astype(np.int64))


def small(mesh: Mesh) -> Mesh | None:
    """None of a flat one, and of one with too few faces."""
    mesh = simplify(*mesh, MOST)
    extent = np.ptp(mesh.vertices, axis=0)
    flat = extent.min() <= 1e-6 * extent.max()
    return None if flat or len(mesh.faces) < FEWEST else mesh


def shape_of(mesh: Mesh) -> str:
    """The same for the same corners, whatever their order, place and size."""
    low = mesh.vertices.min(axis=0)
    scaled = (mesh.vertices - low) / np.ptp(mesh.vertices, axis=0).max()
    return hashlib.md5(np.unique(np.round(scaled, 3), axis=0).tobytes()).hexdigest()


# -- packages -------------------------------------------------------------------------------


def solids(raw: Path) -> Iterator[Solid]:
    for path in found(raw / "sweethome3d-furniture", (".sh3f",)):
        yield from furniture(path)
    yield from geometry(raw)
    yield from robots(raw / "robosuite/robosuite/models/assets")
    yield from skeletons(raw / "dm_control/dm_control")


def furniture(path: Path) -> Iterator[Solid]:
    """A catalogue is a zip file with a list of properties: name#7=…, category#7=…, model#7=…"""
    with zipfile.ZipFile(path) as archive:
        text = archive.read("PluginFurnitureCatalog.properties").decode("latin-1")
        entries: dict[str, dict[str, str]] = {}
        for key, number, value in re.findall(r"(?m)^(\w+)#(\d+)\s*=\s*(.*?)\s*$", text):
            entries.setdefault(number, {})[key] = value
        for entry in entries.values():
            model = entry.get("model", "").lstrip("/")
            if model not in archive.namelist():
                continue
            suffix, data = within(Path(model).suffix.lower(), archive.read(model))
            name = entry["name"].encode().decode("unicode_escape")
            category = f"{entry.get('category', 'home').lower()} item"
            license = FURNITURE[path.stem]
            yield Solid("sweethome3d-furniture", license, name, category, suffix, data)


def within(suffix: str, data: bytes) -> tuple[str, bytes]:
    """Of a zip file, the mesh in it."""
    if suffix != ".zip":
        return suffix, data
    with zipfile.ZipFile(BytesIO(data)) as archive:
        names = [n for n in archive.namelist() if n.lower().endswith((".obj", ".dae"))]
        return (Path(names[0]).suffix.lower(), archive.read(names[0])) if names else (suffix, b"")


def geometry(raw: Path) -> Iterator[Solid]:
    (path,) = (raw / "libcgal-demo").rglob("data.tar.gz")
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            inside = Path(member.name)
            file = archive.extractfile(member)
            if file is None or inside.suffix not in (".off", ".obj", ".ply", ".stl"):
                continue
            if member.size < MAX_BYTES:
                name, license = as_words(inside.stem), "GPL-3+ / LGPL-3+"
                category, data = "geometry test model", file.read()
                yield Solid("libcgal-demo", license, name, category, inside.suffix, data)


def robots(folder: Path) -> Iterator[Solid]:
    for path in found(folder, (".obj", ".stl")):
        place = path.relative_to(folder).parts
        if re.search("sawyer|rethink", path.as_posix()) or path.stat().st_size > MAX_BYTES:
            continue  # the Sawyer arm is in many other sets
        what = "object" if place[0] == "objects" else "robot part"
        whose = " ".join(as_words(part) for part in place[1:-1] if part not in SAYS_NOTHING)
        category = f"{what}, {whose}".strip(", ")
        name, suffix = as_words(path.stem), path.suffix.lower()
        yield Solid("robosuite", "MIT", name, category, suffix, path.read_bytes())


def skeletons(folder: Path) -> Iterator[Solid]:
    for path in found(folder, (".stl", ".msh")):
        place = path.relative_to(folder).as_posix()
        if "test" in place:
            continue
        animal = next((words for part, words in ANIMALS.items() if part in place), "robot arm part")
        name = as_words(path.stem.removeprefix("BONE"))
        suffix = path.suffix.lower()
        yield Solid("dm_control", "Apache-2.0", name, animal, suffix, path.read_bytes())


ANIMALS = {"dog": "dog skeleton part", "fly": "fruit fly skeleton part"}
