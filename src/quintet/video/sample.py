"""What `quintet sample` does for video: reconstruct clips and images, or decode ids."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    Device,
    check_inputs,
    check_positive,
    loaded,
    readable,
    recipe_with_data,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.media.pixels import Pixels
    from quintet.video.model import VideoTokenizer


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Give videos or images to reconstruct, or the .safetensors of ids that an earlier call wrote.
    Videos of any length: they pass through in chunks."""

    size: tuple[int, int] | None = None
    """Resize and crop frames to this height and width; else they are cropped to the factor."""
    chunk: int = 32
    """Frames that are encoded at a time; rounded down to the tokenizer's time factor."""
    rate: float = 16.0
    """Frames per second of clips decoded from ids, and of held-out ones."""
    count: int = 4
    """Without input: so many held-out clips of the run's own data."""
    device: Device = "auto"
    """Where to compute; auto takes the GPU where there is one."""


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Writes NAME.reconstruction.mp4 (.png of an image), original and reconstruction side by side,
    and NAME.ids.safetensors; ids give NAME.decoded.mp4."""
    check_inputs(inputs, "videos, images, or ids as .safetensors")
    check_positive(flags, "chunk", "rate", "count")
    if not 0.01 <= flags.rate <= 1000:
        raise RunError(f"--rate is {flags.rate}; give frames per second from 0.01 to 1000")
    model: VideoTokenizer = loaded(run, flags.device)
    if flags.size and any(side < 1 or side % model.factor for side in flags.size):
        raise RunError(f"size is {flags.size}; it must be divisible by the factor {model.factor}")
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for path in inputs or _held_out(run, out, flags):
        if path.suffix == ".safetensors":
            written += _decode(model, path, out, flags)
        else:
            written += _reconstruct(model, path, out, flags)
    return written


def _held_out(run: Path, out: Path, flags: Flags) -> list[Path]:
    from quintet.media.clip_writing import write_mp4
    from quintet.video.data import open_data

    recipe = recipe_with_data(run, "videos")
    held = open_data(recipe.data, recipe.videos, "valid", recipe.seed)
    found = []
    for index, item in readable(held, flags.count):
        found.append(out / f"held-out-{index:03d}.mp4")
        write_mp4(found[-1], item["video"].permute(1, 2, 3, 0).numpy(), flags.rate)
    if not found:
        raise RunError(f"{run} has nothing held out that can be read; give videos")
    return found


# -- clips that come back -------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Some frames of a clip; the last chunk is filled up with copies of the last frame."""

    frames: "Pixels"
    shown: int
    """How many of them are no copies."""


class Trip(NamedTuple):
    """One chunk of a clip, before and after its trip through the ids; without the copies."""

    original: "Pixels"
    made: "Pixels"
    ids: "Tensor"


def _reconstruct(model: "VideoTokenizer", path: Path, out: Path, flags: Flags) -> list[Path]:
    import torch

    from quintet.engine.checkpoint import write_safetensors
    from quintet.media.clip_writing import write_mp4
    from quintet.media.clips import SUFFIXES, frames_of, probe
    from quintet.media.pixels import grid, read_image, write_png

    moving = path.suffix.lower() in SUFFIXES
    frames = frames_of(path) if moving else iter([read_image(path)])
    ids: list[Tensor] = []
    counts: list[int] = []

    def noted() -> Iterator[Trip]:
        for trip in _through(model, _chunks(model, path, frames, flags)):
            ids.append(trip.ids)
            counts.append(len(trip.original))
            yield trip

    picture = out / f"{path.stem}.reconstruction.{'mp4' if moving else 'png'}"
    if moving:
        write_mp4(picture, map(_beside, noted()), probe(path).rate)
    else:
        (trip,) = noted()
        pair = [trip.original[0], trip.made[0]]
        write_png(picture, grid([pair], ["original", "reconstruction"]))
    numbers = out / f"{path.stem}.ids.safetensors"
    whole = torch.cat(ids, dim=1).cpu()
    write_safetensors(numbers, {"ids": whole, "frames": torch.tensor([sum(counts)])})
    return [picture, numbers]


