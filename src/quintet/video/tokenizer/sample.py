"""`quintet sample` for a video tokenizer: reconstruct clips, or decode ids or latents."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    IDS,
    Device,
    Input,
    Trained,
    check_positive,
    check_size,
    each_input,
    find_inputs,
    go_on,
    has_validation,
    readable,
    with_input,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.media.pixels import Pixels
    from quintet.video.tokenizer.model import VideoTokenizer

EXAMPLE = "clip.mp4 --out out"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Takes videos or images to reconstruct, folders of them, or .safetensors files of ids or
    latents from an earlier call; without any, validation clips. Videos may be of any length: they
    are processed in chunks, by an adopted autoencoder each on its own, so that it has seams, and
    without files of latents."""

    size: tuple[int, int] | None = None
    """Resize and crop frames to this height and width; default: crop to the next valid size."""
    chunk: int = 32
    """Frames per chunk; rounded down to a multiple of the tokenizer's time factor."""
    fps: float | None = None
    """Frames per second of clips that are written; unset: those of the file of ids, 16 where there
    is none."""
    count: int = 4
    """Without inputs: number of validation clips."""
    any_model: bool = False
    """Decode ids or latents even if they come from another model or checkpoint."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


FPS = 16.0


def example(recipe: Any, run: Path) -> list[str]:
    from quintet.media.clips.reader import SUFFIXES

    words = ["--out", "out"]
    return words if has_validation(run) else with_input(recipe, run, SUFFIXES, *words)


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write NAME.reconstruction.mp4 (.png for an image), NAME.comparison.mp4 with the original
    beside it, and NAME.ids.safetensors (NAME.latents.safetensors of a continuous bottleneck); for
    such a file, NAME.decoded.mp4."""
    from quintet.media.clips.reader import SUFFIXES as CLIPS
    from quintet.media.pixels import SUFFIXES as IMAGES
    from quintet.shared.tokenizer.code_files import weights_digest

    check_positive(flags, "chunk", "count")
    check_fps(flags.fps, "--fps")
    model: Any = trained.model(flags.device)
    what, kinds = "videos, images, or ids or latents as .safetensors", ((*CLIPS, *IMAGES), IDS)
    if model.chunks_apart:
        what, kinds = "videos or images", kinds[:1]
    files = find_inputs(inputs, kinds, what)
    check_size(flags.size, model.factor)
    digest = weights_digest(model)
    out.mkdir(parents=True, exist_ok=True)

    def work(item: Input) -> list[Path]:
        if item.path.suffix in IDS:
            if model.chunks_apart:
                raise RunError(f"{item.path}: an adopted autoencoder takes {what}")
            return _decode(model, item, out, flags, None if flags.any_model else digest)
        return _reconstruct(model, item, out, flags, digest)

    return each_input(files or _validation_clips(trained, out, flags), work)


def check_fps(fps: float | None, what: str) -> None:
    if fps is not None and not 0.01 <= fps <= 1000:
        raise RunError(f"{what} is {fps}; give frames per second from 0.01 to 1000")


def _validation_clips(trained: Trained, out: Path, flags: Flags) -> list[Input]:
    from quintet.media.clips.writer import write_mp4
    from quintet.shared.tokenizer.pixels import displayed
    from quintet.video.data import open_data

    recipe = trained.recipe_with_data("videos")
    dataset = open_data(recipe.data, recipe.videos, "valid", recipe.seed)
    fps = flags.fps or recipe.videos.fps or FPS
    files: list[Input] = []
    for index, item in readable(dataset, flags.count):
        path = out / f"validation-{index:03d}.mp4"
        write_mp4(path, displayed(item["video"].permute(1, 2, 3, 0).numpy()), fps)
        files.append(Input(path, path.stem, named=True))
    if not files:
        raise RunError(f"{trained.path} has no readable validation clips; give videos")
    return files


class Chunk(NamedTuple):
    """Frames of a clip; the last chunk is padded with copies of the last frame."""

    frames: "Pixels"
    length: int
    """Number of frames without padding."""


class ReconstructedChunk(NamedTuple):
    """One chunk of a clip, its reconstruction and its codes; without padding."""

    original: "Pixels"
    reconstruction: "Pixels"
    codes: "Tensor"


def _reconstruct(
    model: "VideoTokenizer", item: Input, out: Path, flags: Flags, digest: "Tensor"
) -> list[Path]:
    import torch

    from quintet.media.clips.reader import SUFFIXES, frames_of, probe
    from quintet.media.pixels import read_image, write_png
    from quintet.media.sheets import grid
    from quintet.shared.tokenizer.code_files import write_codes

    moving = item.path.suffix.lower() in SUFFIXES
    frames = frames_of(item.path) if moving else iter([read_image(item.path)])
    chunks = _reconstruct_chunks(model, _chunks(model, item.path, frames, flags))
    suffix = "mp4" if moving else "png"
    target = item.target(out, f".reconstruction.{suffix}")
    comparison = item.target(out, f".comparison.{suffix}")
    code_file = item.target(out, f".{model.quantiser.code_name}.safetensors")
    more: dict[str, Tensor] = {}
    if moving:
        rate = probe(item.path).rate
        more["fps"] = torch.tensor([rate], dtype=torch.float64)
        codes, count = _write_clips(target, comparison, rate, chunks)
    else:
        (chunk,) = chunks
        codes, count = chunk.codes, 1
        write_png(target, chunk.reconstruction[0])
        pair = [chunk.original[0], chunk.reconstruction[0]]
        write_png(comparison, grid([pair], ["original", "reconstruction"]))
    if model.chunks_apart:
        return [target, comparison]
    write_codes(code_file, model, codes, digest, frames=torch.tensor([count]), **more)
    return [target, comparison, code_file]


