"""`quintet sample` for video: reconstruct clips and images, or decode ids."""

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


EXAMPLE = "clip.mp4 --out out"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Inputs: videos or images to reconstruct, or .safetensors files of ids from an earlier call.
    Videos may be of any length: they are processed in chunks."""

    size: tuple[int, int] | None = None
    """Resize and crop frames to this height and width; default: crop to the next valid size."""
    chunk: int = 32
    """Frames per chunk; rounded down to a multiple of the tokenizer's time factor."""
    fps: float = 16.0
    """Frames per second of decoded and of validation clips."""
    count: int = 4
    """Without inputs: number of validation clips to reconstruct."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write NAME.reconstruction.mp4 (.png for an image), original and reconstruction side by side,
    and NAME.ids.safetensors; for ids, NAME.decoded.mp4."""
    check_inputs(inputs, "videos, images, or ids as .safetensors")
    check_positive(flags, "chunk", "fps", "count")
    if not 0.01 <= flags.fps <= 1000:
        raise RunError(f"--fps is {flags.fps}; give frames per second from 0.01 to 1000")
    model: VideoTokenizer = loaded(run, flags.device)
    if flags.size and any(side < 1 or side % model.factor for side in flags.size):
        raise RunError(f"size is {flags.size}; it must be divisible by the factor {model.factor}")
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for path in inputs or _validation_clips(run, out, flags):
        if path.suffix == ".safetensors":
            written += _decode(model, path, out, flags)
        else:
            written += _reconstruct(model, path, out, flags)
    return written


def _validation_clips(run: Path, out: Path, flags: Flags) -> list[Path]:
    from quintet.media.clips.writer import write_mp4
    from quintet.shared.tokenizer.pixels import displayed
    from quintet.video.data import open_data

    recipe = recipe_with_data(run, "videos")
    dataset = open_data(recipe.data, recipe.videos, "valid", recipe.seed)
    paths = []
    for index, item in readable(dataset, flags.count):
        paths.append(out / f"validation-{index:03d}.mp4")
        write_mp4(paths[-1], displayed(item["video"].permute(1, 2, 3, 0).numpy()), flags.fps)
    if not paths:
        raise RunError(f"{run} has no readable validation clips; give videos")
    return paths


# -- reconstruction -------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Frames of a clip; the last chunk is padded with copies of the last frame."""

    frames: "Pixels"
    length: int
    """Number of frames without padding."""


class ReconstructedChunk(NamedTuple):
    """One chunk of a clip, its reconstruction and its ids; without padding."""

    original: "Pixels"
    reconstruction: "Pixels"
    ids: "Tensor"


def _reconstruct(model: "VideoTokenizer", path: Path, out: Path, flags: Flags) -> list[Path]:
    import torch

    from quintet.engine.runs.checkpoint import write_safetensors
    from quintet.media.clips.reader import SUFFIXES, frames_of, probe
    from quintet.media.clips.writer import write_mp4
    from quintet.media.pixels import grid, read_image, write_png

    moving = path.suffix.lower() in SUFFIXES
    frames = frames_of(path) if moving else iter([read_image(path)])
    ids: list[Tensor] = []
    counts: list[int] = []

    def reconstructed() -> Iterator[ReconstructedChunk]:
        for chunk in _reconstruct_chunks(model, _chunks(model, path, frames, flags)):
            ids.append(chunk.ids)
            counts.append(len(chunk.original))
            yield chunk

    target = out / f"{path.stem}.reconstruction.{'mp4' if moving else 'png'}"
    if moving:
        write_mp4(target, map(_side_by_side, reconstructed()), probe(path).rate)
    else:
        (chunk,) = reconstructed()
        pair = [chunk.original[0], chunk.reconstruction[0]]
        write_png(target, grid([pair], ["original", "reconstruction"]))
    id_file = out / f"{path.stem}.ids.safetensors"
    tensors = {"ids": torch.cat(ids, dim=1).cpu(), "frames": torch.tensor([sum(counts)])}
    write_safetensors(id_file, tensors)
    return [target, id_file]


