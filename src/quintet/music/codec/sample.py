"""`quintet sample` for a codec: copies of whole sounds with their codes, or codes decoded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    IDS,
    Device,
    Input,
    Trained,
    each_input,
    find_inputs,
    go_on,
    say_clipping,
    with_input,
    with_progress,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.music.codec.model import Codec

EXAMPLE = "songs --out copies"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Takes audio files of any length to copy, folders of them, or .safetensors files of ids or
    latents from an earlier call."""

    any_model: bool = False
    """Decode ids or latents even if they come from another model or checkpoint."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    return with_input(recipe, run, (".wav",), "--out", "out")


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write NAME.copy.wav and NAME.latents.safetensors (NAME.ids.safetensors of a quantiser) of
    each sound; for such a file, NAME.decoded.wav."""
    from quintet.media.audio import SUFFIXES
    from quintet.shared.tokenizer.code_files import weights_digest

    if not inputs:
        raise RunError(f"{trained.path} holds a codec: give audio files to copy, or folders")
    files = find_inputs(inputs, (SUFFIXES, IDS), "audio files, or ids or latents as .safetensors")
    model: Codec = trained.model(flags.device)
    digest = weights_digest(model)
    out.mkdir(parents=True, exist_ok=True)

    def work(item: Input) -> list[Path]:
        if item.path.suffix in IDS:
            return _decode(model, item, out, None if flags.any_model else digest)
        return _copy(model, item, out, digest, shown=len(files) == 1)

    return each_input(files, work)


def _copy(model: "Codec", item: Input, out: Path, digest: "Tensor", shown: bool) -> list[Path]:
    """Chunk by chunk: of an hour little is in memory but its codes."""
    import torch

    from quintet.media.audio import AudioCaps, audio_blocks, probe
    from quintet.media.wav import MOST_BYTES
    from quintet.music.codec.model import CHUNK
    from quintet.shared.tokenizer.code_files import write_codes

    rate, channels = model.sample_rate, model.channels
    caps = AudioCaps(MOST_BYTES, MOST_BYTES / (2 * rate * channels))
    device = next(model.parameters()).device
    codes: list[Tensor] = []
    count = 0

    def sounds() -> "Iterator[Tensor]":
        nonlocal count
        for block in audio_blocks(item.path, rate=rate, channels=channels, caps=caps):
            count += len(block)
            yield torch.from_numpy(block.T.copy())[None].to(device)

    def kept() -> "Iterator[Tensor]":
        for chunk in model.encode_chunks(sounds()):
            codes.append(chunk.cpu())
            yield chunk

    def cut() -> "Iterator[Tensor]":
        done = 0
        for part in model.decode_chunks(kept()):
            yield part[0, :, : count - done]
            done += part.shape[-1]

    path = item.target(out, ".copy.wav")
    chunks = int(probe(item.path, caps).seconds * rate / model.hop / CHUNK) + 1
    _write(path, cut(), rate, with_progress(range(chunks if shown else 1)))
    file = item.target(out, f".{model.quantiser.code_name}.safetensors")
    write_codes(file, model, torch.cat(codes, -1), digest, samples=torch.tensor([count]))
    return [path, file]


def _decode(model: "Codec", item: Input, out: Path, digest: "Tensor | None") -> list[Path]:
    from quintet.shared.tokenizer.code_files import read_codes

    codes, more = read_codes(item.path, model, digest)
    length = int(more["samples"][0]) if "samples" in more else None
    paths = item.targets(out, ".decoded", ".wav", len(codes))
    device = next(model.parameters()).device
    for path, row in zip(paths, codes):
        parts = [part[0] for part in model.decode_chunks([row[None].to(device)])]
        parts[-1] = parts[-1][:, : None if length is None else length - sum(map(_long, parts[:-1]))]
        _write(path, parts, model.sample_rate, iter(()))
    return paths


def _long(part: "Tensor") -> int:
    return part.shape[-1]


def _write(path: Path, parts: "Iterable[Tensor]", rate: int, shown: Iterator[int]) -> None:
    """Parts (c, n) as they are made; `shown` advances with each."""
    from quintet.files import atomic_path
    from quintet.media.wav import WavWriter

    with atomic_path(path) as partial, WavWriter(partial, rate) as file:
        for part in parts:
            next(shown, None)
            go_on()
            file.add(part.T.float().cpu().numpy())
        for _ in shown:  # the bar ends
            pass
    say_clipping(path, file.clipping)
