"""`quintet sample` for video: generate from captions, continue a clip, reconstruct clips and
images, or decode ids or latents."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    IDS,
    Device,
    Input,
    check_positive,
    check_texts,
    decoding_of,
    each_input,
    find_inputs,
    has_validation,
    loaded,
    readable,
    recipe_with_data,
    stem_of,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.media.pixels import Pixels
    from quintet.video.maskgit import VideoMaskGit
    from quintet.video.model import VideoTokenizer


EXAMPLE = "clip.mp4 --out out"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """A tokenizer takes videos or images to reconstruct, folders of them, or .safetensors files of
    ids or latents from an earlier call. Videos may be of any length: they are processed in chunks,
    by an adopted autoencoder each on its own, so that it has seams, and without files of latents.
    A generator makes clips of --text, and continues --clip."""

    text: tuple[str, ...] = ()
    """Generator: captions to generate clips from."""
    clip: Path | None = None
    """Generator: video or image to continue; resized and cropped to the size of the model."""
    frames: int | None = None
    """Generator: length in frames, --clip included; default: that of training."""
    steps: int | None = None
    """Generator: steps of generation of each chunk, 8 to 64. This and the next four are by default
    those of the run's evaluations."""
    order: Literal["confidence", "halton"] | None = None
    """Generator: which ids are fixed first, the most likely or those of a Halton sequence."""
    temperature: float | None = None
    """Generator: sampling temperature; 0 is greedy."""
    choice_temperature: float | None = None
    """Generator: noise in the choice of the most likely ids, which falls to 0."""
    cond_scale: float | None = None
    """Generator: classifier-free guidance scale; 1 disables guidance."""
    seed: int = 0
    """Generator: random seed."""
    size: tuple[int, int] | None = None
    """Resize and crop frames to this height and width; default: crop to the next valid size."""
    chunk: int = 32
    """Frames per chunk; rounded down to a multiple of the tokenizer's time factor."""
    fps: float | None = None
    """Frames per second of clips that are written; unset: those of the file of ids or of --clip,
    16 where there is none."""
    count: int = 4
    """Generator: clips per caption. Tokenizer without inputs: number of validation clips."""
    any_model: bool = False
    """Decode ids or latents even if another model, or another checkpoint, made them."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


FPS = 16.0


def example(recipe: Any, run: Path) -> list[str]:
    from quintet.video.config import VideoMaskGitRecipe

    if isinstance(recipe, VideoMaskGitRecipe):
        text = ["--text", "a red star moves quickly upwards on white"]
        captioned = [] if recipe.model.text == "none" else text
        return [*captioned, "--count", "4", "--out", "out"]
    return ["--out", "out"] if has_validation(run) and not recipe.stages else []


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write NAME.reconstruction.mp4 (.png for an image), NAME.comparison.mp4 with the original
    beside it, and NAME.ids.safetensors (NAME.latents.safetensors of a continuous bottleneck); for
    such a file, NAME.decoded.mp4; for captions, CAPTION-000.mp4 and so on, and a sheet of all."""
    from quintet.media.clips.reader import SUFFIXES as CLIPS
    from quintet.media.pixels import SUFFIXES as IMAGES
    from quintet.shared.tokenizer.codes import weights_digest
    from quintet.video.maskgit import VideoMaskGit

    check_positive(flags, "chunk", "count")
    if flags.fps is not None:
        _check_fps(flags.fps, "--fps")
    model: Any = loaded(run, flags.device)
    if isinstance(model, VideoMaskGit):
        if inputs:
            raise RunError(f"{run} is a generator: give --text or --clip, no files")
        return _generate(model, run, out, flags)
    if flags.text or flags.clip:
        raise RunError(f"{run} is a tokenizer: it takes files, not --text or --clip")
    what, kinds = "videos, images, or ids or latents as .safetensors", ((*CLIPS, *IMAGES), IDS)
    if model.chunks_apart:
        what, kinds = "videos or images", kinds[:1]
    files = find_inputs(inputs, kinds, what, out)
    if flags.size and any(side < 1 or side % model.factor for side in flags.size):
        raise RunError(f"size is {flags.size}; it must be divisible by the factor {model.factor}")
    digest = weights_digest(model)
    out.mkdir(parents=True, exist_ok=True)

    def work(item: Input) -> list[Path]:
        if item.path.suffix in IDS:
            if model.chunks_apart:
                raise RunError(f"{item.path}: an adopted autoencoder takes {what}")
            return _decode(model, item, out, flags, None if flags.any_model else digest)
        return _reconstruct(model, item, out, flags, digest)

    return each_input(files or _validation_clips(run, out, flags), work)


def _check_fps(fps: float, what: str) -> None:
    if not 0.01 <= fps <= 1000:
        raise RunError(f"{what} is {fps}; give frames per second from 0.01 to 1000")


def _validation_clips(run: Path, out: Path, flags: Flags) -> list[Input]:
    from quintet.media.clips.writer import write_mp4
    from quintet.shared.tokenizer.pixels import displayed
    from quintet.video.data import open_data

    recipe = recipe_with_data(run, "videos")
    dataset = open_data(recipe.data, recipe.videos, "valid", recipe.seed)
    fps = flags.fps or recipe.videos.fps or FPS
    files: list[Input] = []
    for index, item in readable(dataset, flags.count):
        path = out / f"validation-{index:03d}.mp4"
        write_mp4(path, displayed(item["video"].permute(1, 2, 3, 0).numpy()), fps)
        files.append(Input(path, path.stem, named=True))
    if not files:
        raise RunError(f"{run} has no readable validation clips; give videos")
    return files


