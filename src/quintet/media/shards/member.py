"""Files inside shards, as lazy paths: the content is read into memory on first use.

Nothing is written to disk: a decoder opens such a path like any other and gets its bytes.
"""

import errno
import os
import stat
from collections.abc import Callable
from io import BytesIO
from pathlib import Path, PosixPath
from typing import Any, NamedTuple


class Header(NamedTuple):
    """Header of a media file; 0 where unknown."""

    width: int = 0
    height: int = 0
    frames: int = 0
    rate: int = 0
    channels: int = 0


class Member(PosixPath):
    """One file of a shard. Paths derived from it do not exist."""

    size: int = 0
    """Size in bytes; negative if unknown until the content is read."""
    header: Header = Header()
    load: Callable[[], bytes] | None = None
    _content: bytes | None = None

    @classmethod
    def of(cls, path: str, size: int, load: Callable[[], bytes], header: Header) -> "Member":
        member = cls(path)
        member.size, member.load, member.header = size, load, header
        return member

    def read_bytes(self) -> bytes:
        if self.load is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        if self._content is None:  # decoders open a file more than once
            self._content = self.load()
        return self._content

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode != "rb":
            raise ValueError(f"a file in a shard can only be opened as 'rb', not {mode!r}")
        return BytesIO(self.read_bytes())

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """The status of a regular file; only its size is known."""
        if self.load is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        size = self.size if self.size >= 0 else len(self.read_bytes())
        return os.stat_result((stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, size, 0, 0, 0))


def as_path(path: Path | str) -> Path:
    """A path unchanged, a string as a path."""
    return path if isinstance(path, Path) else Path(path)
