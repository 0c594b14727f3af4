"""Exhibits of the music room: the best captions of each clip."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from quintet.media.audio import write_wav
from quintet.media.errors import printable
from quintet.shared.exhibits import best_captions


@dataclass
class BestCaptions:
    """Audio files, and a text file with the most similar captions of each."""

    name: str
    wavs: Sequence[Tensor]
    rate: int
    captions: Sequence[str]
    """Caption i belongs to clip i; there may be more captions than clips."""
    similarity: Tensor
    """(clips, captions)."""
    top: int = 3

    def write(self, folder: Path) -> list[Path]:
        files: list[Path] = []
        lines: list[str] = []
        for number, wav in enumerate(self.wavs):
            path = folder / f"{self.name}-{number}.wav"
            write_wav(path, wav.float().cpu().numpy(), self.rate)
            files.append(path)
            lines += [path.name, f"  its own:  {printable(self.captions[number])}"]
            best = best_captions(self.similarity[number], self.captions, self.top)
            lines += [*(f"  {line}" for line in best), ""]
        page = folder / f"{self.name}.txt"
        page.write_text("\n".join(lines), encoding="utf-8")
        return [*files, page]
