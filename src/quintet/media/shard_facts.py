"""What headers say of any file that a room reads: pixels, frames, seconds."""

from pathlib import Path

from quintet.media import audio, clips, meshes, pixels
from quintet.media.errors import BadFile
from quintet.media.shard_member import Facts

SUFFIXES = tuple(
    dict.fromkeys((*pixels.SUFFIXES, *clips.SUFFIXES, *audio.SUFFIXES, *meshes.SUFFIXES))
)
"""Of everything that can be packed."""
LARGEST = 2**32 - 1


def facts_of(path: Path) -> Facts | None:
    """From the header alone; None where it cannot be read."""
    suffix = path.suffix.lower()
    try:
        if suffix in audio.SUFFIXES:
            sound = audio.probe(path)
            found = Facts(frames=sound.frames, rate=sound.rate, channels=sound.channels)
        elif suffix in pixels.SUFFIXES:
            found = Facts(*pixels.probe(path))
        elif suffix in clips.SUFFIXES:
            clip = clips.probe(path)
            found = Facts(clip.width, clip.height, clip.frames or 0, round(clip.rate))
        else:
            found = Facts()
    except (BadFile, ImportError):
        return None
    return found if max(found) <= LARGEST else None
