"""The music room in `quintet demo`."""

import json
from pathlib import Path
from typing import Any

from quintet.shared.demo import Figure, RoomDemo, Row, Sample, Stage
from quintet.shared.sampling import Trained

QUERIES = ("a slow minor melody on strings", "a fast melody, high-pitched, with a drum kit")
CLIPS, RESULTS_PER_QUERY = 64, 3


def search(trained: Trained, out: Path) -> list[Sample]:
    """The nearest of some held-out clips for each query, with their captions."""
    from quintet.music.mulan.sample import Flags, sample

    captions = write_clips(out / "clips")
    sample(trained, (out / "clips",), out, Flags(text=QUERIES, device="cpu"))
    ranking: list[dict[str, Any]] = json.loads((out / "ranking.json").read_text(encoding="utf-8"))
    samples: list[Sample] = []
    for entry in ranking:
        for best in entry["best"][:RESULTS_PER_QUERY]:
            file = out / "clips" / Path(best["name"]).name
            note = f"similarity {best['similarity']:+.2f}: {captions[file.name]}"
            samples.append(Sample(prompt=entry["of"], file=file, note=note))
    return samples


def write_clips(folder: Path) -> dict[str, str]:
    """Held-out clips of the built-in data as files; returns their captions by name."""
    from quintet.engine.data.wire import to_floats
    from quintet.music.data import open_data
    from quintet.music.recipes import mulan_tiny
    from quintet.shared.sampling import write_sound

    recipe = mulan_tiny()
    held_out: Any = open_data(None, recipe.sounds, "valid", recipe.seed)
    folder.mkdir(parents=True, exist_ok=True)
    captions: dict[str, str] = {}
    for index in range(CLIPS):
        item = held_out.keyed(index, None)
        name = f"clip-{index:02d}.wav"
        write_sound(folder / name, to_floats(item["wav"]).numpy(), recipe.sounds.sample_rate)
        captions[name] = item["text"]
    return captions


MULAN = Row(
    title="Music search",
    description="MuLaN embeds music and text in one space: words find the nearest clips.",
    figure=lambda metrics, recipe: Figure(
        value=f"{metrics['recall_at_10']:.0%}",
        meaning=f"recall at 10 of {recipe.sounds.valid_limit} clips",
        baseline=f"chance: {min(1.0, 10 / recipe.sounds.valid_limit):.0%}",
    ),
    draw=search,
    arguments='--text "a melody on flute" --out matches',
)
STAGES = (
    Stage(
        folder="music",
        recipe="music/mulan_tiny",
        row=MULAN,
        steps=130,
        seconds=81,
        minimal_settings={"sounds.valid_limit": 16, "batch_size": 8},
    ),
)
DEMO = RoomDemo(position=4, stages=STAGES, ready="music", row=MULAN)
