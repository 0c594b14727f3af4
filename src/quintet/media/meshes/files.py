"""Reading and writing of meshes: vertices float64 (v, 3) and triangles int64 (f, 3).

Arrays are z-up, as in Blender. Limits on bytes, faces and vertices are checked before decoding, and
no other file is opened: no materials, textures or external buffers.
"""

import json
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.files import atomic_write
from quintet.media.errors import BadFile, OutOfRange, check_file, decoding
from quintet.media.meshes import scenes
from quintet.media.meshes.gltf import count_glb, count_gltf, json_length, read_glb, read_gltf
from quintet.media.meshes.ply import MAX_HEADER, count_ply, read_ply
from quintet.media.meshes.polygons import (
    FACET,
    Beyond,
    Floats,
    Ints,
    Limits,
    Mesh,
    Unusable,
    count_obj,
    count_stl,
    read_obj,
    read_off,
    read_stl,
    row_numbers,
)
from quintet.media.shards.member import as_path

SUFFIXES = (".obj", ".ply", ".stl", ".glb", ".gltf", ".off")
"""Formats that are read without an extra; `readable()` has those of this installation."""
UNREAD = (
    ".fbx", ".blend", ".3ds", ".x3d", ".wrl", ".usd", ".usda", ".usdc", ".usdz",
    ".step", ".stp", ".iges", ".igs", ".lwo", ".max", ".xyz",
)  # fmt: skip
"""Mesh formats that are not read; their files are counted."""
MAX_BYTES = 256_000_000
MAX_FACES = 1_000_000
MAX_VERTICES = 3_000_000
MAX_COORDINATE = 1e30
"""Coordinate beyond which areas overflow single precision."""

_READERS: dict[str, Callable[[bytes, Limits], Mesh]] = {
    ".obj": read_obj,
    ".ply": read_ply,
    ".stl": read_stl,
    ".glb": read_glb,
    ".gltf": read_gltf,
    ".off": read_off,
    ".dae": scenes.read_dae,
    ".3mf": scenes.read_3mf,
}
_Y_UP = (".obj", ".glb", ".gltf")


def readable() -> tuple[str, ...]:
    return SUFFIXES + scenes.SUFFIXES if scenes.installed() else SUFFIXES


def unread() -> tuple[str, ...]:
    return UNREAD if scenes.installed() else scenes.SUFFIXES + UNREAD


def read_mesh(
    path: Path | str,
    *,
    max_bytes: int = MAX_BYTES,
    max_faces: int = MAX_FACES,
    upright: bool = False,
) -> Mesh:
    """Vertices and triangles of a file, by its suffix; raises BadFile.

    Scenes are flattened and polygons split into triangle fans (correct for convex ones). Duplicate
    vertices (as in every STL file), unused ones, and degenerate or duplicate faces are not removed.
    With `upright`, y-up files (obj, glb, gltf, and dae by its header) are rotated to z-up, which
    inverts `write_mesh`.
    """
    path = as_path(path)
    suffix = path.suffix.lower()
    reader = _READERS.get(suffix)
    if reader is None:
        raise BadFile(path, "has no supported mesh format", f"use one of {', '.join(_READERS)}")
    with reading(path, max_bytes):
        data = path.read_bytes()
        mesh = _checked(reader(data, Limits(max_faces, MAX_VERTICES)))
    if upright and (suffix in _Y_UP or (suffix == ".dae" and scenes.is_y_up(data))):
        return Mesh(_z_up(mesh.vertices), mesh.faces)
    return mesh


@contextmanager
def reading(path: Path, max_bytes: int) -> Generator[None]:
    check_file(path, max_bytes, "simplify the mesh")
    # Within the limits, only a machine that is nearly full runs out of memory here.
    library = "trimesh" if path.suffix.lower() in scenes.SUFFIXES else "quintet"
    with decoding(path, library, MemoryError), np.errstate(all="ignore"):
        try:
            yield
        except Beyond as error:
            raise OutOfRange(path, *error.args) from error
        except Unusable as error:
            raise BadFile(path, error.reason, error.remedy) from error


def count_faces(
    path: Path | str, enough: int, *, max_bytes: int = MAX_BYTES, max_faces: int = MAX_FACES
) -> int:
    """An upper bound on the triangles of a file, from the header if possible, otherwise by reading.
    Above `enough`, it may be any number above that.

    Raises BadFile for some of the files that `read_mesh` refuses, and OutOfRange beyond the limits.
    """
    path = as_path(path)
    limits, suffix = Limits(max_faces, MAX_VERTICES), path.suffix.lower()
    count = None
    with reading(path, max_bytes):
        if suffix == ".ply":
            count = count_ply(_head(path, MAX_HEADER), path.stat().st_size)
        elif suffix == ".stl":
            count = count_stl(_head(path, 84), path.stat().st_size)
        elif suffix == ".glb":
            head = _head(path, json_length(_head(path, 20)))
            count = count_glb(head, path.stat().st_size, limits)
        elif suffix == ".gltf":
            count = count_gltf(path.read_bytes(), limits)
        elif suffix == ".obj":
            count = count_obj(path.read_bytes(), enough)
        if count is not None:
            limits.check_faces(count)
    if count is None:
        count = len(read_mesh(path, max_bytes=max_bytes, max_faces=max_faces).faces)
    return count


