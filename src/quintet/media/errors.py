"""The error for unusable input files."""

from pathlib import Path


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
