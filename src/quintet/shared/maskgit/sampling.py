"""What `quintet sample` needs for every masked generator: flags, and how samples are made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from quintet.engine.errors import RunError
from quintet.shared.sampling import Device, stem_of


@dataclass(frozen=True, kw_only=True)
class MaskedFlags:
    """Flags of a masked generator."""

    text: tuple[str, ...] = ()
    """Captions to generate from."""
    count: int = 4
    """Samples per caption."""
    steps: int | None = None
    """Generation steps, 8 to 64. The defaults of this and the next four flags are those of the
    run's evaluations."""
    order: Literal["confidence", "halton"] | None = None
    """Which ids are fixed first, the most likely or those of a Halton sequence."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy."""
    choice_temperature: float | None = None
    """Noise in the choice of the most likely ids, which falls to 0."""
    cond_scale: float | None = None
    """Classifier-free guidance scale; 1 disables guidance."""
    seed: int = 0
    """Random seed."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def check_texts(model: Any, texts: Sequence[str]) -> None:
    """Captions for a masked generator, before anything is written."""
    if texts and model.config.text == "none":
        raise RunError("this generator was trained without captions; drop --text")
    try:
        model.check_captions(texts)
    except ValueError as error:
        raise RunError(str(error)) from None


def decoding_of(run: Path, flags: Any) -> dict[str, Any]:
    """How a masked generator makes samples: as the flags say where they are given, and else as in
    the evaluations of the run. An export has none of these: then the defaults."""
    from quintet.engine.runs.folder import RunFolder
    from quintet.shared.maskgit.decoding import Decoding

    own = dict(RunFolder.open(run).about.get("settings", {}).get("generation", {}))
    own["steps"] = own.pop("sampling_steps", None)
    asked = {field.name: getattr(flags, field.name) for field in fields(Decoding)}
    chosen = {n: own.get(n) if value is None else value for n, value in asked.items()}
    return {name: value for name, value in chosen.items() if value is not None}


def write_samples(
    model: Any,
    run: Path,
    out: Path,
    flags: MaskedFlags,
    draw: Callable[..., Any],
    write: Callable[[Path, Any], object],
    suffix: str,
) -> tuple[list[Path], dict[str, Any]]:
    """Files of samples that `draw` generates from each text, and the contents of their sheet."""
    check_texts(model, flags.text)
    settings = decoding_of(run, flags)
    rows: list[list[Any]] = []
    paths: list[Path] = []
    texts = [*flags.text] or [""]
    for number, text in enumerate(texts):
        caption, seed = [text] if flags.text else None, flags.seed + number
        try:
            samples = draw(caption, count=flags.count, seed=seed, **settings)
        except ValueError as error:
            raise RunError(str(error)) from None
        out.mkdir(parents=True, exist_ok=True)
        for index, sample in enumerate(samples):
            paths.append(out / f"{stem_of(text, number)}-{index:03d}{suffix}")
            write(paths[-1], sample)
        rows.append([*samples])
    titles = [f"{index:03d}" for index in range(flags.count)]
    return paths, {"name": "sheet", "rows": rows, "titles": titles, "texts": texts}
