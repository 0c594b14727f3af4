"""What filling in is measured against, and how far a guess is off. Shapes: (b, t, c) and (b, t)."""

import torch
from torch import Tensor

from quintet.nn.alignment import inside


def edges(hole: Tensor) -> tuple[Tensor, Tensor]:
    """For each frame the nearest one before and after that is in no hole; -1 and t for none."""
    size = hole.shape[1]
    at = torch.arange(size, device=hole.device).expand(hole.shape)
    before = torch.where(hole, -1, at).cummax(1).values
    after = torch.where(hole, size, at).flip(1).cummin(1).values.flip(1)
    return before, after


def neighbours(rows: Tensor, hole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What stands before and after each frame (zeros where nothing does), and how far along it is
    from one to the other."""
    size = hole.shape[1]
    before, after = edges(hole)
    padded = torch.nn.functional.pad(rows, (0, 0, 0, 1))

    def pick(index: Tensor) -> Tensor:
        return padded.gather(1, index[..., None].expand(rows.shape))

    at = torch.arange(size, device=hole.device)
    share = (at - before) / (after - before).clamp_min(1)
    share = torch.where(before < 0, 1.0, torch.where(after >= size, 0.0, share))
    return pick(torch.where(before < 0, size, before)), pick(after), share[..., None]


def copied(rows: Tensor, hole: Tensor) -> Tensor:
    """Each hidden frame is its nearest neighbour that is not hidden."""
    left, right, share = neighbours(rows, hole)
    return torch.where(hole[..., None], torch.where(share < 0.5, left, right), rows)


def interpolated(rows: Tensor, hole: Tensor) -> Tensor:
    """Hidden frames change evenly from the one before to the one after."""
    left, right, share = neighbours(rows, hole)
    return torch.where(hole[..., None], left + share.to(rows.dtype) * (right - left), rows)


def mean_error(guess: Tensor, truth: Tensor, hole: Tensor) -> Tensor:
    """(b,): mean absolute error over hidden frames."""
    errors = (guess - truth).abs().mean(-1) * hole
    return errors.sum(1) / hole.sum(1).clamp_min(1)


def true_durations(ends: Tensor, tokens: Tensor, frames: Tensor, frame_rate: float) -> Tensor:
    """(b, n) frames of each character, by the seconds (b, n) at which they end."""
    last = (ends * frame_rate + 0.5).floor().long()
    final = torch.arange(ends.shape[1], device=ends.device) == tokens[:, None] - 1
    last = torch.where(final, frames[:, None], last.minimum(frames[:, None]))
    durations = last.diff(dim=1, prepend=last.new_zeros(len(last), 1))
    return torch.where(inside(tokens, ends.shape[1]), durations, 0)
