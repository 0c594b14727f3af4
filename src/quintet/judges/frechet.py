"""The Frechet distance of two sets of features, each taken as a normal distribution."""

import numpy as np

from quintet.judges.base import Array


def frechet_distance(references: Array, candidates: Array) -> float:
    """Of (n, d) and (m, d): |difference of means|^2 + tr(A + B - 2 (A B)^(1/2)), in fp64."""
    first, second = np.asarray(references, np.float64), np.asarray(candidates, np.float64)
    shift = first.mean(0) - second.mean(0)
    a, b = np.atleast_2d(np.cov(first.T)), np.atleast_2d(np.cov(second.T))
    # The root of A B has the eigenvalues of the root of the symmetric A^(1/2) B A^(1/2).
    values, vectors = np.linalg.eigh(a)
    half = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    root = np.sqrt(np.linalg.eigvalsh(half @ b @ half).clip(0)).sum()
    return float(shift @ shift + np.trace(a) + np.trace(b) - 2 * root)
