"""Codes as numbers with several digits. Imports no torch."""

from math import prod

from quintet.nn.quantisers.config import CodebookConfig

MAX_DIGIT = 1024
"""Largest softmax of a factorised code."""


def digits_of(config: CodebookConfig) -> tuple[int, ...]:
    """Bases of the digits of a code, least significant first.

    Levels of fsq, and bits of lfq and bsq, are multiplied to as few digits as `MAX_DIGIT` allows,
    and of these splits to the one with the fewest logits: 512 and 125 for 64,000 codes. Codes of a
    learned codebook (vq) have no digits: their numbers mean nothing.
    """
    if config.quantiser == "vq":
        return (2**config.codebook_bits,)
    fsq = config.quantiser == "fsq"
    levels = tuple(config.levels) if fsq else (2,) * config.codebook_bits
    best: list[tuple[int, ...] | None] = [(), *(None for _ in levels)]
    for end in range(1, len(levels) + 1):
        splits = [
            (*before, prod(levels[start:end]))
            for start in range(end)
            if (before := best[start]) is not None
            and (end - start == 1 or prod(levels[start:end]) <= MAX_DIGIT)
        ]
        best[end] = min(splits, key=lambda split: (len(split), sum(split)))
    digits = best[-1]
    assert digits
    return digits
