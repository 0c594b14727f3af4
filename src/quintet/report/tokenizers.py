"""Page of `quintet compare`: table, rate and distortion, pictures side by side. No scripts."""

from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quintet.files import atomic_write
from quintet.media.pixels import Pixels, middle
from quintet.report import script
from quintet.report.exhibits import data_uri
from quintet.report.markup import details, table, text
from quintet.report.page import LOGO, MARKER, section

if TYPE_CHECKING:
    from quintet.judges.tokenizers import Comparison

DETAIL = 256
"""Maximum side of a picture on the page; larger ones are cropped to the centre."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
TITLE = "Image tokenizers side by side"


def write_comparison(
    out: Path, result: "Comparison", rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> None:
    """Write the page; `rows` are the printed table with its header."""
    atomic_write(out, page(result, rows, notes).encode("utf-8", "replace"), sync=False)


def page(result: "Comparison", rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    header, *lines = ([text(cell) for cell in row] for row in rows)
    cells = table(header[1:], {line[0]: line[1:] for line in lines})
    remarks = "".join(f'<p class="soft">{text(note)}</p>' for note in notes)
    return (
        f'<!doctype html>{MARKER}<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{TITLE}</title><style>{script.style()}</style></head><body>"
        f'<header>{LOGO}<h1>{TITLE}</h1></header><main id="main">{cells}{remarks}'
        f"{section('Rate and distortion', plot(result))}"
        f"{section('Pictures', pictures(result))}"
        f"{section('Receipts', receipts(result))}</main></body></html>\n"
    )


# -- plot -----------------------------------------------------------------------------------


def plot(result: "Comparison", width: int = 640, height: int = 320) -> str:
    """PSNR against bits per pixel, without continuous latents; points show their row."""
    quantised = {n: one for n, one in enumerate(result.tokenizers, 1) if one.codebook_size}
    if not quantised:
        return "<p>Continuous latents have no rate.</p>"
    points = [
        (one.scores["bits_per_pixel"].value, one.scores["psnr"].value) for one in quantised.values()
    ]
    left, right = bounds([x for x, _ in points])
    low, high = bounds([y for _, y in points])
    marks, taken = "", Counter[tuple[float, float]]()
    for (x, y), (number, one) in zip(points, quantised.items()):
        across = 50 + (x - left) / (right - left) * (width - 70)
        down = height - 40 - (y - low) / (high - low) * (height - 60)
        label = text(f"{one.name}: {x:.4g} bits per pixel, {y:.2f} dB")
        taken[x, y] += 1  # a run and its export are one point with two numbers
        beside = across + 12 * taken[x, y] - 4
        colour = f"fill:var(--c{number - 1 & 7})"
        marks += (
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="5" style="{colour}">'
            f'<title>{label}</title></circle><text x="{beside:.1f}" y="{down - 6:.1f}">'
            f"{number}</text>"
        )
    bottom = height - 40
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" style="max-width:{width}px" '
        'aria-label="Bits per pixel against PSNR">'
        f'<path d="M50 20V{bottom}H{width - 20}" style="fill:none;stroke:var(--soft)"/>'
        f'<text x="46" y="28" text-anchor="end">{high:.4g}</text>'
        f'<text x="46" y="{bottom}" text-anchor="end">{low:.4g}</text>'
        f'<text x="50" y="{bottom + 14}">{left:.3g}</text>'
        f'<text x="{width - 20}" y="{bottom + 14}" text-anchor="end">{right:.3g}</text>'
        f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">bits per pixel</text>'
        f'<text x="50" y="14" text-anchor="middle">PSNR, dB</text>{marks}</svg>'
    )


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """A range around the values that is never empty."""
    low, high = min(values), max(values)
    margin = (high - low or abs(high) or 1) / 8
    return low - margin, high + margin


# -- pictures and receipts ------------------------------------------------------------------


def pictures(result: "Comparison") -> str:
    """One row for each picture: the original, then each tokenizer in the order of the table."""
    names = [one.name for one in result.tokenizers]
    rows = ""
    for index, original in enumerate(result.originals):
        shown = [("original", original)]
        shown += [(name, result.reconstructions[name][index]) for name in names]
        cells = "".join(f"<td>{figure(name, picture)}</td>" for name, picture in shown)
        rows += f"<tr>{cells}</tr>"
    return f'<div class="wide" tabindex="0"><table><tbody>{rows}</tbody></table></div>'


def figure(name: str, picture: Pixels) -> str:
    label = text(name)
    height, width = picture.shape[:2]
    detail = middle(picture, (min(height, DETAIL), min(width, DETAIL)))
    # Whole multiples, so that all pixels appear equally large.
    wide = max(1, round(128 / max(detail.shape[:2]))) * detail.shape[1]
    return (
        f'<figure><img alt="{label}" src="{data_uri("image/png", png(detail))}" '
        f'style="width:{wide}px;max-width:none;image-rendering:pixelated">'
        f"<figcaption>{label}</figcaption></figure>"
    )


def png(picture: Pixels) -> bytes:
    from PIL import Image

    content = BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(content, format="PNG")
    return content.getvalue()


def receipts(result: "Comparison") -> str:
    boxes = ""
    for name, receipt in result.receipts.items():
        lines = {"reference set": receipt.reference, "pictures": receipt.count}
        lines |= {**receipt.preparation, **receipt.facts}
        body = table([], {text(key): [text(value)] for key, value in lines.items()})
        boxes += details(f"{text(name)} {receipt.digest}", body)
    weights = {text(one.name): [one.weights] for one in result.tokenizers}
    return boxes + details("Weights of the tokenizers", table([], weights))
