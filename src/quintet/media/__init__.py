"""Reading and writing of media files, safely: sizes are checked before anything is decoded."""

from quintet.media.errors import BadFile

__all__ = ["BadFile"]
