"""Steps of generation as CUDA graphs."""

from collections.abc import Callable

import torch


class CapturedStep:
    """One graph for each length that a step takes (of a cache, say).

    The first step of each length runs eagerly, to load the kernels that the graph records.
    """

    def __init__(self, step: Callable[[int], None]) -> None:
        self.step = step
        self.warm: set[int] = set()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, length: int) -> None:
        if length not in self.warm:
            self.warm.add(length)
            self.step(length)
            return
        if length not in self.graphs:
            self.graphs[length] = self.capture(length)
        self.graphs[length].replay()

    def capture(self, length: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        # Restrict only this thread during capture: a data loader's thread may pin memory meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self.step(length)
        return graph
