"""`quintet sample` for meshes: reconstruct files, or generate meshes from captions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    Device,
    Input,
    check_positive,
    each_input,
    find_inputs,
    has_validation,
    loaded,
    readable,
    recipe_with_data,
    stem_of,
)

if TYPE_CHECKING:
    from quintet.mesh.autoencoder.model import MeshAutoencoder
    from quintet.mesh.exhibits import Arrays
    from quintet.mesh.transformer.model import MeshTransformer


EXAMPLE = '--text "a table with three legs" --count 8 --format obj --out meshes'


@dataclass(frozen=True, kw_only=True)
class Flags:
    """A transformer generates meshes, from --text if trained with captions. An autoencoder
    reconstructs mesh files, or folders of them, from their codes."""

    text: tuple[str, ...] = ()
    """Transformer: captions to generate meshes from."""
    count: int = 8
    """Transformer: meshes per caption. Autoencoder without files: number of validation meshes."""
    format: Literal["obj", "glb", "ply", "stl"] = "glb"
    """File format; all of them open upright in Blender. stl repeats the vertices of each face."""
    temperature: float = 0.8
    """Transformer: sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Transformer: sample from the k most likely codes only."""
    cond_scale: float = 1.0
    """Transformer: classifier-free guidance scale; 1 disables guidance."""
    max_faces: int | None = None
    """Transformer: maximum faces per mesh."""
    seed: int = 0
    """Transformer: random seed."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


SHEET_ROWS = 16
"""Meshes on the sheet of an autoencoder."""


def example(recipe: Any, run: Path) -> list[str]:
    from quintet.mesh.config import MeshTransformerRecipe

    if not isinstance(recipe, MeshTransformerRecipe):
        return ["--out", "out"] if has_validation(run) else []
    text = [] if recipe.model.text == "none" else ["--text", "a flat box"]
    return [*text, "--count", "4", "--out", "meshes"]


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Save a file per mesh, and a contact sheet."""
    from quintet.mesh.autoencoder.model import MeshAutoencoder

    check_positive(flags, "count")
    model = loaded(run, flags.device)
    if isinstance(model, MeshAutoencoder):
        if flags.text:
            raise RunError(f"{run} is an autoencoder: it takes files, not --text")
        return _reconstruct(model, run, inputs, out, flags)
    if inputs:
        raise RunError(f"{run} generates meshes from --text and takes no files; drop {inputs[0]}")
    return _generate(model, out, flags)


# -- generation -----------------------------------------------------------------------------------


def _generate(model: "MeshTransformer", out: Path, flags: Flags) -> list[Path]:
    from quintet.media.meshes.files import write_mesh
    from quintet.mesh.exhibits import MeshSheet

    if flags.text and model.config.text == "none":
        raise RunError("this transformer was trained without captions; drop --text")
    model.autoencoder.to(next(model.parameters()).device)
    out.mkdir(parents=True, exist_ok=True)
    texts = [*flags.text] or [""]
    rows: list[list[Arrays]] = []
    paths: list[Path] = []
    try:
        for number, text in enumerate(texts):
            meshes: Any = model.generate(
                [text] * flags.count if flags.text else None,
                batch_size=flags.count,
                temperature=flags.temperature,
                top_k=flags.top_k,
                cond_scale=flags.cond_scale,
                max_faces=flags.max_faces,
                seed=flags.seed + number,
            )
            row = [(mesh.vertices.numpy(), mesh.faces.numpy()) for mesh in meshes]
            for index, mesh in enumerate(row):
                path = out / f"{stem_of(text, number)}-{index:03d}.{flags.format}"
                if len(mesh[1]):  # a mesh may have no valid face
                    write_mesh(path, *mesh)
                    paths.append(path)
            rows.append(row)
    except ValueError as error:
        raise RunError(str(error)) from None
    titles = [f"{index:03d}" for index in range(flags.count)]
    return [*paths, *MeshSheet("sheet", rows, titles, texts, files=False).write(out)]


# -- reconstruction -------------------------------------------------------------------------------


def _reconstruct(
    model: "MeshAutoencoder", run: Path, inputs: Sequence[Path], out: Path, flags: Flags
) -> list[Path]:
    from quintet.media.meshes.files import SUFFIXES, write_mesh
    from quintet.mesh.exhibits import MeshSheet

    files = find_inputs(inputs, (SUFFIXES,), "meshes (obj, ply, stl, glb, gltf, off)", out)
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

    validation = {} if files else _validation_meshes(run, flags.count)
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


def _validation_meshes(run: Path, count: int) -> dict[str, "Arrays"]:
    from quintet.mesh.data import open_data

    recipe = recipe_with_data(run, "files of meshes")
    dataset = open_data(recipe.data, recipe.meshes, "valid", recipe.seed)
    samples = (item for _, item in readable(dataset, count))
    meshes = {
        f"validation-{index:03d}": (item["vertices"].numpy(), item["faces"].numpy())
        for index, item in enumerate(samples)
    }
    if not meshes:
        raise RunError(f"{run} has no readable validation mesh; pass mesh files")
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