# -- generation -----------------------------------------------------------------------------------


def _generate(model: "VideoMaskGit", run: Path, out: Path, flags: Flags) -> list[Path]:
    from quintet.media.clips.reader import SUFFIXES, probe
    from quintet.media.clips.writer import write_mp4
    from quintet.shared.tokenizer.pixels import displayed, to_bytes
    from quintet.video.exhibits import CaptionedClips

    check_texts(model, flags.text)
    settings = decoding_of(run, flags)
    given = None if flags.clip is None else _read_start(model, flags.clip)
    rows: list[list[Tensor]] = []
    paths: list[Path] = []
    texts = [*flags.text] or [""]
    moving = flags.clip is not None and flags.clip.suffix.lower() in SUFFIXES
    fps = flags.fps or (probe(flags.clip).rate if flags.clip and moving else FPS)
    for number, text in enumerate(texts):
        try:
            clips = model.generate(
                [text] if flags.text else None,
                count=flags.count,
                clip=given,
                frames=flags.frames,
                seed=flags.seed + number,
                **settings,
            )
        except ValueError as error:
            raise RunError(str(error)) from None
        out.mkdir(parents=True, exist_ok=True)
        for index, clip in enumerate(clips):
            path = out / f"{stem_of(text, number)}-{index:03d}.mp4"
            write_mp4(path, displayed(to_bytes(clip)), fps)
            paths.append(path)
        rows.append([*clips])
    titles = [f"{index:03d}" for index in range(flags.count)]
    return [*paths, *CaptionedClips("sheet", rows, titles, texts).write(out)]


def _read_start(model: "VideoMaskGit", path: Path) -> "Tensor":
    """(c, t, h, w) in 0..1 of a video or an image, at the size of the model."""
    import numpy as np
    import torch

    from quintet.media.clips.reader import SUFFIXES, frames_of
    from quintet.media.pixels import read_image, resize_crop
    from quintet.shared.tokenizer.pixels import in_channels

    _, height, width = model.clip_shape
    moving = path.suffix.lower() in SUFFIXES
    frames = frames_of(path) if moving else iter([read_image(path)])
    array = np.stack([resize_crop(frame, (height, width)) for frame in frames])
    array = in_channels(array, model.tokenizer.config.channels)
    return torch.from_numpy(array).permute(3, 0, 1, 2).float() / 255


# -- reconstruction -------------------------------------------------------------------------------


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
    from quintet.media.pixels import grid, read_image, write_png
    from quintet.shared.tokenizer.codes import write_codes

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
    """Both clips; returns the codes and the number of frames."""
    import torch

    from quintet.media.clips.writer import mp4_writer
    from quintet.video.model import TIME

    codes: list[Tensor] = []
    count = 0
    with mp4_writer(target, rate) as append, mp4_writer(comparison, rate) as append_pair:
        for chunk in chunks:
            append(chunk.reconstruction)
            append_pair(_side_by_side(chunk))
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


def _side_by_side(chunk: ReconstructedChunk) -> "Pixels":
    """Original and reconstruction in one frame."""
    import numpy as np

    count, height = chunk.original.shape[:2]
    gap = np.full((count, height, 4, 3), 255, np.uint8)
    return np.concatenate([chunk.original, gap, chunk.reconstruction], axis=2)


# -- decoding -------------------------------------------------------------------------------------


def _decode(
    model: "VideoTokenizer", item: Input, out: Path, flags: Flags, digest: "Tensor | None"
) -> list[Path]:
    from quintet.media.clips.writer import write_mp4
    from quintet.shared.tokenizer.codes import read_codes
    from quintet.video.model import TIME

    path = item.path
    codes, tensors = read_codes(path, model, digest)
    whole = 1 + (codes.shape[TIME] - 1) * model.time_factor
    frames = tensors["frames"].flatten().tolist() if "frames" in tensors else [whole]
    if len(frames) != 1 or not 1 <= frames[0] <= whole:
        name = model.quantiser.code_name
        raise RunError(f"{path} has {name} of {whole} frames, but its tensor 'frames' is {frames}")
    fps = flags.fps or _recorded_fps(path, tensors)
    suffixes = [""] if len(codes) == 1 else [f"-{index:03d}" for index in range(len(codes))]
    paths = [item.target(out, f".decoded{suffix}.mp4") for suffix in suffixes]
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
    _check_fps(values[0], f"{path}: its tensor 'fps'")
    return float(values[0])


def _decode_chunks(
    model: "VideoTokenizer", codes: "Tensor", chunk: int, frames: int
) -> Iterator["Pixels"]:
    """Chunk by chunk, up to `frames`: the last codes may include padding."""
    import torch

    from quintet.shared.tokenizer.pixels import displayed, to_bytes
    from quintet.video.model import split_time

    device, step = next(model.parameters()).device, max(chunk // model.time_factor, 1)
    parts = (part.to(device) for part in split_time(codes, 1 + step, step))
    with torch.no_grad():
        for clip in model.decode_chunks(map(model.quantiser.codes_to_values, parts)):
            decoded = displayed(to_bytes(clip[0])[:frames])
            frames -= len(decoded)
            if len(decoded):
                yield decoded
