"""Quadric decimation, which retopology is compared with."""

import numpy as np
import numpy.typing as npt

from quintet.media.meshes.polygons import Mesh

EXTRA = "pip install 'quintet[retopology]'"


def decimate(vertices: npt.ArrayLike, faces: npt.ArrayLike, count: int) -> Mesh:
    """A mesh of at most `count` faces by quadric errors (Garland and Heckbert, 1997), as carefully
    as that many are reached; of more only where nothing else can be merged."""
    try:
        import fast_simplification
    except ImportError as error:
        raise ImportError(f"quadric decimation needs fast-simplification: {EXTRA}") from error
    whole = np.asarray(vertices, np.float64), np.ascontiguousarray(faces, np.int32)
    mesh = whole
    for haste in (3, 5, 7, 10, 15):
        if len(mesh[1]) > count:
            start = whole if haste <= 7 else mesh
            mesh = fast_simplification.simplify(*start, target_count=count, agg=haste)
    return Mesh(np.asarray(mesh[0], np.float64), np.asarray(mesh[1], np.int64))
