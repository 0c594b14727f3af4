"""From what is to be said to frames: which character is heard when, and the flow that fills it in.

Shapes: b samples, n characters, t frames of c numbers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.keys import fold, normal
from quintet.nn.alignment import expand, inside
from quintet.nn.flow import guided, integrate
from quintet.speech.characters import PAD, UNKNOWN, stack
from quintet.speech.durations import frames_inside, whole_frames

if TYPE_CHECKING:
    from quintet.speech.model import VoiceBox


class Script(NamedTuple):
    """All that the backbone is told."""

    said: Tensor
    """(b, t): the character of each frame."""
    context: Tensor
    """(b, t, c): clean frames, zeros in the hole."""
    hole: Tensor
    """(b, t) booleans: what is to be filled in."""
    frames: Tensor
    """(b,): how many of them are no padding."""
    durations: Tensor
    """(b, n): frames of each character."""


class Solver(NamedTuple):
    """How the flow is followed."""

    steps: int = 16
    method: Literal["euler", "midpoint", "adaptive"] = "midpoint"
    sway: float = -1.0
    cond_scale: float = 1.3


class Heard(NamedTuple):
    """A stretch of speech that is there, with the character of each frame."""

    frames: Tensor
    """(t, c)."""
    ids: Tensor
    """(n,)."""
    durations: Tensor
    """(n,), which add up to t."""


class Line(NamedTuple):
    """One sample: new characters (n,) between what is heard before and after, if anything is."""

    ids: Tensor
    before: Heard | None = None
    after: Heard | None = None
    length: int | None = None
    """Frames of what is new; left out: as the duration model says."""


def fill(model: "VoiceBox", script: Script, solver: Solver, keys: Tensor) -> Tensor:
    """(b, t, c): the context as it is, and the hole as the flow fills it from keyed noise."""
    context, mask = script.context, inside(script.frames, script.said.shape[1])
    noise = normal(keys, "noise", tuple(context.shape[1:])).to(context.dtype)
    told = {"context": context, "hole": script.hole, "said": script.said, "mask": mask}
    nothing = torch.where(mask, UNKNOWN, PAD)
    untold = {"context": torch.zeros_like(context), "hole": mask, "said": nothing}
    field = guided(model.velocity, told, untold, solver.cond_scale)
    found = integrate(field, noise, solver.steps, solver.method, sway=solver.sway)
    return torch.where(script.hole[..., None], found, context)


def keys_of(seed: int, count: int, device: torch.device) -> Tensor:
    """A key for each sample that is made."""
    return torch.tensor([fold("speak", seed, index) for index in range(count)], device=device)


# -- a hole in a recording ------------------------------------------------------------------------


def holed(
    model: "VoiceBox", x1: Tensor, frames: Tensor, ids: Tensor, tokens: Tensor, hole: Tensor
) -> Script:
    """The frames outside of the hole, and its characters by text and durations alone."""
    mask = inside(frames, x1.shape[1])
    hole = hole & mask
    context = model.hidden(x1, hole, mask)
    if model.durations is None:
        return Script(ids, context, hole, frames, (ids > 0).long())
    found = model.align(context, frames, ids, tokens, hole)
    open_ended = touched(found.durations, hole)
    outside = found.durations - frames_inside(found.durations, hole)
    whole = model.durations(ids, tokens, found.durations, ~open_ended).exp()
    # A character that the hole cuts goes on for as long as it would.
    rest = (whole - outside).clamp_min(0.1) * open_ended
    durations = outside + whole_frames(rest, hole.sum(1))
    return Script(expand(ids, durations, x1.shape[1]), context, hole, frames, durations)


def touched(durations: Tensor, hole: Tensor) -> Tensor:
    """(b, n): from the character that is heard last before the hole to the first one after it.

    Where in the hole they are is not known, and so each of them may reach into it.
    """
    wider = F.pad(hole, (1, 1))
    return frames_inside(durations, wider[:, :-2] | hole | wider[:, 2:]) > 0


# -- new speech, alone or beside what is heard ----------------------------------------------------


def hear(model: "VoiceBox", frames: Tensor, ids: Tensor | None) -> Heard:
    """Frames (t, c) with the characters (n,) that they speak, if those are known."""
    count = torch.tensor([len(frames)], device=frames.device)
    if ids is None:
        return Heard(frames, torch.tensor([UNKNOWN], device=frames.device), count)
    tokens = torch.tensor([len(ids)], device=frames.device)
    if len(ids) > len(frames):
        raise ValueError(
            f"a text of {len(ids)} characters cannot be spoken in {len(frames)} frames; is it the"
            " text of this recording?"
        )
    return Heard(frames, ids, model.align(frames[None], count, ids[None], tokens).durations[0])


def cut(heard: Heard, start: int, end: int) -> tuple[Heard, Heard]:
    """What is before and after; a character belongs to where most of it is, or to neither."""
    ends = heard.durations.cumsum(0)
    middles = ends - heard.durations / 2
    unknown = heard.ids == UNKNOWN
    first, last = (middles < start) | unknown, (middles >= end) | unknown
    stretches = ((first, 0, start), (last, end, len(heard.frames)))
    return tuple(_piece(heard, chosen, begin, stop) for chosen, begin, stop in stretches)  # type: ignore[return-value]


def _piece(heard: Heard, chosen: Tensor, begin: int, stop: int) -> Heard:
    """Frames from `begin` to `stop`, filled by the chosen characters."""
    ids, lengths = heard.ids[chosen], heard.durations[chosen]
    if not len(ids):
        ids, lengths = heard.ids.new_tensor([UNKNOWN]), lengths.new_tensor([1])
    total = torch.tensor([stop - begin], device=ids.device)
    return Heard(heard.frames[begin:stop], ids, whole_frames(lengths[None], total)[0])


def scripted(model: "VoiceBox", lines: Sequence[Line]) -> Script:
    """Durations of what is new by the duration model, told those of what is heard."""
    device = model.device
    ids, tokens = stack([torch.cat(_in_order(line)).cpu() for line in lines])
    ids, tokens = ids.to(device), tokens.to(device)
    durations, new = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for row, line in enumerate(lines):
        start = len(line.before.ids) if line.before else 0
        end = start + len(line.ids)
        new[row, start:end] = True
        if line.before:
            durations[row, :start] = line.before.durations
        if line.after:
            durations[row, end : end + len(line.after.ids)] = line.after.durations
    durations = torch.where(new, _predicted(model, lines, ids, tokens, durations, new), durations)
    frames = durations.sum(1)
    size = int(frames.max())
    hole = expand(new.long(), durations, size).bool()
    context = model.characters.weight.new_zeros(len(lines), size, model.config.bins)
    for row, (line, count) in enumerate(zip(lines, frames.tolist())):
        if line.before:
            context[row, : len(line.before.frames)] = line.before.frames
        if line.after:
            context[row, count - len(line.after.frames) : count] = line.after.frames
    return Script(expand(ids, durations, size), context, hole, frames, durations)


def _in_order(line: Line) -> list[Tensor]:
    before = [line.before.ids] if line.before else []
    after = [line.after.ids] if line.after else []
    return [*before, line.ids, *after]


def _predicted(
    model: "VoiceBox",
    lines: Sequence[Line],
    ids: Tensor,
    tokens: Tensor,
    durations: Tensor,
    new: Tensor,
) -> Tensor:
    assert model.durations is not None
    known = inside(tokens, ids.shape[1]) & ~new & (ids != UNKNOWN)
    lengths = model.durations(ids, tokens, durations, known).exp().clamp_min(1) * new
    found = whole_frames(lengths)
    wanted = [line.length for line in lines]
    if any(length is not None for length in wanted):
        sums = found.sum(1).tolist()
        totals = [sums[i] if length is None else length for i, length in enumerate(wanted)]
        found = whole_frames(lengths, torch.tensor(totals, device=ids.device))
    return found


def pasted(audio: Tensor, sound: Tensor, frames: tuple[int, int, int], hop: int) -> Tensor:
    """A recording whose frames from the first to the second number are, in `sound`, those from the
    first to the third. For half a frame on both sides one fades into the other."""
    left, right, end = (count * hop for count in frames)
    rise = torch.linspace(0, 1, min(hop // 2, left) + 1, device=audio.device)[1:]
    room = min(hop // 2, len(audio) - right, len(sound) - end)
    fall = torch.linspace(1, 0, max(0, room) + 1, device=audio.device)[1:]
    new = sound[left - len(rise) : end + len(fall)].clone()
    new[: len(rise)] = rise * new[: len(rise)] + (1 - rise) * audio[left - len(rise) : left]
    last = len(new) - len(fall)
    new[last:] = fall * new[last:] + (1 - fall) * audio[right : right + len(fall)]
    return torch.cat((audio[: left - len(rise)], new, audio[right + len(fall) :]))
