"""Outputs of a masked generator of clips."""

from quintet.video.outputs import GeneratedClips as outputs

__all__ = ["outputs"]