def _head(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _checked(mesh: Mesh) -> Mesh:
    vertices, faces = mesh
    if len(faces) == 0:
        raise Unusable("holds no faces", "save it as a mesh of triangles or polygons")
    if len(vertices) == 0:
        raise Unusable("holds no vertices")
    largest = np.abs(vertices).max()
    if not np.isfinite(largest):
        raise Unusable("has vertices that are not finite numbers (NaN or infinite)", "repair it")
    if largest > MAX_COORDINATE:
        raise Unusable(f"has a coordinate of {largest:.0e}", "scale the mesh to usual numbers")
    low, high = int(faces.min()), int(faces.max())
    if low < 0 or high >= len(vertices):
        wrong = low if low < 0 else high
        raise Unusable(f"has a face with vertex {wrong:,} of {len(vertices):,}, counted from 0")
    return Mesh(np.ascontiguousarray(vertices), np.ascontiguousarray(faces))


def _z_up(vertices: Floats) -> Floats:
    return np.stack([vertices[:, 0], -vertices[:, 2], vertices[:, 1]], axis=1)


def _y_up(vertices: Floats) -> Floats:
    return np.stack([vertices[:, 0], vertices[:, 2], -vertices[:, 1]], axis=1)


# -- writing --------------------------------------------------------------------------------


def write_mesh(path: Path | str, vertices: npt.ArrayLike, faces: npt.ArrayLike) -> None:
    """Write a mesh as .obj, .glb, .ply or .stl; the same mesh gives the same bytes.

    Arrays are z-up. glTF is y-up by its standard, and Blender expects the same of obj, so both are
    rotated; ply and stl name no axis and are not. Blender then shows all of them upright with its
    default settings. Faces are (f, 3) or polygons (f, k), which glb and stl store as triangle fans.
    The file is complete or absent.
    """
    path = Path(path)
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        raise ValueError(f"{path.name}: meshes are written as {', '.join(_WRITERS)}")
    points, polygons = _writable(path, vertices, faces)
    atomic_write(path, write(points, polygons))


def _writable(path: Path, vertices: npt.ArrayLike, faces: npt.ArrayLike) -> Mesh:
    points = np.asarray(vertices, np.float64) + 0.0  # -0.0 becomes 0.0
    polygons = np.asarray(faces, np.int64)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"{path.name}: vertices have shape {points.shape}; give (v, 3)")
    if polygons.ndim != 2 or polygons.shape[1] < 3:
        raise ValueError(f"{path.name}: faces have shape {polygons.shape}; give (f, 3) or (f, 4)")
    if not (np.abs(points) <= MAX_COORDINATE).all():
        raise ValueError(f"{path.name}: vertices hold NaN, infinite or enormous numbers")
    if polygons.size and not 0 <= polygons.min() <= polygons.max() < len(points):
        reason = f"faces name vertices {polygons.min()}..{polygons.max()} of {len(points)}"
        raise ValueError(f"{path.name}: {reason}; remove padding faces before writing")
    return Mesh(points, polygons)


def _obj_bytes(vertices: Floats, faces: Ints) -> bytes:
    lines = ["# z of the model is y here, as obj has it"]
    lines += ["v " + " ".join(f"{x + 0.0:.6g}" for x in row) for row in _y_up(vertices).tolist()]
    lines += ["f " + " ".join(map(str, row)) for row in (faces + 1).tolist()]
    return ("\n".join(lines) + "\n").encode("ascii")


def _ply_bytes(vertices: Floats, faces: Ints) -> bytes:
    header = (
        "ply\nformat binary_little_endian 1.0\n"
        f"element vertex {len(vertices)}\nproperty float x\nproperty float y\nproperty float z\n"
        f"element face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n"
    )
    rows = np.zeros(len(faces), [("count", "u1"), ("corners", "<i4", (faces.shape[1],))])
    rows["count"] = faces.shape[1]
    rows["corners"] = faces
    return header.encode("ascii") + vertices.astype("<f4").tobytes() + rows.tobytes()


