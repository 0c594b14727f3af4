"""`quintet sample` for MuLaN and CLAP: text-to-audio and audio-to-text retrieval."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.ranking import embed_texts, formatted, rank, read_captions, written
from quintet.shared.sampling import (
    Device,
    Input,
    Trained,
    check_positive,
    find_inputs,
    has_validation,
    own_text,
    readable,
    with_input,
    with_progress,
    write_sound,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.media.audio import Samples
    from quintet.music.mulan.model import MuLaN

    Clip = tuple[str, Samples]

BATCH = 16
EXAMPLE = 'songs --text "a slow minor melody on strings" --top 5 --out found'


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Rank audio files (or folders of them) by --text, or rank --captions for each audio file.
    Default input: the validation clips of the run."""

    text: tuple[str, ...] = ()
    """Text queries to rank the audio files by."""
    captions: Path | None = None
    """Text file with one caption per line, to be ranked for each audio file."""
    top: int = 5
    """Number of results to print; ranking.json has all of them."""
    seconds: float = 10.0
    """Length of the centre crop of each file."""
    count: int = 32
    """Without input: number of validation clips of the run."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    from quintet.media.audio import SUFFIXES

    words = ["--text", own_text(recipe, run, "a slow minor melody on strings"), "--out", "found"]
    return words if has_validation(run) else with_input(recipe, run, SUFFIXES, *words)


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path | str]:
    """Write ranking.json; returns lines with the best matches and the unreadable files."""
    from quintet.media.audio import SUFFIXES

    check_positive(flags, "top", "count", "seconds")
    model: Any = trained.model(flags.device)
    if flags.text and flags.captions:
        raise RunError("give --text to rank audio files or --captions to rank captions, not both")
    if inputs and not flags.text and not flags.captions:
        raise RunError('give --text "a slow melody" or --captions FILE.txt to rank by')
    captions = read_captions(flags.captions) if flags.captions else []
    out.mkdir(parents=True, exist_ok=True)
    skipped: list[str] = []
    if inputs:
        # One by one: files of different folders may have the same name.
        inputs_of = (find_inputs([path], (SUFFIXES,), "sounds") for path in inputs)
        files = [item for items in inputs_of for item in items]
        clips = _read(files, model.config.sample_rate, flags.seconds, skipped)
    else:
        valid_clips, valid_captions = _validation_clips(trained, out, flags.count)
        clips, captions = iter(valid_clips), captions or valid_captions
    names, embeds = _embed_clips(model, clips, skipped)
    if flags.text:
        ranking = rank(list(flags.text), embed_texts(model, flags.text), names, embeds)
    else:
        ranking = rank(names, embeds, captions, embed_texts(model, captions))
    return [*skipped, *formatted(ranking, flags.top), written(ranking, out)]


def _read(
    files: Sequence[Input], rate: int, seconds: float, skipped: list[str]
) -> "Iterator[Clip]":
    from quintet.media.audio import read_audio
    from quintet.media.errors import BadFile

    for file in with_progress(files):
        try:
            yield str(file.path), read_audio(file.path, rate=rate, seconds=seconds)
        except BadFile as bad:
            skipped.append(f"skipped: {bad}")


def _validation_clips(trained: Trained, out: Path, count: int) -> "tuple[list[Clip], list[str]]":
    """Validation clips, also written to `out`, and their captions."""
    from quintet.engine.data.wire import to_floats
    from quintet.music.data import open_data

    recipe = trained.recipe_with_data("audio files")
    valid = open_data(recipe.data, recipe.sounds, "valid", recipe.seed)
    clips: list[Clip] = []
    captions: list[str] = []
    for index, item in readable(valid, count):
        path = out / f"validation-{index:03d}.wav"
        wav = to_floats(item["wav"]).numpy()
        write_sound(path, wav, recipe.sounds.sample_rate)
        clips.append((str(path), wav))
        captions.append(item["text"])
    if not clips:
        raise RunError(f"{trained.path} has no readable validation clip; give audio files")
    return clips, list(dict.fromkeys(captions))


def _embed_clips(
    model: "MuLaN", clips: "Iterator[Clip]", skipped: list[str]
) -> tuple[list[str], "Tensor"]:
    """Names and embeddings (n, d), with at most one batch of clips in memory."""
    import torch

    from quintet.music.data import collate

    names: list[str] = []
    embeds: list[Tensor] = []
    device = next(model.parameters()).device
    while batch := list(islice(clips, BATCH)):
        names += [name for name, _ in batch]
        data = collate([{"wav": torch.from_numpy(wav), "text": ""} for _, wav in batch])
        embeds.append(model.embed_audio(data["wavs"].to(device), data["lengths"].to(device)))
    if not embeds:
        raise RunError(f"no audio file is readable; the first: {skipped[0]}")
    return names, torch.cat(embeds)
