"""Images with captions, from a folder or built in."""

from quintet.engine.data.source import Source
from quintet.image.clip.config import CaptionedDataConfig
from quintet.image.data import ImageFolder, open_data
from quintet.media.errors import BadFile
from quintet.media.folder import read_metadata
from quintet.media.sidecars import with_texts
from quintet.media.splits import Split
from quintet.shared.texts import FolderTexts

WHAT = "images"


class CaptionedFolder(ImageFolder):
    """Images of a folder whose metadata has a caption, or that have a text file beside them."""

    Config = CaptionedDataConfig
    lacking = f"{WHAT} have no caption"

    def usable(self, names: list[str]) -> list[str]:
        rows = {
            name: row["text"] for name, row in read_metadata(self.folder).items() if row.get("text")
        }
        self._captions = FolderTexts(self.folder, names, rows, WHAT)
        return with_texts(self.folder, names, self._captions, self.config.max_missing, self.lacking)

    def text(self, index: int) -> str:
        if self.shards is not None:
            text = str(self.row(index).get("text") or "")
        else:
            name = self._names[index]
            text = self._captions.rows.get(name) or self._captions.read(name, "the caption")
        text = " ".join(text.split())
        if not text:
            raise BadFile(self.name(index), "has no caption", "write one")
        return text

    def texts(self, index: int) -> list[str]:
        return [self.text(index)]


def open_captioned(
    folder: str | None, config: CaptionedDataConfig, split: Split, seed: int
) -> Source:
    if folder is None:
        return open_data(None, config, split, seed)
    return CaptionedFolder(folder, config, split, seed)
