"""Output on a console that is not UTF-8."""

import io
import sys
from pathlib import Path

import pytest

from quintet.cli import COMMANDS, main

PHOTOS, RUN = "PHOTOS", "RUN"
CALLS = [
    *([command, "--help"] for command in COMMANDS),
    ["--help"],
    ["train", "image/vqgan_tiny", "--help"],
    ["train", "image/vqgan_tiny", "--help-all"],
    ["train", "image/vqgan_tiny", "--nothing"],
    ["list"],
    ["judges"],
    ["resume", RUN, "--help"],
    ["sample", RUN, "--help"],
    ["sample", "Zoë's pictures …"],
    ["doctor"],
    ["doctor", "image", PHOTOS],
    ["doctor", RUN],
    ["evaluate", RUN],
    ["evaluate", "--pair", PHOTOS, PHOTOS, "--judges", "psnr"],
    ["replay", RUN, "--verify", "1", "--seed", "0"],
    ["compare", PHOTOS, RUN],
]


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_no_output_needs_utf8(
    words: list[str], trained: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    own = {PHOTOS: str(photos), RUN: str(trained)}
    with pytest.raises(SystemExit) as ended:
        main([own.get(word, word) for word in words])
    written = b""
    for stream in streams:
        stream.seek(0)
        written += stream.buffer.read()
    assert written
    assert ended.value.code in (0, 2)
    assert b"\\u2" not in written or "…" in " ".join(words)
