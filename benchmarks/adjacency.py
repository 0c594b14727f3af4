"""Time and memory of linking the faces of a mesh of 100,000 to their neighbours.

    python benchmarks/adjacency.py

A sheet, and the worst case, all faces on one edge. Exits with 1 past 2 seconds or 500 MB.
"""

import json
import resource
import sys
import time

import numpy as np

from quintet.mesh.geometry import face_neighbours

COUNT = 100_000


def sheet() -> np.ndarray:
    side = int((COUNT / 2) ** 0.5) + 1
    corner = np.arange((side + 1) ** 2).reshape(side + 1, side + 1)
    a, b, c, d = corner[:-1, :-1], corner[:-1, 1:], corner[1:, :-1], corner[1:, 1:]
    both = np.stack([np.stack([a, b, c], -1), np.stack([b, d, c], -1)], 2)
    return both.reshape(-1, 3)[:COUNT]


def fan() -> np.ndarray:
    return np.stack([np.zeros(COUNT, int), np.ones(COUNT, int), np.arange(2, COUNT + 2)], 1)


def main() -> None:
    good = True
    for make in (sheet, fan):
        faces = make()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        face_neighbours(faces)
        seconds = time.perf_counter() - begin
        megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        good = good and seconds < 2 and megabytes < 500
        row = {"mesh": make.__name__, "faces": COUNT, "seconds": seconds, "megabytes": megabytes}
        print(json.dumps({"benchmark": "adjacency", **row}))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
