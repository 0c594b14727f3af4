"""Batches to the device. On a GPU they are copied on a stream of their own, from pinned memory,
while earlier steps still compute.
"""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from quintet.engine.data.seat import Seat
from quintet.engine.data.wire import mapped, widened

AHEAD = 3
"""Steps that the host may be ahead of the GPU. Every one of them holds a batch on the device."""


class Transfer:
    def __init__(self, world: Seat):
        self.world = world
        is_gpu = world.device.type == "cuda"
        self.stream = torch.cuda.Stream(world.device) if is_gpu else None
        self._begun: deque[torch.cuda.Event] = deque()

    def begin_step(self) -> None:
        """Wait until the GPU has finished all but the last few steps."""
        if self.stream is None:
            return
        event = torch.cuda.Event(blocking=True)  # waiting takes no core from the workers
        event.record(torch.cuda.current_stream(self.world.device))
        self._begun.append(event)
        if len(self._begun) > AHEAD:
            self._begun.popleft().synchronize()

    def __call__(self, data: Any) -> Any:
        """Nested tensors on the device, fractions as floats."""
        world = self.world
        if self.stream is None:
            return widened(data, world.dtype, world.place)
        compute = torch.cuda.current_stream(world.device)
        with torch.cuda.stream(self.stream):
            data = widened(data, world.dtype, world.place)
        compute.wait_stream(self.stream)

        def keep(tensor: Tensor) -> Tensor:
            tensor.record_stream(compute)  # its memory is not reused before that is done with it
            return tensor

        return mapped(keep, data)
