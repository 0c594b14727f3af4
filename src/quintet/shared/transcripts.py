"""Transcripts, speakers and languages of the recordings of a folder, and segments of long ones."""

from collections.abc import Sequence
from pathlib import Path

from quintet.media.errors import printable
from quintet.media.ranges import say
from quintet.media.sidecars import with_texts
from quintet.shared.corpora import Cut, Row, read_corpus, read_cuts, segment_tables
from quintet.shared.texts import FolderTexts


class Transcripts(FolderTexts[str]):
    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        corpus = self.corpus = read_corpus(folder, names)
        texts = {name: row.text for name, row in corpus.rows.items() if row.text}
        self.tables = segment_tables(folder, names)
        self.cuts: dict[str, Cut] = {}
        """Segments of long recordings, by their own names."""
        for name, table in self.tables.items():
            self.cuts |= {cut.name: cut for cut in read_cuts(folder, name, table)}
        texts |= {name: cut.row.text for name, cut in self.cuts.items()}
        super().__init__(folder, [*names, *self.cuts], texts, "recordings", corpus.text_files)

    def of(self, name: str) -> str:
        """The text as written."""
        return self.rows.get(name) or self.read(name, "the transcript")

    def about(self, name: str) -> Row:
        """Speaker and language; those of its recording for a segment that does not say."""
        cut = self.cuts.get(name)
        row = self.corpus.rows.get(cut.file if cut else name, Row())
        if cut is None:
            return row
        speaker, language = cut.row.speaker or row.speaker, cut.row.language or row.language
        return Row(cut.row.text, speaker, language)

    def samples(self, names: Sequence[str]) -> list[str]:
        """Names that the layout lists; of a recording with a table of segments, these."""
        unlisted, layout = self.corpus.unlisted, self.corpus.layout
        left_out = [name for name in names if name in unlisted]
        if left_out:
            say(
                f"{printable(self.folder)}: {len(left_out):,} recordings left out: not listed in "
                f"{layout}, or a second microphone; {printable(left_out[0])} is the first"
            )
        whole = [name for name in names if name not in unlisted and name not in self.tables]
        chosen = set(names)
        return sorted([*whole, *(name for name, cut in self.cuts.items() if cut.file in chosen)])

    def with_text(self, names: Sequence[str], most: float) -> list[str]:
        """The names that have a text."""
        return with_texts(self.folder, names, self, most, "recordings have no text")