def _chunks(
    model: "VideoTokenizer", path: Path, frames: Iterator["Pixels"], flags: Flags
) -> Iterator[Chunk]:
    """1 + k s frames, then k s at a time, cropped to a valid size."""
    import numpy as np

    from quintet.media.pixels import middle, resize_crop

    step = model.time_factor
    size = max(flags.chunk // step, 1) * step
    buffer: list[Pixels] = []
    length, shape = 1 + size, flags.size
    for frame in frames:
        if shape is None:
            height, width = (side // model.factor * model.factor for side in frame.shape[:2])
            if min(height, width) < model.factor:
                raise RunError(f"{path} is smaller than the factor {model.factor}; give --size")
            shape = height, width
        buffer.append(resize_crop(frame, shape) if flags.size else middle(frame, shape))
        if len(buffer) == length:
            yield Chunk(np.stack(buffer), length)
            buffer, length = [], size
    if buffer:
        first_chunk = length == 1 + size
        padding = [buffer[-1]] * (-(len(buffer) - first_chunk) % step)
        yield Chunk(np.stack([*buffer, *padding]), len(buffer))


def _reconstruct_chunks(
    model: "VideoTokenizer", chunks: Iterable[Chunk]
) -> Iterator[ReconstructedChunk]:
    """Chunk by chunk; only layer states are kept, so memory does not grow with the length."""
    import torch

    from quintet.shared.tokenizer.pixels import displayed, in_channels, to_bytes

    device = next(model.parameters()).device
    inputs, ids = deque[Chunk](), deque[Any]()

    def clips() -> Iterator["Tensor"]:
        for chunk in chunks:
            inputs.append(chunk)
            pixels = in_channels(chunk.frames, model.config.channels)
            clip = torch.from_numpy(pixels).to(device).permute(3, 0, 1, 2)[None]
            yield clip.float() / 255

    def values() -> Iterator["Tensor"]:
        for latents in model.encode_chunks(clips()):
            ids.append(model.quantiser.to_ids(latents))
            yield model.quantiser.ids_to_values(ids[-1])

    with torch.no_grad():
        for clip in model.decode_chunks(values()):
            frames, length = inputs.popleft()
            reconstruction = displayed(to_bytes(clip[0])[:length])
            yield ReconstructedChunk(frames[:length], reconstruction, ids.popleft())


def _side_by_side(chunk: ReconstructedChunk) -> "Pixels":
    """Original and reconstruction in one frame."""
    import numpy as np

    count, height = chunk.original.shape[:2]
    gap = np.full((count, height, 4, 3), 255, np.uint8)
    return np.concatenate([chunk.original, gap, chunk.reconstruction], axis=2)


# -- decoding -------------------------------------------------------------------------------------


def _decode(model: "VideoTokenizer", path: Path, out: Path, flags: Flags) -> list[Path]:
    from quintet.engine.models.pretrained import read_weights
    from quintet.media.clips.writer import write_mp4

    tensors = read_weights(path)
    ids = tensors.get("ids")
    if ids is None or ids.ndim != 4 or ids.is_floating_point() or not ids.numel():
        raise RunError(f"{path} must contain an integer tensor 'ids' of shape (b, t, h, w)")
    if not 0 <= int(ids.min()) <= int(ids.max()) < model.codebook_size:
        raise RunError(f"{path} has ids outside 0 … {model.codebook_size - 1}")
    whole = 1 + (ids.shape[1] - 1) * model.time_factor
    frames = tensors["frames"].flatten().tolist() if "frames" in tensors else [whole]
    if len(frames) != 1 or not 1 <= frames[0] <= whole:
        raise RunError(f"{path} has ids of {whole} frames, but its tensor 'frames' is {frames}")
    stem = path.name.removesuffix(".safetensors").removesuffix(".ids")
    suffixes = [""] if len(ids) == 1 else [f"-{index:03d}" for index in range(len(ids))]
    paths = [out / f"{stem}.decoded{suffix}.mp4" for suffix in suffixes]
    for target, clip_ids in zip(paths, ids):
        frames_of_clip = _decode_chunks(model, clip_ids[None], flags.chunk, int(frames[0]))
        write_mp4(target, frames_of_clip, flags.fps)
    return paths


def _decode_chunks(
    model: "VideoTokenizer", ids: "Tensor", chunk: int, frames: int
) -> Iterator["Pixels"]:
    """Chunk by chunk, up to `frames`: the last ids may include padding."""
    import torch

    from quintet.shared.tokenizer.pixels import displayed, to_bytes
    from quintet.video.model import split_time

    device, step = next(model.parameters()).device, max(chunk // model.time_factor, 1)
    parts = (part.long().to(device) for part in split_time(ids, 1 + step, step))
    with torch.no_grad():
        for clip in model.decode_chunks(map(model.quantiser.ids_to_values, parts)):
            decoded = displayed(to_bytes(clip[0])[:frames])
            frames -= len(decoded)
            if len(decoded):
                yield decoded
