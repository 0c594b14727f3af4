"""What `quintet sample` does for music: find sounds by a sentence, or sentences for a sound."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quintet.engine.errors import RunError
from quintet.shared.sampling import Device, check_positive, loaded, readable, recipe_with_data

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.media.audio import Samples
    from quintet.music.model import MuLaN

BATCH = 16
MAX_BYTES = 16_000_000


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Give sounds or folders of sounds and --text, to rank the sounds by a sentence, or --captions,
    to rank sentences for each sound. Without sounds the run's held-out ones are taken."""

    text: tuple[str, ...] = ()
    """Sentences to find sounds by."""
    captions: Path | None = None
    """A text file with a sentence on each line, to be ranked for each sound."""
    top: int = 5
    """How many of the best are shown; ranking.json has them all."""
    seconds: float = 10.0
    """How much of a sound is listened to, from its middle."""
    count: int = 32
    """Without sounds: so many held-out ones of the run's own data."""
    device: Device = "auto"
    """Where to compute; auto takes the GPU where there is one."""


class Sound(NamedTuple):
    """What is called so, and how it sounds."""

    name: str
    wav: "Samples"


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path | str]:
    """Writes ranking.json; the best come back as lines, with what could not be read."""
    _check(inputs, flags)
    captions = _lines(flags.captions) if flags.captions else []
    model: MuLaN = loaded(run, flags.device)
    out.mkdir(parents=True, exist_ok=True)
    skipped: list[str] = []
    if inputs:
        sounds = _read(_files(inputs), model.config.rate, flags.seconds, skipped)
    else:
        held, own = _held_out(run, out, flags.count)
        sounds, captions = iter(held), captions or own
    names, heard = _embedded(model, sounds, skipped)
    if flags.text:
        ranking = _rank(list(flags.text), _embed_texts(model, flags.text), names, heard)
    else:
        ranking = _rank(names, heard, captions, _embed_texts(model, captions))
    path = out / "ranking.json"
    path.write_text(json.dumps(ranking, indent=1, ensure_ascii=False), encoding="utf-8")
    return [*skipped, *_shown(ranking, flags.top), path]


def _check(inputs: Sequence[Path], flags: Flags) -> None:
    if flags.text and flags.captions:
        raise RunError("give --text to rank sounds or --captions to rank sentences, and not both")
    if inputs and not flags.text and not flags.captions:
        raise RunError('say what to rank by: --text "a slow melody", or --captions FILE.txt')
    check_positive(flags, "top", "count", "seconds")


# -- what is ranked -------------------------------------------------------------------------------


def _lines(path: Path) -> list[str]:
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise RunError(f"{path} is not a file of at most {MAX_BYTES:,} bytes; give sentences")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    found = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not found:
        raise RunError(f"{path} is empty; write a sentence on each line")
    return found


def _files(inputs: Sequence[Path]) -> list[Path]:
    """Files as they are given, and those of folders."""
    from quintet.media.audio import SUFFIXES
    from quintet.media.splits import find

    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            found += find(path, SUFFIXES, "sounds")
        elif path.is_file():
            found.append(path)
        else:
            raise RunError(f"{path} does not exist; give sounds (wav, flac, ogg, mp3) or folders")
    return found


def _read(paths: Sequence[Path], rate: int, seconds: float, skipped: list[str]) -> Iterator[Sound]:
    from quintet.media.audio import read_audio
    from quintet.media.errors import BadFile

    for path in paths:
        try:
            yield Sound(str(path), read_audio(path, rate=rate, seconds=seconds))
        except BadFile as bad:
            skipped.append(f"left out: {bad}")


def _held_out(run: Path, out: Path, count: int) -> tuple[list[Sound], list[str]]:
    """Held-out sounds, written down so that they can be heard, and their captions."""
    from quintet.media.audio import write_wav
    from quintet.music.data import open_data

    recipe = recipe_with_data(run, "sounds")
    held = open_data(recipe.data, recipe.sounds, "valid", recipe.seed)
    sounds: list[Sound] = []
    captions: list[str] = []
    for index, item in readable(held, count):
        path = out / f"held-out-{index:03d}.wav"
        write_wav(path, item["wav"].numpy(), recipe.sounds.rate)
        sounds.append(Sound(str(path), item["wav"].numpy()))
        captions.append(item["text"])
    if not sounds:
        raise RunError(f"{run} has no held-out sound that can be read; give sounds")
    return sounds, list(dict.fromkeys(captions))


# -- how it is ranked -----------------------------------------------------------------------------


def _embedded(
    model: "MuLaN", sounds: Iterator[Sound], skipped: list[str]
) -> tuple[list[str], "Tensor"]:
    """Names and embeddings (n, d); no more than a batch of sounds is in memory."""
    import torch

    from quintet.music.data import collate

    names: list[str] = []
    found: list[Tensor] = []
    device = next(model.parameters()).device
    while batch := list(islice(sounds, BATCH)):
        names += [sound.name for sound in batch]
        items = [{"wav": torch.from_numpy(sound.wav), "text": ""} for sound in batch]
        data = collate(items)
        with torch.no_grad():
            found.append(model.embed_audio(data["wavs"].to(device), data["lengths"].to(device)))
    if not found:
        raise RunError(f"none of the sounds can be read; the first is {skipped[0]}")
    return names, torch.cat(found)


def _embed_texts(model: "MuLaN", texts: Sequence[str]) -> "Tensor":
    import torch

    with torch.no_grad():
        found = [model.embed_text(list(texts[i : i + 256])) for i in range(0, len(texts), 256)]
    return torch.cat(found)


def _rank(
    asked: Sequence[str], by: "Tensor", names: Sequence[str], found: "Tensor"
) -> list[dict[str, Any]]:
    """For each that is asked for, all names with their similarity, the nearest first."""
    similarity = (by.float() @ found.float().T).cpu()
    values, order = similarity.sort(dim=1, descending=True, stable=True)
    return [
        {
            "of": of,
            "best": [{"name": names[i], "similarity": round(v, 4)} for v, i in zip(row, places)],
        }
        for of, row, places in zip(asked, values.tolist(), order.tolist())
    ]


def _shown(ranking: Sequence[dict[str, Any]], top: int) -> Iterator[str]:
    from quintet.media.errors import printable

    for entry in ranking:
        yield printable(entry["of"])
        for place, found in enumerate(entry["best"][:top], 1):
            yield f"  {place}. {found['similarity']:+.3f}  {printable(found['name'])}"
