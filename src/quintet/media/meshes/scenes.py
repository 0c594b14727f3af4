"""Collada (.dae) and 3MF (.3mf) through trimesh (`quintet[meshes]`), from bytes in memory.

Files are untrusted: document types and entities are refused, a zip archive is measured before it is
unpacked, and no resolver is passed, so that no other file is opened. An XML parser needs several
times the size of the text; `max_bytes` bounds it.
"""

import re
import zipfile
from importlib.util import find_spec
from io import BytesIO

import numpy as np

from quintet.media.errors import MISTAKES
from quintet.media.meshes.polygons import Beyond, Limits, Mesh, Unusable

SUFFIXES = (".dae", ".3mf")
EXTRA = "pip install 'quintet[meshes]'"
MAX_UNPACKED = 1_000_000_000
_NEEDS = ("trimesh", "networkx", "lxml", "collada")


def installed() -> bool:
    return all(map(find_spec, _NEEDS))


def read_dae(data: bytes, limits: Limits) -> Mesh:
    """Read all meshes of the scene, in its coordinates and the axes of the file."""
    _refuse_entities(data)
    return _scene(data, "dae", limits)


def read_3mf(data: bytes, limits: Limits) -> Mesh:
    """Read all items of the build, or all objects if there is none."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > MAX_UNPACKED:
                limit = f"over {MAX_UNPACKED // 1_000_000:,} MB"
                raise Beyond(f"unpacks to {unpacked:,} bytes", limit, "simplify it", unpacked)
            for entry in archive.infolist():
                with archive.open(entry) as file:
                    _refuse_entities(file.read(65_536))
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise Unusable(f"is not a 3MF archive ({error})") from error
    return _scene(data, "3mf", limits)


def is_y_up(data: bytes) -> bool:
    """Whether a Collada file is y-up, which is also its default."""
    axis = re.search(rb"<up_axis>\s*([XYZ])_UP", data)
    return axis is None or axis[1] == b"Y"


def _refuse_entities(data: bytes) -> None:
    if re.search(rb"<!(DOCTYPE|ENTITY)", data[:65_536], re.IGNORECASE):
        raise Unusable("declares a document type or entities", "save it again without them")


def _scene(data: bytes, kind: str, limits: Limits) -> Mesh:
    try:
        import trimesh
    except ImportError as error:
        raise ImportError(f".{kind} files need trimesh: {EXTRA}") from error
    if not installed():
        raise ImportError(f".{kind} files need more than trimesh: {EXTRA}")
    try:
        scene = trimesh.load_scene(BytesIO(data), file_type=kind, resolver=None)
        whole = scene.to_mesh()
    except Exception as error:
        if isinstance(error, MISTAKES) and "NoneType" not in str(error):
            raise  # an error of the library; None stands for a missing element
        raise Unusable(f"cannot be parsed ({type(error).__name__}: {error})") from error
    limits.check_faces(len(whole.faces))
    limits.check_vertices(len(whole.vertices))
    return Mesh(np.array(whole.vertices, np.float64), np.array(whole.faces, np.int64))
