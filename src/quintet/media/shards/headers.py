"""Headers of media files: pixels, frames, sample rate."""

from pathlib import Path

from quintet.media import audio, pixels
from quintet.media.clips import reader as clips
from quintet.media.errors import BadFile
from quintet.media.shards.member import Header

LARGEST = 2**32 - 1


def read_header(path: Path) -> Header | None:
    """Parse the header alone; None if it cannot be read."""
    suffix = path.suffix.lower()
    try:
        if suffix in audio.SUFFIXES:
            sound = audio.probe(path)
            header = Header(frames=sound.frames, rate=sound.rate, channels=sound.channels)
        elif suffix in pixels.SUFFIXES:
            header = Header(*pixels.probe(path))
        elif suffix in clips.SUFFIXES:
            clip = clips.probe(path)
            header = Header(clip.width, clip.height, clip.frames or 0, round(clip.rate))
        else:
            header = Header()
    except (BadFile, ImportError):
        return None
    return header if max(header) <= LARGEST else None
