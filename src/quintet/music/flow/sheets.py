"""A sheet of generated sounds: their log-mels, one row for each caption."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from quintet.media.audio import write_wav
from quintet.media.pixels import write_png
from quintet.media.sheets import contact_sheet
from quintet.nn.spectrogram import LogMel
from quintet.shared.exhibits import coloured

MELS = 64
LONGEST = 30.0
"""Seconds that are shown."""


@dataclass
class SongSheet:
    """Sounds (c, n), one row for each caption."""

    name: str
    rows: Sequence[Sequence[Tensor]]
    titles: Sequence[str]
    texts: Sequence[str]
    rate: int
    files: bool = False
    """Writes the sounds too."""

    def write(self, folder: Path) -> list[Path]:
        mel = LogMel(self.rate, 1024, max(256, self.rate // 50), MELS, power=1.0, floor=1e-4)
        longest = round(LONGEST * self.rate)
        draw = lambda sound: coloured(mel(sound.float().cpu().mean(0)[None, :longest])[0].numpy())
        cells = [[draw(sound) for sound in row] for row in self.rows]
        picture = folder / f"{self.name}.png"
        write_png(picture, contact_sheet(cells, self.titles, self.texts))
        return [picture, *(self.write_sounds(folder) if self.files else ())]

    def write_sounds(self, folder: Path) -> list[Path]:
        paths: list[Path] = []
        for number, row in enumerate(self.rows):
            for title, sound in zip(self.titles, row):
                paths.append(folder / f"{self.name}-{number}-{title.replace(' ', '-')}.wav")
                write_wav(paths[-1], sound.float().cpu().numpy().T, self.rate)
        return paths
