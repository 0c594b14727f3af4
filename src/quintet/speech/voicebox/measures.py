"""Baselines and error of infilling. Shapes: frames (b, t, c), infill masks (b, t)."""

import torch
from torch import Tensor

from quintet.nn.alignment import inside


def neighbours(frames: Tensor, infill_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The unmasked frames before and after each frame (zeros for none), and its relative position
    between them."""
    size = infill_mask.shape[1]
    index = torch.arange(size, device=infill_mask.device)
    before = torch.where(infill_mask, -1, index).cummax(1).values
    after = torch.where(infill_mask, size, index).flip(1).cummin(1).values.flip(1)
    padded = torch.nn.functional.pad(frames, (0, 0, 0, 1))

    def pick(index: Tensor) -> Tensor:
        return padded.gather(1, index[..., None].expand(frames.shape))

    share = (index - before) / (after - before).clamp_min(1)
    share = torch.where(before < 0, 1.0, torch.where(after >= size, 0.0, share))
    return pick(torch.where(before < 0, size, before)), pick(after), share[..., None]


def copied(frames: Tensor, infill_mask: Tensor) -> Tensor:
    """Masked frames copied from the nearest unmasked frame."""
    left, right, share = neighbours(frames, infill_mask)
    return torch.where(infill_mask[..., None], torch.where(share < 0.5, left, right), frames)


def interpolated(frames: Tensor, infill_mask: Tensor) -> Tensor:
    """Masked frames interpolated linearly between their unmasked neighbours."""
    left, right, share = neighbours(frames, infill_mask)
    return torch.where(
        infill_mask[..., None], left + share.to(frames.dtype) * (right - left), frames
    )


def mean_error(predicted: Tensor, target: Tensor, infill_mask: Tensor) -> Tensor:
    """(b,): mean absolute error over masked frames."""
    errors = (predicted - target).abs().mean(-1) * infill_mask
    return errors.sum(1) / infill_mask.sum(1).clamp_min(1)


def true_durations(
    ends: Tensor, num_tokens: Tensor, num_frames: Tensor, frame_rate: float
) -> Tensor:
    """(b, n) frames of each character, from the seconds (b, n) at which they end."""
    last = (ends * frame_rate + 0.5).floor().long()
    final = torch.arange(ends.shape[1], device=ends.device) == num_tokens[:, None] - 1
    last = torch.where(final, num_frames[:, None], last.minimum(num_frames[:, None]))
    durations = last.diff(dim=1, prepend=last.new_zeros(len(last), 1))
    return torch.where(inside(num_tokens, ends.shape[1]), durations, 0)
