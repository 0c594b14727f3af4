"""What marks, a rate and a spread ask of new speech: its segments, their durations and pauses.

Shapes: b samples, n characters, t frames of c features.
"""

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.keys import fold, normal
from quintet.speech.features import FLOOR
from quintet.speech.text.markup import Marked, parse
from quintet.speech.text.timing import PAUSE_ID, Pause, Timing, timed, units_of

if TYPE_CHECKING:
    from quintet.speech.voicebox.config import VoiceBoxConfig
    from quintet.speech.voicebox.model import VoiceBox

SILENT = 1e-5
"""Peak of breaks, relative to that of the speech: recordings have more noise."""


def timed_ids(
    model: "VoiceBox",
    text: str | Marked,
    language: str = "",
    key: int = 0,
) -> tuple[Tensor, Timing | None]:
    """Ids of a text to speak, and what is asked of their durations; None: nothing."""
    marked = parse(text) if isinstance(text, str) else text
    if marked.is_plain:
        return model.encode(marked.text, language).to(model.device), None
    ids, timing = units_of(marked, model.config, language)
    # Draws, as predictions, are of logarithms.
    draws = (
        normal(torch.tensor([key]), "durations", (len(ids),))[0].mul(-marked.spread).exp().tolist()
    )
    rates = tuple(marked.rate * own * draw for own, draw in zip(timing.rates, draws))
    return torch.tensor(ids, device=model.device), timing._replace(rates=rates)


def plain(texts: Sequence[str | Marked] | Tensor | None) -> Sequence[str] | Tensor | None:
    """Transcripts of whole recordings, whose durations are heard."""
    if texts is None or isinstance(texts, Tensor):
        return texts
    return [text.text if isinstance(text, Marked) else text for text in texts]


def spread_key(seed: int, index: int) -> int:
    return fold("durations", seed, index)


def frame_rate(config: "VoiceBoxConfig") -> float:
    return config.sample_rate / config.hop_length


def apply(
    model: "VoiceBox",
    ids: Tensor,
    predicted: Tensor,
    durations: Tensor,
    timing: Timing,
    total: int | None,
) -> tuple[Tensor, Tensor, tuple[Pause, ...]]:
    """Ids and whole durations (n,) of a segment with its inserted pauses, and all its pauses."""
    config = model.config
    cut = config.features == "mel"
    rates = predicted.tolist(), durations.tolist()
    units, frames, pauses = timed(*rates, timing, frame_rate(config), total, cut)
    own = ids.tolist()
    read = [PAUSE_ID if unit < 0 else own[unit] for unit in units]
    return ids.new_tensor(read), durations.new_tensor(frames), pauses


def with_pauses(model: "VoiceBox", frames: Tensor, pauses: Sequence[Pause]) -> Tensor:
    """Frames (t, c) of new speech with its pauses at their length and silent: a model that never
    heard a long one may speak in it. Latents of silence are unknown, and stay as solved."""
    config = model.config
    if config.features != "mel":
        return frames
    silence = (log(FLOOR) - config.mean) / config.std
    parts: list[Tensor] = []
    last = 0
    for start, solved, count in pauses:
        parts += [frames[last:start], frames.new_full((count, config.n_mels), silence)]
        last = start + solved
    return torch.cat([*parts, frames[last:]]) if pauses else frames


def without_pauses(sound: Tensor, sample_rate: int) -> Tensor:
    """A sound (n,) as a reference: of its silent breaks, 0.05 s at both ends stay."""
    chunks = F.pad(sound, (0, -len(sound) % (sample_rate // 100))).view(-1, sample_rate // 100)
    loud = (chunks.abs().amax(1) >= SILENT * chunks.abs().max()).float()
    near = F.max_pool1d(loud[None], 11, stride=1, padding=5)[0] > 0
    return chunks[near].flatten()
