"""Sheets of pictures: a grid with titles, and a contact sheet with captions."""

from collections.abc import Callable, Sequence
from itertools import accumulate, zip_longest
from math import ceil

import numpy as np

from quintet.media.errors import printable
from quintet.media.pixels import Pixels


def grid(rows: Sequence[Sequence[Pixels]], labels: Sequence[str] = (), gap: int = 4) -> Pixels:
    """A contact sheet on white: images in rows, with a title over each column."""
    if not rows or not any(rows):
        raise ValueError("a contact sheet needs at least one image")
    titles = [_title(label) for label in labels]
    lines = [titles, *rows] if titles else rows
    widths = [
        max(cell.shape[1] for cell in column if cell is not None) for column in zip_longest(*lines)
    ]
    heights = [max((cell.shape[0] for cell in line), default=0) for line in lines]
    lefts = list(accumulate([width + gap for width in widths], initial=gap))
    tops = list(accumulate([height + gap for height in heights], initial=gap))
    sheet = np.full((tops[-1], lefts[-1], 3), 255, np.uint8)
    for top, line in zip(tops, lines):
        for left, cell in zip(lefts, line):
            sheet[top : top + cell.shape[0], left : left + cell.shape[1]] = cell
    return sheet


def _title(label: str) -> Pixels:
    """A line of text in dark grey on white."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(13)
    text = printable(label)
    strip = Image.new("RGB", (ceil(font.getlength(text)) + 1, 17), (255, 255, 255))
    ImageDraw.Draw(strip).text((0, 0), text, fill=(40, 40, 40), font=font)
    return np.array(strip)


def contact_sheet(
    rows: Sequence[Sequence[Pixels]],
    titles: Sequence[str] = (),
    captions: Sequence[str] = (),
) -> Pixels:
    """Images in rows, with a title over each column and a caption under the first of each row.

    Long captions are wrapped, and cut after three lines.
    """
    cells: list[list[Pixels]] = [list(row) for row in rows]
    for row, text in zip(cells, captions):
        if row and text:
            row[0] = np.concatenate([row[0], _text(text, row[0].shape[1])])
    return grid(cells, titles)


def _text(text: str, width: int, max_lines: int = 3) -> Pixels:
    """Lines of small dark grey text on white."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(12)
    lines = _wrapped(printable(text[:500]), width - 4, font.getlength)
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], lines[max_lines - 1][:-3] + "..."]
    strip = Image.new("RGB", (width, 15 * len(lines) + 5), (255, 255, 255))
    draw = ImageDraw.Draw(strip)
    for at, line in enumerate(lines):
        draw.text((2, 2 + 15 * at), line, fill=(60, 60, 60), font=font)
    return np.array(strip)


def _wrapped(text: str, width: int, length_of: Callable[[str], float]) -> list[str]:
    """Lines of limited width, broken between words, and inside words that are too long."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if length_of(longer) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if lines[-1] and length_of(lines[-1] + letter) > width:
                lines.append("")
            lines[-1] += letter
    return lines
