"""SIGTERM, SIGINT and the clock ask for a stop; the loop grants it between two steps."""

import os
import signal
import threading
import time
from types import FrameType

STATUS = {1: 0, 2: 143, 3: 130}
REASON = {1: "the clock", 2: "SIGTERM", 3: "an interrupt"}


class Signals:
    """Code 0: go on; 1: the clock; 2: SIGTERM; 3: SIGINT. A second SIGINT stops at once."""

    def __init__(self, minutes: float | None):
        self.deadline = time.monotonic() + 60 * minutes if minutes is not None else None
        self.code = 0
        self._old: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.code == 3:
            os._exit(130)
        self.code = max(self.code, 3 if number == signal.SIGINT else 2)

    def asked(self) -> int:
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return max(self.code, 1 if late else 0)
