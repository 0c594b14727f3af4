"""Fréchet distance of two sets of features, each taken as a Gaussian (FID, arXiv 1706.08500).

|m - n|^2 + tr S + tr T - 2 tr (S T)^(1/2), with means m, n and covariances S, T of the features.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.judges.base import Array


def frechet_distance(references: Array, outputs: Array) -> float:
    """The distance of features (n, d) and (m, d), in fp64; never negative."""
    return frechet_from(references)(outputs)


def frechet_from(references: Array) -> Callable[[Array], float]:
    """The distance of any outputs from these."""
    mean, first = _gaussian(torch.from_numpy(references))

    def distance(outputs: Array) -> float:
        other, second = _gaussian(torch.from_numpy(outputs))
        # With S = A'A and T = B'B the eigenvalues of ST are those of the symmetric AT A', the
        # squared singular values of AB'. Squaring nothing keeps all digits of small ones, which are
        # most where there are fewer samples than dimensions.
        shared = torch.linalg.svdvals(first @ second.T).sum()
        spread = first.square().sum() + second.square().sum() - 2 * shared
        return max(0.0, float((mean - other).square().sum() + spread))

    return distance


def ragged(features: Sequence[Array]) -> Array:
    """(n, w, d) of several calls, joined; NaN where a sample has fewer rows than the longest."""
    longest = max(rows.shape[1] for rows in features)
    padding = [((0, 0), (0, longest - rows.shape[1]), (0, 0)) for rows in features]
    return np.concatenate([np.pad(*p, constant_values=np.nan) for p in zip(features, padding)])


def rows_of(features: Array) -> Array:
    """(n, w, d) of `ragged` -> (rows, d)."""
    return features[~np.isnan(features).any(-1)]


def _gaussian(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean, and a factor A of the covariance A'A with at most d rows."""
    count = len(features)
    if count < 2:
        raise RunError(f"a Fréchet distance needs at least 2 samples in each set, not {count}")
    features = features.double()
    mean = features.mean(0)
    centred = (features - mean) / (count - 1) ** 0.5
    return mean, centred if count <= features.shape[1] else torch.linalg.qr(centred, mode="r").R