def _write_clips(
    target: Path, comparison: Path, rate: float, chunks: Iterable[ReconstructedChunk]
) -> tuple["Tensor", int]:
    """The reconstruction, and both side by side; returns the codes and the number of frames."""
    import numpy as np
    import torch

    from quintet.media.clips.writer import mp4_writer
    from quintet.video.tokenizer.model import TIME

    codes: list[Tensor] = []
    count = 0
    with mp4_writer(target, rate) as append, mp4_writer(comparison, rate) as append_pair:
        for chunk in chunks:
            append(chunk.reconstruction)
            gap = np.full((*chunk.original.shape[:2], 4, 3), 255, np.uint8)
            append_pair(np.concatenate([chunk.original, gap, chunk.reconstruction], axis=2))
            codes.append(chunk.codes)
            count += len(chunk.original)
    return torch.cat(codes, dim=TIME), count


def _chunks(
    model: "VideoTokenizer", path: Path, frames: Iterator["Pixels"], flags: Flags
) -> Iterator[Chunk]:
    """1 + k s frames, then k s at a time (1 + k s if chunks are apart), cropped to a valid size."""
    import numpy as np

    from quintet.media.pixels import middle, resize_crop

    step = model.time_factor
    size = max(flags.chunk // step, 1) * step
    buffer: list[Pixels] = []
    length, shape = 1 + size, flags.size
    later = 1 + size if model.chunks_apart else size
    for frame in frames:
        go_on()
        if shape is None:
            height, width = (side // model.factor * model.factor for side in frame.shape[:2])
            if min(height, width) < model.factor:
                raise RunError(f"{path} is smaller than the factor {model.factor}; give --size")
            shape = height, width
        buffer.append(resize_crop(frame, shape) if flags.size else middle(frame, shape))
        if len(buffer) == length:
            yield Chunk(np.stack(buffer), length)
            buffer, length = [], later
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
    inputs, codes = deque[Chunk](), deque[Any]()

    def clips() -> Iterator["Tensor"]:
        for chunk in chunks:
            inputs.append(chunk)
            pixels = in_channels(chunk.frames, model.config.channels)
            clip = torch.from_numpy(pixels).to(device).permute(3, 0, 1, 2)[None]
            yield clip.float() / 255

    def values() -> Iterator["Tensor"]:
        for latents in model.encode_chunks(clips()):
            codes.append(model.quantiser.to_codes(latents))
            yield model.quantiser.codes_to_values(codes[-1])

    with torch.no_grad():
        for clip in model.decode_chunks(values()):
            frames, length = inputs.popleft()
            reconstruction = displayed(to_bytes(clip[0])[:length])
            yield ReconstructedChunk(frames[:length], reconstruction, codes.popleft())


def _decode(
    model: "VideoTokenizer", item: Input, out: Path, flags: Flags, digest: "Tensor | None"
) -> list[Path]:
    from quintet.media.clips.writer import write_mp4
    from quintet.shared.tokenizer.code_files import read_codes
    from quintet.video.tokenizer.model import TIME

    path = item.path
    codes, tensors = read_codes(path, model, digest)
    whole = 1 + (codes.shape[TIME] - 1) * model.time_factor
    frames = tensors["frames"].flatten().tolist() if "frames" in tensors else [whole]
    if len(frames) != 1 or not 1 <= frames[0] <= whole:
        name = model.quantiser.code_name
        raise RunError(f"{path} has {name} of {whole} frames, but its tensor 'frames' is {frames}")
    fps = flags.fps or _recorded_fps(path, tensors)
    paths = item.targets(out, ".decoded", ".mp4", len(codes))
    for target, of_clip in zip(paths, codes):
        frames_of_clip = _decode_chunks(model, of_clip[None], flags.chunk, int(frames[0]))
        write_mp4(target, frames_of_clip, fps)
    return paths


def _recorded_fps(path: Path, tensors: "Mapping[str, Tensor]") -> float:
    """Frames per second of the clip that the codes were made of."""
    if "fps" not in tensors:
        return FPS
    values = tensors["fps"].flatten().tolist()
    if len(values) != 1:
        raise RunError(f"{path}: its tensor 'fps' is {values}; give one number")
    check_fps(values[0], f"{path}: its tensor 'fps'")
    return float(values[0])


def _decode_chunks(
    model: "VideoTokenizer", codes: "Tensor", chunk: int, frames: int
) -> Iterator["Pixels"]:
    """Chunk by chunk, up to `frames`: the last codes may include padding."""
    import torch

    from quintet.shared.tokenizer.pixels import displayed, to_bytes
    from quintet.video.tokenizer.model import split_time

    device, step = next(model.parameters()).device, max(chunk // model.time_factor, 1)
    parts = (part.to(device) for part in split_time(codes, 1 + step, step))
    with torch.no_grad():
        for clip in model.decode_chunks(map(model.quantiser.codes_to_values, parts)):
            decoded = displayed(to_bytes(clip[0])[:frames])
            frames -= len(decoded)
            if len(decoded):
                yield decoded
