"""`quintet compare`."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from quintet.cli.common import check_positive, parse, say
from quintet.cli.judges import side_by_side
from quintet.engine.errors import RunError

if TYPE_CHECKING:
    from quintet.judges.receipt import Score
    from quintet.judges.tokenizers import Comparison

COLUMNS = {
    "psnr": ("PSNR, dB", 1, 2),
    "ssim": ("SSIM", 1, 3),
    "bits_per_pixel": ("bits/pixel", 1, 4),
    "ms_per_picture": ("ms/picture", 1, 2),
    "codes_used": ("codes used, %", 100, 1),
    "channels_per_position": ("channels/position", 1, 0),
}
"""Heading, scale and digits; other judges show their name and four digits."""
ABSENT = {"bits_per_pixel": "continuous"}
"""In place of a score that a tokenizer does not have; a dash of others."""


@dataclasses.dataclass(kw_only=True)
class Compare:
    """Image tokenizers side by side on the same pictures: PSNR, SSIM, LPIPS, bits per pixel, time
    and use of codes, each with a receipt. Prints a table and one line of JSON.

    The pictures are cropped to the largest common size that suits all tokenizers, or resampled to
    --size. The table is sorted by rate, and by PSNR among tokenizers of similar rate. Continuous
    latents have channels per position, and no bits; they come last.

    Files that end in .json, to which quintet evaluate --json-line was written, stand side by side
    as they are, in any medium; numbers with different receipts are refused.
    """

    data: tyro.conf.Positional[Path]
    """Folder of pictures, one picture, or a .json file of scores."""
    models: tyro.conf.Positional[tuple[Path, ...]]
    """Runs (also RUN@STEP, RUN@best), exported folders, and folders of diffusers; or further files
    of scores."""
    size: tuple[int, int] | None = None
    """Resize and crop pictures to this height and width."""
    count: int | None = None
    """Use only so many pictures, the first by name."""
    batch_size: int = 8
    """Pictures per batch; the time depends on it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto selects the GPU if there is one."""
    page: Path | None = None
    """Also write an HTML page with the table, a plot and pictures."""


def compare(given: list[str]) -> None:
    asked = parse(Compare, given, "compare")
    if all(path.suffix == ".json" for path in (asked.data, *asked.models)):
        if asked.page is not None:
            raise RunError("--page is for tokenizers on pictures; drop it")
        side_by_side((asked.data, *asked.models))
        return
    check_positive("--count", asked.count)
    check_positive("--batch-size", asked.batch_size)
    if asked.page is not None:
        from quintet.report.page import check_output

        check_output(asked.page, "--page")
    files = pictures(asked.data)[: asked.count]
    tokenizers = {str(path): image_tokenizer(path, asked.device) for path in asked.models}
    if not tokenizers:
        raise RunError("name a run or a model, for example: quintet compare photos runs/a runs/b")

    from quintet.judges.tokenizers import compare as judge
    from quintet.report.tokenizers import write_comparison

    result = judge(files, tokenizers, size=asked.size, batch_size=asked.batch_size)
    for problem in result.skipped:
        say(f"skipped: {problem}")
    for problem in result.missing:
        say(f"left out: {problem}")
    columns = table(result)
    print("\n".join([*aligned(columns), "", *notes(result)]))
    if asked.page is not None:
        write_comparison(asked.page, result, columns, notes(result))
        say(f"wrote {asked.page}")
    print(json.dumps(as_json(result), allow_nan=False))


def pictures(data: Path) -> list[Path]:
    from quintet.media.folder import listing
    from quintet.media.pixels import SUFFIXES

    if data.is_file():
        return [data]
    if not data.is_dir():
        raise RunError(f"{data} is not a file or a folder; give a folder of pictures")
    names = listing(data, SUFFIXES).names
    if not names:
        raise RunError(f"{data} holds no pictures ({', '.join(SUFFIXES)})")
    return [data / name for name in names]


def image_tokenizer(path: Path, device: Any) -> Any:
    from quintet.image.adopt.model import AdoptedImages
    from quintet.image.model import VQGanVAE
    from quintet.shared.adopt.folder import is_foreign
    from quintet.shared.sampling import loaded, on_device

    model = AdoptedImages.from_pretrained(path) if is_foreign(path) else loaded(path, device)
    model = model.to(on_device(device))
    if not isinstance(model, (VQGanVAE, AdoptedImages)):
        kind = type(model).__name__
        raise RunError(f"{path} holds a {kind}; only image tokenizers can be compared")
    if model.config.channels != 3:
        channels = model.config.channels
        raise RunError(f"{path} has {channels} channels; tokenizers of RGB pictures are compared")
    return model


# -- what is shown --------------------------------------------------------------------------


def table(result: "Comparison") -> list[list[str]]:
    """A header and a row for each tokenizer."""
    measures = list(result.receipts)
    header = ["", "tokenizer", *(heading(measure) for measure in measures)]
    rows = [
        [str(number), one.name, *(cell(name, one.scores.get(name)) for name in measures)]
        for number, one in enumerate(result.tokenizers, 1)
    ]
    return [header, *rows]


def heading(measure: str) -> str:
    return COLUMNS[measure][0] if measure in COLUMNS else measure


def cell(measure: str, score: "Score | None") -> str:
    if score is None:
        return ABSENT.get(measure, "–")
    _, scale, digits = COLUMNS.get(measure, ("", 1, 4))
    value = f"{scale * score.value:.{digits}f}"
    if score.low is None or score.high is None:
        return value
    return f"{value} [{scale * score.low:.{digits}f}, {scale * score.high:.{digits}f}]"


def aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            text.ljust(width) if index == 1 else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def notes(result: "Comparison") -> list[str]:
    from quintet.judges.tokenizers import SIMILAR

    time = result.receipts["ms_per_picture"]
    height, width = result.size
    resampled = result.preparation["filter"] != "none"
    how = "resampled to" if resampled else "the largest crop that all have in the centre,"
    receipts = ", ".join(f"{name} {receipt.digest}" for name, receipt in result.receipts.items())
    return [
        f"{time.count} pictures, {how} {height} x {width}, sides divisible by {result.multiple}; "
        "reconstructions rounded to 8 bits",
        f"sorted by bits per pixel, and by PSNR where these differ by {SIMILAR - 1:.0%} at most",
        "in brackets: 95 % bootstrap interval over pictures",
        f"time: encode and decode, batches of {time.facts['batch']}, {time.facts['precision']}, "
        f"{time.facts['device']}",
        f"receipts: {receipts}",
    ]


def as_json(result: "Comparison") -> dict[str, Any]:
    return {
        "size": list(result.size),
        "multiple": result.multiple,
        "skipped": len(result.skipped),
        "tokenizers": [one.as_json() for one in result.tokenizers],
    }
