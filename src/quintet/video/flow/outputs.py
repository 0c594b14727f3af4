"""Outputs of a flow generator of clips."""

from quintet.video.outputs import GeneratedClips as outputs

__all__ = ["outputs"]
