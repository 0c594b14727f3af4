"""`quintet sample` for a mesh transformer: generate meshes from captions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.mesh.autoencoder.sample import Format
from quintet.shared.generation import sampling
from quintet.shared.sampling import (
    Device,
    Trained,
    check_positive,
    own_text,
    refuse_inputs,
    stem_of,
)

if TYPE_CHECKING:
    from quintet.mesh.exhibits import Arrays
    from quintet.mesh.transformer.model import MeshTransformer

EXAMPLE = '--text "a table with three legs" --count 8 --format obj --out meshes'


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Generates meshes, from --text if trained with captions."""

    text: tuple[str, ...] = ()
    """Captions to generate meshes from."""
    count: int = 8
    """Meshes per caption."""
    format: Format = "glb"
    """File format; all of them open upright in Blender. stl repeats the vertices of each face."""
    temperature: float = 0.8
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Sample from the k most likely codes only."""
    cond_scale: float = 1.0
    """Classifier-free guidance scale; 1 disables guidance."""
    max_faces: int | None = None
    """Maximum faces per mesh."""
    seed: int = 0
    """Random seed."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    text = own_text(recipe, run, "a flat box")
    captioned = [] if recipe.model.text == "none" else ["--text", text]
    return [*captioned, "--count", "4", "--out", "meshes"]


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Save a file per mesh, and a contact sheet."""
    from quintet.media.meshes.files import write_mesh
    from quintet.mesh.exhibits import MeshSheet

    check_positive(flags, "count")
    refuse_inputs(inputs, trained, "--text")
    model: MeshTransformer = trained.model(flags.device)
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
                [text] if flags.text else None,
                batch_size=flags.count,
                exact=True,
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


together = partial(sampling.together, count="batch_size")
