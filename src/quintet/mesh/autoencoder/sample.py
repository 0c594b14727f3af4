"""`quintet sample` for a mesh autoencoder: reconstruct files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quintet.engine.errors import RunError
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
    from quintet.mesh.autoencoder.model import MeshAutoencoder
    from quintet.mesh.exhibits import Arrays

Format = Literal["obj", "glb", "ply", "stl"]
EXAMPLE = "chair.obj --format obj --out out"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Reconstructs mesh files, or folders of them, from their codes; without any, validation
    meshes."""

    count: int = 8
    """Without files: number of validation meshes."""
    format: Format = "glb"
    """File format; all of them open upright in Blender. stl repeats the vertices of each face."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


SHEET_ROWS = 16
"""Meshes on the sheet of an autoencoder."""


def example(recipe: Any, run: Path) -> list[str]:
    from quintet.media.meshes.files import SUFFIXES

    words = ["--out", "out"]
    return words if has_validation(run) else with_input(recipe, run, SUFFIXES, *words)


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Save original and reconstruction of each mesh, and a contact sheet."""
    from quintet.media.meshes.files import SUFFIXES, write_mesh
    from quintet.mesh.exhibits import MeshSheet

    check_positive(flags, "count")
    model: MeshAutoencoder = trained.model(flags.device)
    files = find_inputs(inputs, (SUFFIXES,), "meshes (obj, ply, stl, glb, gltf, off)")
    titles = ("original", "reconstruction")
    rows: dict[str, list[Arrays]] = {}

    def work(item: Input) -> list[Path]:
        mesh = validation[item.stem] if validation else _read(item.path, model)
        pair = [mesh, through_codes(model, mesh)]
        paths = [item.target(out, f".{title}.{flags.format}") for title in titles]
        for path, mesh in zip(paths, pair):
            write_mesh(path, *mesh)
        if len(rows) < SHEET_ROWS:
            rows[item.stem] = pair
        return paths

    validation = {} if files else _validation_meshes(trained, flags.count)
    files = files or [Input(Path(name), name, named=True) for name in validation]
    out.mkdir(parents=True, exist_ok=True)
    paths = each_input(files, work)
    sheet = MeshSheet("sheet", [*rows.values()], [*titles], [*rows], files=False)
    return [*paths, *sheet.write(out)]


def _read(path: Path, model: "MeshAutoencoder") -> "Arrays":
    from quintet.media.meshes.files import read_mesh
    from quintet.mesh.config import MeshDataConfig
    from quintet.mesh.data import prepare

    if model.config.corners != 3:
        raise RunError("this autoencoder takes quads, but files are read as triangles")
    try:
        vertices, faces = prepare(*read_mesh(path, upright=True), MeshDataConfig(max_faces=100_000))
    except ValueError as error:
        raise RunError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    return vertices, faces


def _validation_meshes(trained: Trained, count: int) -> dict[str, "Arrays"]:
    from quintet.mesh.data import open_data

    recipe = trained.recipe_with_data("files of meshes")
    dataset = open_data(recipe.data, recipe.meshes, "valid", recipe.seed)
    samples = (item for _, item in readable(dataset, count))
    meshes = {
        f"validation-{index:03d}": (item["vertices"].numpy(), item["faces"].numpy())
        for index, item in enumerate(samples)
    }
    if not meshes:
        raise RunError(f"{trained.path} has no readable validation mesh; pass mesh files")
    return meshes


def through_codes(model: "MeshAutoencoder", mesh: "Arrays") -> "Arrays":
    """The mesh reconstructed from its codes."""
    import torch

    from quintet.mesh.exhibits import mesh_of_corners

    device = next(model.parameters()).device
    vertices = torch.as_tensor(mesh[0], dtype=torch.float32, device=device)[None]
    faces = torch.as_tensor(mesh[1], dtype=torch.int64, device=device)[None]
    with torch.no_grad():
        coordinates, mask = model.decode_codes(model.tokenize(vertices, faces))
    return mesh_of_corners(coordinates[0], mask[0])
