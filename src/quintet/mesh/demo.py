"""The mesh room in `quintet demo`."""

import math
from pathlib import Path
from typing import Any

from quintet.shared.demo import Figure, Metrics, RoomDemo, Row, Sample, Stage
from quintet.shared.sampling import Trained

CAPTIONS = (
    "a tall cone",
    "a flat box",
    "a diamond",
    "a pyramid",
    "a hexagonal prism",
    "narrow stairs with three steps",
)
VIEWS, SIDE, VIEWS_PER_SECOND = 24, 144, 8


def generate(trained: Trained, out: Path) -> list[Sample]:
    """One mesh for each caption, turning."""
    from quintet.media.clips.writer import write_gif
    from quintet.media.meshes.files import write_mesh
    from quintet.shared.sampling import stem_of

    out.mkdir(parents=True, exist_ok=True)
    meshes = trained.model("cpu").generate(list(CAPTIONS), temperature=0.4, seed=0)
    samples: list[Sample] = []
    for number, (text, mesh) in enumerate(zip(CAPTIONS, meshes)):
        path, faces = out / f"{stem_of(text, number)}.gif", mesh.faces.numpy()
        write_gif(path, turntable(mesh.vertices.numpy(), faces), VIEWS_PER_SECOND)
        if len(faces):
            write_mesh(path.with_suffix(".glb"), mesh.vertices.numpy(), faces)
        samples.append(Sample(prompt=text, file=path, note=f"{len(faces)} faces"))
    return samples


def turntable(vertices: Any, faces: Any) -> Any:
    import numpy as np

    from quintet.media.meshes.render import render

    angles = np.linspace(0, 360, VIEWS, endpoint=False)
    return np.stack([render(vertices, faces, SIDE, azimuth=angle) for angle in angles])


def coded(metrics: Metrics, recipe: Any) -> Figure:
    # Coordinates are exact early in training; cross-entropy keeps improving.
    return Figure(
        value=f"{metrics['loss']:.3f} nats",
        meaning="cross-entropy per coordinate",
        baseline=f"uniform over {recipe.model.bins} bins: {math.log(recipe.model.bins):.2f}",
    )


AUTOENCODER = Row(
    title="Mesh autoencoder",
    description="An autoencoder encodes meshes as discrete codes per vertex and decodes them.",
    figure=coded,
)
TRANSFORMER = Row(
    title="Text to mesh",
    description="An autoregressive transformer generates the faces of a mesh from a caption.",
    figure=lambda metrics, _: Figure(
        value=f"{metrics['agrees']:.0%}",
        meaning="of generated meshes match the caption",
        baseline=f"cross-entropy {metrics['loss']:.2f} nats per code; without the caption "
        f"{metrics['loss_without_text']:.2f}",
    ),
    draw=generate,
    arguments='--text "a flat cone" --count 4 --out meshes',
)
STAGES = (
    Stage(
        folder="autoencoder",
        recipe="mesh/autoencoder_tiny",
        row=AUTOENCODER,
        steps=200,
        seconds=28,
        minimal_settings={"meshes.valid_limit": 16},
        evaluations=2,
    ),
    Stage(
        folder="transformer",
        recipe="mesh/transformer_tiny",
        row=TRANSFORMER,
        steps=800,
        seconds=155,
        minimal_settings={
            "meshes.builtin_count": 64,
            "meshes.valid_limit": 4,
            "generation.count": 2,
        },
        depends_on={"autoencoder": "autoencoder"},
    ),
)
DEMO = RoomDemo(position=3, stages=STAGES, ready="mesh", row=TRANSFORMER)
