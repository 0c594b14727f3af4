"""Inference of VoiceBox: the layout of characters over frames, and infilling by the flow.

Shapes: b samples, n characters, t frames of c features.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from quintet.engine.keys import fold, normal
from quintet.nn.alignment import expand, inside
from quintet.nn.flow import Method, guided, integrate
from quintet.shared.sampling import go_on
from quintet.speech.text.characters import PAD, UNKNOWN, stack
from quintet.speech.text.timing import Pause, Timing
from quintet.speech.voicebox import control
from quintet.speech.voicebox.durations import masked_frames, round_durations, voice_of

if TYPE_CHECKING:
    from quintet.speech.voicebox.model import VoiceBox


MOST_FRAMES = 2**14
"""Frames, with padding, that are solved together for several clients."""


class Layout(NamedTuple):
    """Conditioning of the backbone."""

    frame_ids: Tensor
    """(b, t): the character of each frame."""
    context: Tensor
    """(b, t, c): clean frames, zeros in the infill mask."""
    infill_mask: Tensor
    """(b, t) booleans: frames to infill."""
    num_frames: Tensor
    """(b,), without padding."""
    durations: Tensor
    """(b, n): frames of each character."""
    pauses: tuple[tuple[Pause, ...], ...] = ()
    """Of each sample, in its new frames; empty for none."""


class Solver(NamedTuple):
    """Settings of the ODE solver and of guidance."""

    steps: int = 16
    method: Method = "midpoint"
    sway: float = -1.0
    cond_scale: float = 1.3


class Reference(NamedTuple):
    """Existing speech, aligned with its characters."""

    frames: Tensor
    """(t, c)."""
    ids: Tensor
    """(n,)."""
    durations: Tensor
    """(n,), with sum t."""


SEGMENTS = ("texts", "cond", "cond_texts", "language", "seconds", "seed")
"""Keywords of `VoiceBox.sample` that say what to speak."""


class Segment(NamedTuple):
    """New characters (n,) to speak, between optional references."""

    ids: Tensor
    before: Reference | None = None
    after: Reference | None = None
    length: int | None = None
    """Number of new frames; None: predicted by the duration model."""
    timing: Timing | None = None
    """What is asked of the durations of the new characters."""


def infill(model: "VoiceBox", layout: Layout, solver: Solver, keys: Tensor) -> Tensor:
    """(b, t, c): the context unchanged, and the infill mask generated from keyed noise."""
    context, mask = layout.context, inside(layout.num_frames, layout.frame_ids.shape[1])
    noise = normal(keys, "noise", tuple(context.shape[1:])).to(context.dtype)
    cond = {
        "context": context,
        "infill_mask": layout.infill_mask,
        "frame_ids": layout.frame_ids,
        "mask": mask,
    }
    uncond = {
        "context": torch.zeros_like(context),
        "infill_mask": mask,
        "frame_ids": torch.where(mask, UNKNOWN, PAD),
    }
    velocity = guided(model.velocity, cond, uncond, solver.cond_scale)

    def field(x: Tensor, time: Tensor) -> Tensor:
        go_on()
        return velocity(x, time)

    sample = integrate(field, noise, solver.steps, solver.method, sway=solver.sway)
    return torch.where(layout.infill_mask[..., None], sample, context)


def noise_keys(seed: int, count: int, device: torch.device) -> Tensor:
    return torch.tensor([fold("speak", seed, index) for index in range(count)], device=device)


@torch.no_grad()
def speak_together(model: "VoiceBox", calls: Sequence[Mapping[str, Any]]) -> list[list[Tensor]]:
    """What `model.sample` says for each of these keywords, of one text and the same settings. Only
    the flow is solved for several at once, those of about one length: frames may round otherwise,
    while their number and all else are those of each by itself."""
    layouts = [
        segment_layout(model, model.segments(**{n: call[n] for n in SEGMENTS if n in call}))
        for call in calls
    ]
    solver = Solver(**{name: calls[0][name] for name in Solver._fields})
    groups: dict[int, list[int]] = {}
    for number, layout in enumerate(layouts):
        groups.setdefault(layout.frame_ids.shape[1].bit_length(), []).append(number)
    sounds: dict[int, list[Tensor]] = {}
    for bits, numbers in groups.items():
        most = 1 if solver.method == "adaptive" else max(1, MOST_FRAMES >> bits)
        for first in range(0, len(numbers), most):
            part = numbers[first : first + most]
            layout = stacked([layouts[number] for number in part])
            keys = [noise_keys(calls[number]["seed"], 1, model.device) for number in part]
            frames = infill(model, layout, solver, torch.cat(keys))
            for number, row, mask in zip(part, frames, layout.infill_mask):
                pauses = [pause for each in layouts[number].pauses for pause in each]
                new = control.with_pauses(model, row[mask], pauses)
                sounds[number] = [model.to_sound(new, calls[number]["vocoder"])]
    return [sounds[number] for number in range(len(calls))]


def stacked(layouts: Sequence[Layout]) -> Layout:
    """Layouts of one sample each as a batch, with padding at the end."""
    names = ("frame_ids", "context", "infill_mask", "durations")
    rows = ([getattr(layout, name)[0] for layout in layouts] for name in names)
    frame_ids, context, infill_mask, durations = (pad_sequence(row, True) for row in rows)
    num_frames = torch.cat([layout.num_frames for layout in layouts])
    return Layout(frame_ids, context, infill_mask, num_frames, durations)


# -- infilling of a recording ---------------------------------------------------------------------


def infill_layout(
    model: "VoiceBox",
    x1: Tensor,
    num_frames: Tensor,
    ids: Tensor,
    num_tokens: Tensor,
    infill_mask: Tensor,
) -> Layout:
    """The frames outside of the mask, and its characters by text and durations alone."""
    mask = inside(num_frames, x1.shape[1])
    infill_mask = infill_mask & mask
    context = model.mask_context(x1, infill_mask, mask)
    if model.config.text == "none":
        frame_ids = torch.where(mask, UNKNOWN, PAD)
        return Layout(frame_ids, context, infill_mask, num_frames, num_frames[:, None])
    if model.durations is None:
        return Layout(ids, context, infill_mask, num_frames, (ids > 0).long())
    aligned = model.align(context, num_frames, ids, num_tokens, infill_mask).durations
    uncertain = may_overlap(aligned, infill_mask)
    visible = aligned - masked_frames(aligned, infill_mask)
    voice = voice_of(context, mask & ~infill_mask)
    predicted = model.durations(ids, num_tokens, aligned, ~uncertain, voice).exp()
    # A character at the edge of the mask gets the rest of its predicted duration inside.
    rest = (predicted - visible).clamp_min(0.1) * uncertain
    durations = visible + round_durations(rest, infill_mask.sum(1))
    frame_ids = expand(ids, durations, x1.shape[1])
    return Layout(frame_ids, context, infill_mask, num_frames, durations)


def may_overlap(durations: Tensor, infill_mask: Tensor) -> Tensor:
    """(b, n): from the last visible character before the mask to the first one after it.

    Their alignment inside the mask is unknown, so each of them may extend into it.
    """
    wider = F.pad(infill_mask, (1, 1))
    return masked_frames(durations, wider[:, :-2] | infill_mask | wider[:, 2:]) > 0


# -- new speech, alone or next to references ------------------------------------------------------


def align_reference(model: "VoiceBox", frames: Tensor, ids: Tensor | None) -> Reference:
    """Frames (t, c) aligned with their characters (n,), if those are known."""
    count = torch.tensor([len(frames)], device=frames.device)
    if ids is None:
        return Reference(frames, torch.tensor([UNKNOWN], device=frames.device), count)
    num_tokens = torch.tensor([len(ids)], device=frames.device)
    if len(ids) > len(frames):
        raise ValueError(
            f"a text of {len(ids)} characters does not fit into {len(frames)} frames; is it the"
            " text of this recording?"
        )
    durations = model.align(frames[None], count, ids[None], num_tokens).durations[0]
    return Reference(frames, ids, durations)


def split_reference(reference: Reference, start: int, end: int) -> tuple[Reference, Reference]:
    """The parts before `start` and from `end` on; a character belongs to the part with its centre,
    or to neither."""
    centres = reference.durations.cumsum(0) - reference.durations / 2
    unknown = reference.ids == UNKNOWN
    before, after = (centres < start) | unknown, (centres >= end) | unknown
    return (
        _slice_reference(reference, before, 0, start),
        _slice_reference(reference, after, end, len(reference.frames)),
    )


def _slice_reference(reference: Reference, chosen: Tensor, start: int, end: int) -> Reference:
    """Frames `start` to `end`, with the chosen characters stretched over them."""
    ids, durations = reference.ids[chosen], reference.durations[chosen]
    if not len(ids):
        ids, durations = reference.ids.new_tensor([UNKNOWN]), durations.new_tensor([1])
    total = torch.tensor([end - start], device=ids.device)
    return Reference(reference.frames[start:end], ids, round_durations(durations[None], total)[0])


def segment_layout(model: "VoiceBox", segments: Sequence[Segment]) -> Layout:
    """New durations by the duration model, conditioned on those of the references."""
    device = model.device
    parts = ([s for s in (segment.before, segment, segment.after) if s] for segment in segments)
    ids, num_tokens = stack([torch.cat([part.ids for part in row]).cpu() for row in parts])
    ids, num_tokens = ids.to(device), num_tokens.to(device)
    durations, new = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for row, segment in enumerate(segments):
        start = len(segment.before.ids) if segment.before else 0
        end = start + len(segment.ids)
        new[row, start:end] = True
        if segment.before:
            durations[row, :start] = segment.before.durations
        if segment.after:
            durations[row, end : end + len(segment.after.ids)] = segment.after.durations
    predicted, rounded = _predict_durations(model, segments, ids, num_tokens, durations, new)
    durations = torch.where(new, rounded, durations)
    pauses: tuple[tuple[Pause, ...], ...] = ()
    if any(segment.timing for segment in segments):
        ids, durations, new, pauses = _timed_rows(model, segments, ids, predicted, durations, new)
    num_frames = durations.sum(1)
    size = int(num_frames.max())
    infill_mask = expand(new.long(), durations, size).bool()
    context = model.text_embedding.weight.new_zeros(len(segments), size, model.config.n_mels)
    for row, (segment, count) in enumerate(zip(segments, num_frames.tolist())):
        if segment.before:
            context[row, : len(segment.before.frames)] = segment.before.frames
        if segment.after:
            context[row, count - len(segment.after.frames) : count] = segment.after.frames
    frame_ids = expand(ids, durations, size)
    return Layout(frame_ids, context, infill_mask, num_frames, durations, pauses)


def _timed_rows(
    model: "VoiceBox",
    segments: Sequence[Segment],
    ids: Tensor,
    predicted: Tensor,
    durations: Tensor,
    new: Tensor,
) -> tuple[Tensor, Tensor, Tensor, tuple[tuple[Pause, ...], ...]]:
    """Ids, durations and new characters (b, n), with what is asked of them, and the pauses."""
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    pauses: list[tuple[Pause, ...]] = []
    for row, segment in enumerate(segments):
        old = ids[row], durations[row], new[row]
        rows.append(old)
        pauses.append(())
        if segment.timing is None:
            continue
        first = len(segment.before.ids) if segment.before else 0
        last = first + len(segment.ids)
        read, frames, pauses[row] = control.apply(
            model,
            segment.ids,
            predicted[row, first:last],
            durations[row, first:last],
            segment.timing,
            segment.length,
        )
        inside = read, frames, torch.ones_like(read, dtype=torch.bool)
        rows[row] = tuple(  # type: ignore[assignment]
            torch.cat((each[:first], middle, each[last:])) for each, middle in zip(old, inside)
        )
    padded = (pad_sequence([row[place] for row in rows], True) for place in range(3))
    return *padded, tuple(pauses)  # type: ignore[return-value]


def _voice(model: "VoiceBox", segment: Segment) -> Tensor:
    heard = [part.frames for part in (segment.before, segment.after) if part is not None]
    nothing = model.text_embedding.weight.new_zeros(0, model.config.n_mels)
    frames = torch.cat([nothing, *heard])[None]
    return voice_of(frames, torch.ones(frames.shape[:2], dtype=torch.bool, device=model.device))


def _predict_durations(
    model: "VoiceBox",
    segments: Sequence[Segment],
    ids: Tensor,
    num_tokens: Tensor,
    durations: Tensor,
    new: Tensor,
) -> tuple[Tensor, Tensor]:
    """(b, n): durations of new characters, and whole ones."""
    assert model.durations is not None
    known = inside(num_tokens, ids.shape[1]) & ~new & (ids != UNKNOWN)
    voice = torch.cat([_voice(model, segment) for segment in segments])
    predicted = model.durations(ids, num_tokens, durations, known, voice).exp().clamp_min(1) * new
    rounded = round_durations(predicted)
    # Of a segment with a timing, the length is that of its sound with all pauses.
    lengths = [None if segment.timing else segment.length for segment in segments]
    if all(length is None for length in lengths):
        return predicted, rounded
    sums = rounded.sum(1).tolist()
    totals = [s if length is None else length for s, length in zip(sums, lengths)]
    return predicted, round_durations(predicted, torch.tensor(totals, device=ids.device))


def splice(audio: Tensor, sound: Tensor, frames: tuple[int, int, int], hop: int) -> Tensor:
    """`audio` with a span of frames replaced from `sound`, cross-faded over half a frame.

    `frames` are the first frame of the span, its end in `audio`, and its end in `sound`.
    """
    left, right, end = (count * hop for count in frames)
    fade_in = torch.linspace(0, 1, min(hop // 2, left) + 1, device=audio.device)[1:]
    room = min(hop // 2, len(audio) - right, len(sound) - end)
    fade_out = torch.linspace(1, 0, max(0, room) + 1, device=audio.device)[1:]
    start = left - len(fade_in)
    new = sound[start : end + len(fade_out)].clone()
    new[: len(fade_in)] = fade_in * new[: len(fade_in)] + (1 - fade_in) * audio[start:left]
    last = len(new) - len(fade_out)
    new[last:] = fade_out * new[last:] + (1 - fade_out) * audio[right : right + len(fade_out)]
    return torch.cat((audio[:start], new, audio[right + len(fade_out) :]))
