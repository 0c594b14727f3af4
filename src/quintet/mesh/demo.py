"""Stages of the mesh room in `quintet demo`."""

import math
from pathlib import Path

from quintet.shared.demo import Sample, Stage
from quintet.shared.sampling import Trained

CAPTIONS = ("a flat box", "a tall cone", "a pyramid")


def generate(trained: Trained, out: Path) -> list[Sample]:
    from quintet.mesh.transformer.sample import Flags, sample

    flags = Flags(text=CAPTIONS, count=4, temperature=0.4, device="cpu")
    *_, sheet = sample(trained, (), out, flags)
    return [Sample(prompt=", ".join(CAPTIONS), file=sheet, note="four meshes per caption")]


STAGES = (
    Stage(
        folder="autoencoder",
        recipe="mesh/autoencoder_tiny",
        title="Mesh autoencoder",
        description="An autoencoder: encodes meshes as discrete codes per vertex and decodes them.",
        steps={"full": 200, "quick": 60},
        seconds={"full": 28, "quick": 7},
        quick_settings={"meshes.valid_limit": 128, "optim.warmup_steps": 20},
        minimal_settings={"meshes.valid_limit": 16},
        # Coordinates are exact early in training; cross-entropy keeps improving.
        summarise=lambda metrics, recipe: (
            f"cross-entropy {metrics['loss']:.3f} nats per coordinate; baseline: uniform over "
            f"{recipe.model.bins} bins {math.log(recipe.model.bins):.2f}; {metrics['exact']:.1%} "
            "of coordinates exact"
        ),
        evaluate_halfway=True,
    ),
    Stage(
        folder="transformer",
        recipe="mesh/transformer_tiny",
        title="Text to mesh",
        description="An autoregressive transformer over those codes: generates meshes from text.",
        steps={"full": 800, "quick": 140},
        seconds={"full": 155, "quick": 33},
        quick_settings={
            "meshes.builtin_count": 1500,
            "meshes.valid_limit": 32,
            "generation.count": 16,
            "optim.warmup_steps": 30,
        },
        minimal_settings={
            "meshes.builtin_count": 64,
            "meshes.valid_limit": 4,
            "generation.count": 2,
        },
        summarise=lambda metrics, _: (
            f"{metrics['valid']:.0%} of generated meshes valid, {metrics['agrees']:.0%} match the "
            f"caption; cross-entropy {metrics['loss']:.2f} nats per code, without the caption "
            f"{metrics['loss_without_text']:.2f}"
        ),
        depends_on={"autoencoder": "autoencoder"},
        draw=generate,
        next_arguments='--text "a flat cone" --count 4 --out meshes',
    ),
)