def _chunks(
    model: "VideoTokenizer", path: Path, frames: Iterator["Pixels"], flags: Flags
) -> Iterator[Chunk]:
    """1 + k s frames and then k s at a time, cropped to what the tokenizer takes."""
    import numpy as np

    from quintet.media.pixels import middle, resize_crop

    step = model.time_factor
    size = max(flags.chunk // step, 1) * step
    held: list[Pixels] = []
    wanted, shape = 1 + size, flags.size
    for frame in frames:
        if shape is None:
            height, width = (side // model.factor * model.factor for side in frame.shape[:2])
            if min(height, width) < model.factor:
                raise RunError(f"{path} is smaller than the factor {model.factor}; give --size")
            shape = height, width
        held.append(resize_crop(frame, shape) if flags.size else middle(frame, shape))
        if len(held) == wanted:
            yield Chunk(np.stack(held), wanted)
            held, wanted = [], size
    if held:
        begins = wanted == 1 + size
        copies = [held[-1]] * (-(len(held) - begins) % step)
        yield Chunk(np.stack([*held, *copies]), len(held))


def _through(model: "VideoTokenizer", chunks: Iterable[Chunk]) -> Iterator[Trip]:
    """Chunk by chunk; only states are kept between them, so memory is flat in the length."""
    import torch

    from quintet.video.exhibits import to_bytes

    device = next(model.parameters()).device
    waiting, seen = deque[Chunk](), deque[Any]()

    def clips() -> Iterator["Tensor"]:
        for chunk in chunks:
            waiting.append(chunk)
            clip = torch.from_numpy(chunk.frames).to(device).permute(3, 0, 1, 2)[None]
            yield clip.float() / 255

    def values() -> Iterator["Tensor"]:
        for latents in model.encode_chunks(clips()):
            seen.append(model.quantiser.to_ids(latents))
            yield model.quantiser.ids_to_values(seen[-1])

    with torch.no_grad():
        for made in model.decode_chunks(values()):
            frames, shown = waiting.popleft()
            yield Trip(frames[:shown], to_bytes(made[0])[:shown], seen.popleft())


def _beside(trip: Trip) -> "Pixels":
    """Original and reconstruction in one frame."""
    import numpy as np

    count, height = trip.original.shape[:2]
    gap = np.full((count, height, 4, 3), 255, np.uint8)
    return np.concatenate([trip.original, gap, trip.made], axis=2)


# -- ids that are given ---------------------------------------------------------------------------


def _decode(model: "VideoTokenizer", path: Path, out: Path, flags: Flags) -> list[Path]:
    from quintet.engine.pretrained import read_weights
    from quintet.media.clip_writing import write_mp4

    found = read_weights(path)
    ids = found.get("ids")
    if ids is None or ids.ndim != 4 or ids.is_floating_point() or not ids.numel():
        raise RunError(f"{path} must hold integers (b, t, h, w) under the name 'ids'")
    if not 0 <= int(ids.min()) <= int(ids.max()) < model.codebook_size:
        raise RunError(f"{path} holds ids outside 0 … {model.codebook_size - 1}")
    whole = 1 + (ids.shape[1] - 1) * model.time_factor
    frames = found["frames"].flatten().tolist() if "frames" in found else [whole]
    if len(frames) != 1 or not 1 <= frames[0] <= whole:
        raise RunError(f"{path} holds ids of {whole} frames, but {frames} under the name 'frames'")
    stem = path.name.removesuffix(".safetensors").removesuffix(".ids")
    endings = [""] if len(ids) == 1 else [f"-{index:03d}" for index in range(len(ids))]
    written = [out / f"{stem}.decoded{ending}.mp4" for ending in endings]
    for place, rows in zip(written, ids):
        write_mp4(place, _decoded(model, rows[None], flags.chunk, int(frames[0])), flags.rate)
    return written


def _decoded(model: "VideoTokenizer", ids: "Tensor", chunk: int, frames: int) -> Iterator["Pixels"]:
    """Chunk by chunk, as long as there are frames: the last ids may stand for copies as well."""
    import torch

    from quintet.video.exhibits import to_bytes
    from quintet.video.model import pieces

    device, step = next(model.parameters()).device, max(chunk // model.time_factor, 1)
    parts = (part.long().to(device) for part in pieces(ids, 1 + step, step))
    with torch.no_grad():
        for clip in model.decode_chunks(map(model.quantiser.ids_to_values, parts)):
            made = to_bytes(clip[0])[:frames]
            frames -= len(made)
            if len(made):
                yield made
