"""Signals, the clock and requests ask for a stop; the loop grants it between two steps."""

import contextlib
import os
import signal
import threading
import time
from types import FrameType

CLOCK, FLAT, ASKED, HANGUP, TERMINATED, INTERRUPTED = 1, 2, 3, 4, 5, 6
"""Why a run stops; of several reasons the largest counts. 0: none."""
CODES = {
    signal.SIGHUP: HANGUP,
    signal.SIGTERM: TERMINATED,
    signal.SIGINT: INTERRUPTED,
}
STATUS = {CLOCK: 0, FLAT: 0, ASKED: 0, HANGUP: 129, TERMINATED: 143, INTERRUPTED: 130}
REASON = {
    CLOCK: "the clock",
    FLAT: "stop_when_flat: no new best",
    ASKED: "a request",
    HANGUP: "SIGHUP: its terminal is gone",
    TERMINATED: "SIGTERM",
    INTERRUPTED: "an interrupt",
}
REMEDY = {FLAT: ("--stop-when-flat", 0)}
"""Flags without which a resumed run would stop at once for the same reason."""
SAVING = (
    b"\nquintet: saving after this step or evaluation; press Ctrl-C again to stop without saving\n"
)


class Signals:
    """What the main thread was sent. A second SIGINT stops at once. SIGHUP stays ignored where it
    was when the program started, as `nohup` has it."""

    def __init__(self, minutes: float | None):
        self.deadline = time.monotonic() + 60 * minutes if minutes is not None else None
        self.code = 0
        self._old: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in CODES:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.code == INTERRUPTED:
                os._exit(STATUS[INTERRUPTED])
            if os.environ.get("RANK", "0") == "0":
                with contextlib.suppress(OSError):  # the terminal may be gone
                    os.write(2, SAVING)
        self.code = max(self.code, CODES[signal.Signals(number)])

    def ask(self) -> None:
        """A stop that no signal asks for."""
        self.code = max(self.code, ASKED)

    def asked(self) -> int:
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return max(self.code, CLOCK if late else 0)
