"""The error for unusable input files, and the checks that all readers share."""

import importlib.metadata
import stat
import struct
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

# What decoders are known to raise on damaged bytes. Not MemoryError: running out of memory is not
# the fault of an image.
DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    ArithmeticError,
    RecursionError,
    struct.error,
    zlib.error,
)
MISTAKES = (TypeError, AttributeError, NameError, ImportError)
"""Errors of a program, not of its data: a wrong call, or a library with a changed interface."""


def printable(text: object) -> str:
    """Text with non-printable characters replaced, safe for terminals and logs."""
    return "".join(c if c.isprintable() else "�" for c in str(text))


class BadFile(ValueError):
    """An unusable file: path, reason and remedy."""

    # All three go to ValueError, so that the error survives pickling from a worker process.
    def __init__(self, path: Path | str, reason: str, remedy: str = "") -> None:
        super().__init__(path, reason, remedy)
        self.path = Path(path)
        self.reason = printable(reason)
        self.remedy = printable(remedy)

    def __str__(self) -> str:
        sentence = f"{printable(self.args[0])}: {self.reason}"
        return f"{sentence}; {self.remedy}" if self.remedy else sentence


class OutOfRange(BadFile):
    """An intact file outside the range of the settings. Opening a folder skips it; it does not
    count as damage."""

    def __init__(
        self, path: Path | str, reason: str, limit: str, remedy: str, value: float | None = None
    ) -> None:
        super().__init__(path, f"{reason}, {limit}" if reason else limit, remedy)
        self.args = (path, reason, limit, remedy, value)
        self.limit = printable(limit)
        """The limit and its setting, the same for all files beyond it."""
        self.value = value


def version_of(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def check_file(path: Path, max_bytes: int, shrink: str) -> None:
    """Refuse anything but a regular file of 1 to `max_bytes` bytes; `shrink` is the remedy."""
    try:
        about = path.stat()
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})", "check the path") from error
    if not stat.S_ISREG(about.st_mode):
        raise BadFile(path, "is not a regular file", "remove it from the data")
    if about.st_size == 0:
        raise BadFile(path, "is empty (0 bytes)", "remove it or copy it again")
    if about.st_size > max_bytes:
        reason, limit = f"holds {about.st_size:,} bytes", f"more than max_bytes = {max_bytes:,}"
        raise OutOfRange(path, reason, limit, f"{shrink} or raise max_bytes", about.st_size)


class Incompatible(Exception):
    """A reader does not work with the installed version of its library. Not damage: every other
    file would fail as well, so it ends the run."""


@contextmanager
def decoding(path: Path, library: str, *also: type[Exception]) -> Generator[None]:
    """Turn errors of a decoder on damaged bytes (`DAMAGE` and `also`) into BadFile, and mistakes in
    the use of its `library` into Incompatible."""
    try:
        yield
    except BadFile:
        raise
    except MISTAKES as error:
        if "quintet[" in str(error):
            raise  # an extra that is missing
        raise Incompatible(
            f"{printable(path)} was not read, but not because it is damaged: {library} "
            f"{version_of(library)} raised {type(error).__name__}: {printable(error)[:200]}. "
            f"Install another version of {library}; constraints.txt has one that works"
        ) from error
    except (*DAMAGE, *also) as error:
        texts = (getattr(error, name, None) for name in ("error_string", "strerror"))
        why = next(filter(None, texts), None) or str(error) or type(error).__name__
        reason = f"is damaged ({str(why)[:200].rstrip('.')})"
        raise BadFile(path, reason, "remove it or copy it again") from error
