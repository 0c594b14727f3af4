"""Standard output and error that may be lost: a closed pipe or terminal must not end a run."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

PLAIN = str.maketrans({"…": "...", "–": "-", "×": "x", **dict.fromkeys("▏▎▍▌▋▊▉█", "#")})
"""Plain characters for those that Quintet prints."""


class Protected:
    """A text stream that drops what it cannot write, and spells what its encoding lacks. After the
    first failure its file is the null device, so that later writes of other libraries and of the
    interpreter's exit succeed."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.lost = False

    def write(self, text: str) -> int:
        try:
            try:
                return self.stream.write(text)
            except UnicodeEncodeError:  # a console that is not UTF-8, or a name of other bytes
                encoding = self.stream.encoding
                plain = text.translate(PLAIN).encode(encoding, "backslashreplace").decode(encoding)
                return self.stream.write(plain)
        except OSError:
            self._lose()
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError:
            self._lose()

    def _lose(self) -> None:
        self.lost = True
        with suppress(OSError, ValueError):  # a stream without a file, as in a notebook
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())
            os.close(null)
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def protected() -> Generator[None]:
    """Context in which losing standard output or error is not an error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        stream if stream is None or isinstance(stream, Protected) else Protected(stream)
        for stream in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def say_last(message: str) -> None:
    """Write a line to standard error, or to the terminal if that is lost: an interrupt also ends
    tee in `quintet … |& tee log`."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
    if getattr(sys.stderr, "lost", False):
        with suppress(OSError), open("/dev/tty", "w", encoding="utf-8") as terminal:
            terminal.write(f"{message}\n")
