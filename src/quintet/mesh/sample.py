"""What `quintet sample` does for meshes: reconstruct files, or write new meshes from sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    Device,
    check_inputs,
    check_positive,
    loaded,
    readable,
    recipe_with_data,
    stem_of,
)

if TYPE_CHECKING:
    from quintet.mesh.autoencoder import MeshAutoencoder
    from quintet.mesh.exhibits import Arrays
    from quintet.mesh.transformer import MeshTransformer


@dataclass(frozen=True, kw_only=True)
class Flags:
    """A transformer writes meshes, from --text where it has learned any; an autoencoder takes
    files of meshes and writes what comes back through its codes."""

    text: tuple[str, ...] = ()
    """Transformer: sentences to write meshes for."""
    count: int = 8
    """Transformer: meshes for each sentence. Autoencoder without files: held-out meshes."""
    format: Literal["obj", "glb", "ply"] = "glb"
    """The kind of file; all three open in Blender."""
    temperature: float = 0.8
    """Transformer: 1 draws as learned, lower is tamer, 0 always takes the likeliest code."""
    top_k: int | None = None
    """Transformer: draw from the k likeliest codes only."""
    cond_scale: float = 1.0
    """Transformer: how far the sentence is followed beyond what it asks for."""
    max_faces: int | None = None
    """Transformer: end a mesh after so many faces."""
    seed: int = 0
    """Transformer: the same number gives the same meshes."""
    device: Device = "auto"
    """Where to compute; auto takes the GPU where there is one."""


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Writes a file for each mesh, and a sheet of pictures of them all."""
    from quintet.mesh.autoencoder import MeshAutoencoder

    check_positive(flags, "count")
    model = loaded(run, flags.device)
    if isinstance(model, MeshAutoencoder):
        if flags.text:
            raise RunError(f"{run} is an autoencoder: it takes files, not --text")
        return _reconstruct(model, run, inputs, out, flags)
    if inputs:
        raise RunError(f"{run} writes meshes from --text; {inputs[0]} is not used")
    return _write(model, out, flags)


# -- new meshes -----------------------------------------------------------------------------------


def _write(model: "MeshTransformer", out: Path, flags: Flags) -> list[Path]:
    from quintet.media.meshes import write_mesh
    from quintet.mesh.exhibits import MeshSheet

    if flags.text and model.config.text == "none":
        raise RunError("this transformer was trained without captions; leave --text away")
    model.autoencoder.to(next(model.parameters()).device)
    out.mkdir(parents=True, exist_ok=True)
    texts = [*flags.text] or [""]
    rows: list[list[Arrays]] = []
    written: list[Path] = []
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
                if len(mesh[1]):  # a mesh may end before its first sound face
                    write_mesh(path, *mesh)
                    written.append(path)
            rows.append(row)
    except ValueError as error:
        raise RunError(str(error)) from None
    titles = [f"{index:03d}" for index in range(flags.count)]
    return [*written, *MeshSheet("sheet", rows, titles, texts, files=False).write(out)]


# -- meshes that come back ------------------------------------------------------------------------


def _reconstruct(
    model: "MeshAutoencoder", run: Path, inputs: Sequence[Path], out: Path, flags: Flags
) -> list[Path]:
    from quintet.media.meshes import write_mesh
    from quintet.mesh.exhibits import MeshSheet

    check_inputs(inputs, "meshes (obj, ply, stl, glb, gltf, off)")
    names = [path.stem for path in inputs]
    meshes = [_read(path, model) for path in inputs] or _held_out(run, flags.count)
    names = names or [f"held-out-{index:03d}" for index in range(len(meshes))]
    out.mkdir(parents=True, exist_ok=True)
    rows = [[mesh, _through_codes(model, mesh)] for mesh in meshes]
    written = []
    for name, row in zip(names, rows):
        for title, mesh in zip(("original", "reconstruction"), row):
            written.append(out / f"{name}.{title}.{flags.format}")
            write_mesh(written[-1], *mesh)
    sheet = MeshSheet("sheet", rows, ["original", "reconstruction"], names, files=False)
    return [*written, *sheet.write(out)]


def _read(path: Path, model: "MeshAutoencoder") -> "Arrays":
    from quintet.media.meshes import read_mesh
    from quintet.mesh.config import MeshDataConfig
    from quintet.mesh.data import prepare

    if model.config.corners != 3:
        raise RunError("this autoencoder takes quads, and files are read as triangles")
    try:
        vertices, faces = prepare(*read_mesh(path, upright=True), MeshDataConfig(max_faces=100_000))
    except ValueError as error:
        raise RunError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    return vertices, faces


def _held_out(run: Path, count: int) -> list["Arrays"]:
    from quintet.mesh.data import open_data

    recipe = recipe_with_data(run, "files of meshes")
    held = open_data(recipe.data, recipe.meshes, "valid", recipe.seed)
    samples = (item for _, item in readable(held, count))
    found = [(item["vertices"].numpy(), item["faces"].numpy()) for item in samples]
    if not found:
        raise RunError(f"{run} has no held-out mesh that can be read; give files of meshes")
    return found


def _through_codes(model: "MeshAutoencoder", mesh: "Arrays") -> "Arrays":
    import torch

    from quintet.mesh.exhibits import mesh_of_corners

    device = next(model.parameters()).device
    vertices = torch.as_tensor(mesh[0], dtype=torch.float32, device=device)[None]
    faces = torch.as_tensor(mesh[1], dtype=torch.int64, device=device)[None]
    with torch.no_grad():
        places, mask = model.decode_codes(model.tokenize(vertices, faces))
    return mesh_of_corners(places[0], mask[0])
