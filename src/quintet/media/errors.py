"""The one error that reading a person's files can end in."""

from pathlib import Path


def printable(text: object) -> str:
    """The text without characters that would confuse a terminal or a log."""
    return "".join(c if c.isprintable() else "�" for c in str(text))


class BadFile(ValueError):
    """A file that cannot be used: which one, why, and what to do about it."""

    # All three go to ValueError, so that the error survives the trip out of a worker process.
    def __init__(self, path: Path | str, reason: str, remedy: str = "") -> None:
        super().__init__(path, reason, remedy)
        self.path = Path(path)
        self.reason = printable(reason)
        self.remedy = printable(remedy)

    def __str__(self) -> str:
        sentence = f"{printable(self.args[0])}: {self.reason}"
        return f"{sentence}; {self.remedy}" if self.remedy else sentence
