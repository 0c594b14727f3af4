"""Stage of the music room in `quintet demo`."""

import json
from pathlib import Path
from typing import Any

from quintet.shared.demo import Sample, Stage
from quintet.shared.sampling import Trained

QUERIES = ("a slow minor melody on strings", "a fast melody, high-pitched, with a drum kit")
RESULTS_PER_QUERY = 3


def search(trained: Trained, out: Path) -> list[Sample]:
    """The nearest validation clips with their captions."""
    from quintet.music.data import open_data
    from quintet.music.mulan.sample import Flags, sample

    sample(trained, (), out, Flags(text=QUERIES, count=64, device="cpu"))
    ranking: list[dict[str, Any]] = json.loads((out / "ranking.json").read_text(encoding="utf-8"))
    recipe = trained.recipe_with_data("audio files")
    valid: Any = open_data(recipe.data, recipe.sounds, "valid", recipe.seed)
    samples: list[Sample] = []
    for entry in ranking:
        for best in entry["best"][:RESULTS_PER_QUERY]:
            file = Path(best["name"])
            caption = valid.texts(int(file.stem.rpartition("-")[2]))[0]
            note = f"similarity {best['similarity']:+.2f}, caption: {caption}"
            samples.append(Sample(prompt=entry["of"], file=out / file.name, note=note))
    return samples


STAGES = (
    Stage(
        folder="music",
        recipe="music/mulan_tiny",
        title="Music and text",
        description="Two towers with a joint embedding of audio and text, for retrieval both ways.",
        steps={"full": 130, "quick": 36},
        seconds={"full": 81, "quick": 22},
        quick_settings={"sounds.valid_limit": 64, "optim.warmup_steps": 15},
        minimal_settings={"sounds.valid_limit": 16, "batch_size": 8},
        summarise=lambda metrics, recipe: (
            f"recall at 10 of {recipe.sounds.valid_limit} is {metrics['recall_at_10']:.0%}; "
            f"chance: {min(1.0, 10 / recipe.sounds.valid_limit):.0%}"
        ),
        draw=search,
        next_arguments='--text "a melody on flute" --out matches',
    ),
)