def _glb_bytes(vertices: Floats, faces: Ints) -> bytes:
    """Positions and indices; the standard requires flat shading without normals."""
    triangles = _fans(faces)
    points = (_y_up(vertices) + 0.0).astype("<f4")
    binary = points.tobytes() + triangles.astype("<u4").tobytes()
    text = json.dumps(_document(points, triangles), separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<II", len(text), 0x4E4F534A) + text
    if binary:
        chunks += struct.pack("<II", len(binary), 0x004E4942) + binary
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks


def _stl_bytes(vertices: Floats, faces: Ints) -> bytes:
    """Binary STL; a header that begins with "solid" would be taken for text."""
    corners = vertices[_fans(faces)]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    lengths = np.linalg.norm(normals, axis=1, keepdims=True)
    rows = np.zeros(len(corners), FACET)
    rows["normal"] = normals / np.where(lengths > 0, lengths, 1) + 0.0
    rows["corners"] = corners
    return b"binary STL by quintet".ljust(80) + struct.pack("<I", len(rows)) + rows.tobytes()


def _fans(faces: Ints) -> Ints:
    """Polygons (f, k) as triangles (f (k - 2), 3)."""
    corners = range(1, faces.shape[1] - 1)
    return np.stack([faces[:, [0, at, at + 1]] for at in corners], axis=1).reshape(-1, 3)


def _document(points: npt.NDArray[np.float32], triangles: Ints) -> dict[str, object]:
    document: dict[str, object] = {"asset": {"version": "2.0", "generator": "quintet"}}
    if len(triangles) == 0:  # empty accessors are not allowed
        return document | ({"buffers": [{"byteLength": points.nbytes}]} if points.nbytes else {})
    low, high = points.min(axis=0), points.max(axis=0)
    return document | {
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1, "mode": 4}]}],
        "accessors": [
            {
                "bufferView": 0,
                "componentType": 5126,
                "count": len(points),
                "type": "VEC3",
                "min": [float(x) for x in low],
                "max": [float(x) for x in high],
            },
            {"bufferView": 1, "componentType": 5125, "count": triangles.size, "type": "SCALAR"},
        ],
        "bufferViews": [
            {"buffer": 0, "byteOffset": 0, "byteLength": points.nbytes, "target": 34962},
            {
                "buffer": 0,
                "byteOffset": points.nbytes,
                "byteLength": 4 * triangles.size,
                "target": 34963,
            },
        ],
        "buffers": [{"byteLength": points.nbytes + 4 * triangles.size}],
    }


_WRITERS: dict[str, Callable[[Floats, Ints], bytes]] = {
    ".obj": _obj_bytes,
    ".glb": _glb_bytes,
    ".ply": _ply_bytes,
    ".stl": _stl_bytes,
}


# -- simplifying ----------------------------------------------------------------------------


def simplify(vertices: npt.ArrayLike, faces: npt.ArrayLike, max_faces: int) -> Mesh:
    """A mesh of at most `max_faces` triangles, by merging the vertices in each cell of a grid.

    The finest sufficient grid is found by bisection. This is coarse: thin parts may vanish, and
    flat regions have more triangles than necessary. It accepts any triangles and needs no other
    library. A mesh that is small enough is returned unchanged.
    """
    points, triangles = np.asarray(vertices, np.float64), np.asarray(faces, np.int64)
    if len(triangles) <= max_faces:
        return Mesh(points, triangles)
    best, low, high = 0, 1, 2048
    while high - low > 1:
        cells = (low + high) // 2
        count = len(_clusters(points, triangles, cells).triangles)
        if count > max_faces:
            high = cells
            continue
        low = cells
        if count:
            best = cells
    if not best:
        raise ValueError(f"{len(triangles):,} faces cannot be merged into {max_faces} or fewer")
    return _clustered(points, triangles, best)


class _Clusters(NamedTuple):
    of: Ints
    """(v,): the cluster of each vertex."""
    counts: Ints
    """Vertices of each cluster."""
    triangles: Ints
    """Indices of the triangles that neither collapse nor coincide with an earlier one."""


def _clusters(points: Floats, triangles: Ints, cells: int) -> _Clusters:
    low = points.min(axis=0)
    side = float((points.max(axis=0) - low).max()) or 1.0
    at = np.minimum(((points - low) / side * cells).astype(np.int64), cells - 1)
    key = (at[:, 0] * cells + at[:, 1]) * cells + at[:, 2]
    _, cluster, counts = np.unique(key, return_inverse=True, return_counts=True)
    corners = np.sort(cluster[triangles], axis=1)
    proper = np.flatnonzero((corners[:, 0] < corners[:, 1]) & (corners[:, 1] < corners[:, 2]))
    _, first = np.unique(row_numbers(corners[proper], len(counts)), return_index=True)
    return _Clusters(cluster, counts, proper[np.sort(first)])


def _clustered(points: Floats, triangles: Ints, cells: int) -> Mesh:
    """Each cell's vertices become their mean; triangles that collapse or coincide are dropped."""
    cluster, counts, remaining = _clusters(points, triangles, cells)
    sums = np.stack([np.bincount(cluster, points[:, axis]) for axis in range(3)], axis=1)
    used, renumbered = np.unique(cluster[triangles[remaining]], return_inverse=True)
    return Mesh((sums / counts[:, None])[used], renumbered.reshape(-1, 3))
