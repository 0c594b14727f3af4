"""`quintet compare`."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from quintet.cli.common import check_positive, parse, say
from quintet.cli.judges import side_by_side
from quintet.cli.trained_on import TrainedOn, trained_on
from quintet.engine.errors import RunError
from quintet.suggest import command

if TYPE_CHECKING:
    from quintet.judges.codecs import SoundComparison
    from quintet.judges.receipt import Score
    from quintet.judges.tokenizers import Comparison

COLUMNS = {
    "psnr": ("PSNR, dB", 1, 2),
    "ssim": ("SSIM", 1, 3),
    "bits_per_pixel": ("bits/pixel", 1, 4),
    "ms_per_picture": ("ms/picture", 1, 2),
    "codes_used": ("codes used, %", 100, 1),
    "channels_per_position": ("channels/position", 1, 0),
    "mel_error": ("mel error", 1, 3),
    "stft_error": ("STFT error", 1, 3),
    "si_sdr": ("SI-SDR, dB", 1, 2),
    "kbit_per_second": ("kbit/s", 1, 2),
    "latents_per_second": ("latents/s", 1, 0),
    "ms_per_second": ("ms/s", 1, 1),
}
"""Heading, scale and digits; other judges show their name and four digits."""
ABSENT = {"bits_per_pixel": "continuous", "kbit_per_second": "continuous"}
"""Shown for a score that a tokenizer does not have; other columns show a dash."""


@dataclasses.dataclass(kw_only=True)
class Compare:
    """Compare image tokenizers on the same pictures (PSNR, SSIM, LPIPS, bits per pixel, time, use
    of codes) or audio codecs on the same sounds (log-mel and STFT errors, SI-SDR, kbit/s). Each
    number has a receipt. Prints a table and one line of JSON.

    The pictures are cropped to the largest common size that suits all tokenizers, or resampled to
    --size. The table is sorted by rate, and by PSNR among tokenizers of similar rate. Continuous
    latents have channels per position instead of bits and come last.

    Files that end in .json, written by quintet evaluate --json-line, are shown side by side, in any
    medium; numbers with different receipts are refused.
    """

    data: tyro.conf.Positional[Path]
    """Folder of pictures or sounds, a single file, or a .json file of scores."""
    models: tyro.conf.Positional[tuple[Path, ...]]
    """Runs (also RUN@STEP, RUN@best), exported folders, and folders of diffusers or transformers;
    or further files of scores."""
    size: tuple[int, int] | None = None
    """Resize and crop pictures to this height and width."""
    count: int | None = None
    """Number of files to use, the first by name; the default is all."""
    seconds: float = 10.0
    """Sounds: length of the centre crop of each file."""
    batch_size: int = 8
    """Pictures per batch; the time depends on it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto selects the GPU if there is one."""
    page: Path | None = None
    """Also write an HTML page with the table, a plot and pictures."""


def compare(arguments: list[str]) -> None:
    asked = parse(Compare, arguments, "compare")
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
    if not asked.seconds > 0:
        raise RunError(f"--seconds is {asked.seconds:g}; it must be above 0")
    models = {str(path): loaded_model(path, asked.device) for path in asked.models}
    if not models:
        raise RunError(f"name a run or a model: {command('compare', 'FOLDER', 'RUN', 'RUN')}")
    codecs = [name for name, model in models.items() if is_codec(model)]
    if codecs:
        compare_sounds(asked, models, codecs)
    else:
        compare_pictures(asked, models)


def compare_sounds(asked: Compare, models: dict[str, Any], codecs: list[str]) -> None:
    from quintet.judges.codecs import compare_codecs
    from quintet.media.audio import SUFFIXES

    others = [name for name in models if name not in codecs]
    if others:
        raise RunError(
            f"{codecs[0]} is an audio codec, {others[0]} is not; compare models of one kind"
        )
    if asked.page is not None or asked.size is not None:
        raise RunError("--page and --size are for image tokenizers; drop them")
    files = files_in(asked.data, SUFFIXES, "sounds")[: asked.count]
    result = compare_codecs(files, models, asked.seconds)
    for problem in result.skipped:
        say(f"skipped: {problem}")
    trained = {name: trained_on(Path(name), files) for name in models}
    print(
        "\n".join([*aligned(table(result, trained)), "", *sound_notes(result), *origins(trained)])
    )
    print(json.dumps(sounds_as_json(result, trained), allow_nan=False))


def compare_pictures(asked: Compare, models: dict[str, Any]) -> None:
    from quintet.media.pixels import SUFFIXES

    for name, model in models.items():
        check_image_tokenizer(name, model)
    files = files_in(asked.data, SUFFIXES, "pictures")[: asked.count]

    from quintet.judges.tokenizers import compare as judge
    from quintet.report.tokenizers import write_comparison

    result = judge(files, models, size=asked.size, batch_size=asked.batch_size)
    for problem in result.skipped:
        say(f"skipped: {problem}")
    for problem in result.missing:
        say(f"left out: {problem}")
    trained = {name: trained_on(Path(name), files) for name in models}
    columns, lines = table(result, trained), [*notes(result), *origins(trained)]
    print("\n".join([*aligned(columns), "", *lines]))
    if asked.page is not None:
        write_comparison(asked.page, result, columns, lines)
        say(f"wrote {asked.page}")
    print(json.dumps(as_json(result, trained), allow_nan=False))


def files_in(data: Path, suffixes: Sequence[str], what: str) -> list[Path]:
    from quintet.media.folder import listing

    if data.is_file():
        return [data]
    if not data.is_dir():
        raise RunError(f"{data} is not a file or a folder; give a folder of {what}")
    names = listing(data, suffixes).names or listing(data, suffixes, outputs=True).names
    if not names:
        raise RunError(f"{data} holds no {what} ({', '.join(suffixes)})")
    return [data / name for name in names]


def loaded_model(path: Path, device: Any) -> Any:
    """Load a model; a diffusers video autoencoder is used as an image tokenizer."""
    from quintet import rooms
    from quintet.engine.models.hub import local
    from quintet.shared.adopt.folder import is_foreign
    from quintet.shared.sampling import on_device

    load, path = rooms.load, local(path)
    if is_foreign(path) and rooms.family_of_foreign(path).room == "video":
        load = rooms.Family("image", "adopt").model.from_pretrained
    return load(path).to(on_device(device))


def is_codec(model: Any) -> bool:
    return getattr(model, "compared_on", None) == "sounds"


def check_image_tokenizer(name: str, model: Any) -> None:
    if getattr(model, "compared_on", None) != "pictures":
        kind = type(model).__name__
        raise RunError(
            f"{name} holds a {kind}; only image tokenizers and audio codecs can be compared"
        )
    if model.config.channels != 3:
        channels = model.config.channels
        raise RunError(f"{name} has {channels} channels; only RGB tokenizers can be compared")


# -- what is shown --------------------------------------------------------------------------


def table(
    result: "Comparison | SoundComparison", trained: Mapping[str, TrainedOn]
) -> list[list[str]]:
    """A header and a row for each tokenizer."""
    measures = list(result.receipts)
    header = ["", "tokenizer", "trained on", *(heading(measure) for measure in measures)]
    rows = [
        [str(number), one.name, share(trained[one.name].files, result)]
        + [cell(name, one.scores.get(name)) for name in measures]
        for number, one in enumerate(result.tokenizers, 1)
    ]
    return [header, *rows]


def share(count: int | None, result: "Comparison | SoundComparison") -> str:
    """How many of the compared files a tokenizer was trained on."""
    total = next(iter(result.receipts.values())).count + len(result.skipped)
    return "unknown" if count is None else f"{count} of {total}"


def origins(trained: Mapping[str, TrainedOn]) -> Iterator[str]:
    """What runs were trained on, and which of their numbers are optimistic."""
    for name, (data, count) in trained.items():
        if data is not None:
            remark = ": its numbers are optimistic" if count else ""
            yield f"{name} was trained on {data}{remark}"


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
    how = "resampled to" if resampled else "the largest common centre crop,"
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


def sound_notes(result: "SoundComparison") -> list[str]:
    time = result.receipts["ms_per_second"]
    receipts = ", ".join(f"{name} {receipt.digest}" for name, receipt in result.receipts.items())
    return [
        f"{time.count} sounds, the middle {result.seconds:g} s at most; copies compared as mono at"
        f" {result.rate} Hz, the lowest rate of the codecs",
        "sorted by kbit/s, continuous latents last; by mel error where equal",
        "in brackets: 95 % bootstrap interval over sounds",
        f"time: encode and decode of a second, {time.facts['precision']}, {time.facts['device']}",
        f"receipts: {receipts}",
    ]


def sounds_as_json(result: "SoundComparison", trained: Mapping[str, TrainedOn]) -> dict[str, Any]:
    return {
        "rate": result.rate,
        "seconds": result.seconds,
        "skipped": len(result.skipped),
        "tokenizers": tokenizers_as_json(result, trained),
    }


def as_json(result: "Comparison", trained: Mapping[str, TrainedOn]) -> dict[str, Any]:
    return {
        "size": list(result.size),
        "multiple": result.multiple,
        "skipped": len(result.skipped),
        "tokenizers": tokenizers_as_json(result, trained),
    }


def tokenizers_as_json(
    result: "Comparison | SoundComparison", trained: Mapping[str, TrainedOn]
) -> list[dict[str, Any]]:
    return [
        {**one.as_json(), "data": trained[one.name].data, "trained_on": trained[one.name].files}
        for one in result.tokenizers
    ]
