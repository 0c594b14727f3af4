"""`quintet sample` for retopology: clean meshes for scans and dense meshes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.mesh.autoencoder.sample import Format
from quintet.shared.sampling import (
    Device,
    Input,
    Trained,
    check_positive,
    each_input,
    find_inputs,
    has_validation,
    readable,
    with_input,
)

if TYPE_CHECKING:
    import numpy as np

    from quintet.mesh.exhibits import Arrays
    from quintet.mesh.retopology.model import Retopology

EXAMPLE = "scan.ply --faces 500 --out clean.obj"
MANY = 100_000
"""Points that are read of a file; normals are estimated from these."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Makes a clean mesh of few faces for a scan or a dense mesh: surfaces (.obj, .ply, .stl, .glb)
    or points (.ply, .xyz, .npy), in their own units; without files, of validation meshes."""

    faces: int | None = None
    """Wished number of faces; by default the model's own choice."""
    count: int = 1
    """Tries; the nearest to the input with few open edges comes first, the others beside it."""
    keep: Path | None = None
    """Mesh in the units of the input, whose faces the result will have."""
    mend: bool = True
    """Close cracks of up to two cells of the grid, unless a part is kept."""
    format: Format = "obj"
    """File format in a folder; --out clean.glb names one. All open upright in Blender."""
    temperature: float = 0.5
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Sample from the k most likely coordinates only."""
    seed: int = 0
    """Random seed."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    from quintet.media.meshes.files import SUFFIXES

    words = ["--out", "out"]
    return words if has_validation(run) else with_input(recipe, run, SUFFIXES, *words)


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Save the meshes of each input, and a picture of the input beside the result."""
    from quintet.media.meshes.files import read_mesh, write_mesh
    from quintet.media.meshes.points import point_suffixes
    from quintet.mesh.exhibits import MeshSheet

    check_positive(flags, "count")
    if flags.faces is not None and flags.faces < 4:
        raise RunError(f"--faces {flags.faces} is no mesh: give 4 or more")
    files = find_inputs(inputs, (point_suffixes(),), "meshes or points")
    own = {} if files else _validation(trained, flags)
    files = files or [Input(Path(name), name, named=True) for name in own]
    named = out.suffix.lower() in _suffixes()
    if named and len(files) > 1:
        raise RunError(f"{len(files)} inputs do not fit into {out}: give --out a folder")
    model: Retopology = trained.model(flags.device)
    keep = None if flags.keep is None else read_mesh(flags.keep, upright=True)
    (out.parent if named else out).mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[Arrays]] = {}

    def work(item: Input) -> list[Path]:
        points = own[item.stem] if own else _read(item.path)
        try:
            meshes = model.retopologise(
                points,
                flags.faces,
                count=flags.count,
                keep=keep,
                mend=flags.mend,
                temperature=flags.temperature,
                top_k=flags.top_k,
                seed=flags.seed,
            )
        except ValueError as error:
            raise RunError(f"{item.path}: {error}") from None
        paths: list[Path] = []
        for number, mesh in enumerate(meshes):
            ending = f"-{number + 1}" if number else ""
            path = out.with_stem(out.stem + ending) if named else None
            path = path or item.target(out, f"{ending}.{flags.format}")
            if len(mesh[1]):  # a try may have no valid face
                write_mesh(path, *mesh)
                paths.append(path)
        if not paths:
            raise RunError(f"{item.path}: no try had a face; train longer, or raise --count")
        rows[item.stem] = [surfels(points), *meshes[:3]]
        return paths

    paths = each_input(files, work)
    titles = ["input", "result", "second try", "third try"][: 1 + min(flags.count, 3)]
    texts = [f"{stem}, {len(row[1][1])} faces" for stem, row in rows.items()]
    sheet = MeshSheet(out.stem if named else "sheet", [*rows.values()], titles, texts, files=False)
    return [*paths, *sheet.write(out.parent if named else out)]


def _suffixes() -> tuple[str, ...]:
    return tuple(f".{name}" for name in Format.__args__)  # type: ignore[attr-defined]


def _read(path: Path) -> "np.ndarray":
    import numpy as np

    from quintet.media.meshes.points import read_points

    return read_points(path, MANY, np.random.default_rng(0))


def _validation(trained: Trained, flags: Flags) -> dict[str, "np.ndarray"]:
    from quintet.mesh.retopology.data import open_scans

    if flags.keep is not None:
        raise RunError("--keep needs the file that it is a part of: name an input")
    recipe = trained.recipe_with_data("scans or meshes")
    samples = (item for _, item in readable(open_scans(recipe, "valid"), 8))
    points = {f"validation-{i:03d}": item["points"].numpy() for i, item in enumerate(samples)}
    if not points:
        raise RunError(f"{trained.path} has no readable validation mesh; pass files")
    return points


def surfels(points: "np.ndarray") -> "Arrays":
    """Points (n, 6) to look at: a small triangle for each."""
    import numpy as np

    places, normals = points[:, :3], points[:, 3:]
    side = float(np.ptp(places, axis=0).max()) / 50
    other = np.where(np.abs(normals[:, 2:]) < 0.9, [[0, 0, 1.0]], [[1.0, 0, 0]])
    across = np.cross(normals, other)
    across /= np.linalg.norm(across, axis=1, keepdims=True).clip(1e-12)
    up = np.cross(normals, across)
    turns = [(np.cos(a) * across + np.sin(a) * up) * side for a in (0.0, 2.1, 4.2)]
    corners = np.stack([places + turn for turn in turns], 1)
    return corners.reshape(-1, 3), np.arange(3 * len(points)).reshape(-1, 3)
