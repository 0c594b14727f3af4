"""What `quintet sample` needs for every generator: flags, and how samples are made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

from quintet.engine.errors import RunError
from quintet.shared.sampling import Device, stem_of

PLAIN = (str, int, float, tuple, type(None))
"""Settings of generation that can be compared; not images."""


@dataclass(frozen=True, kw_only=True)
class GeneratorFlags:
    """Flags of a generator."""

    SETTINGS: ClassVar[tuple[str, ...]] = ("steps", "cond_scale")
    """Those that are settings of generation."""
    text: tuple[str, ...] = ()
    """Captions to generate from."""
    count: int | None = 4
    """Samples per caption."""
    steps: int | None = None
    """Generation steps. The defaults of this and of other settings of generation are those of the
    run's evaluations."""
    cond_scale: float | None = None
    """Classifier-free guidance scale; 1 disables guidance."""
    seed: int = 0
    """Random seed."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def check_texts(model: Any, texts: Sequence[str]) -> None:
    """Captions for a generator, before anything is written."""
    if texts and model.config.text == "none":
        raise RunError("this generator was trained without captions; drop --text")
    try:
        model.check_captions(texts)
    except ValueError as error:
        raise RunError(str(error)) from None


def config_of(run: Path) -> dict[str, Any]:
    """The configuration of the generator of a run or an export."""
    from quintet.engine.runs.folder import RunFolder

    about = RunFolder.open(run).about
    return about.get("main", about)["config"]


def reads_captions(run: Path) -> bool:
    """Whether the generator of a run or an export has a text encoder."""
    return config_of(run)["text"] != "none"


def settings_of(run: Path, flags: Any) -> dict[str, Any]:
    """How a generator makes samples: as the flags say where they are given, and else as in the
    evaluations of the run, which its exports keep; else by the defaults."""
    from quintet.engine.runs.folder import RunFolder

    own = dict(RunFolder.open(run).about.get("settings", {}).get("generation", {}))
    own["steps"] = own.pop("sampling_steps", None)
    chosen = {n: value for n, value in own.items() if n not in ("count", "reference_count")}
    asked = {name: getattr(flags, name) for name in flags.SETTINGS}
    chosen |= {name: value for name, value in asked.items() if value is not None}
    return {name: value for name, value in chosen.items() if value is not None}


def write_samples(
    model: Any,
    out: Path,
    flags: GeneratorFlags,
    settings: Mapping[str, Any],
    draw: Callable[..., Any],
    write: Callable[[Path, Any], object],
    suffix: str,
) -> tuple[list[Path], dict[str, Any]]:
    """Files of samples that `draw` generates from each text, and the contents of their sheet."""
    check_texts(model, flags.text)
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
    titles = [f"{index:03d}" for index in range(len(rows[0]))]
    return paths, {"name": "sheet", "rows": rows, "titles": titles, "texts": texts}


def together(model: Any, calls: Sequence[Mapping[str, Any]], count: str = "count") -> list[Any]:
    """What `model.generate` returns for each of these keywords, of one text or none. Calls that
    differ only in texts, counts and seeds share blocks; a sample depends on its own seed and number
    alone. `count` is the keyword of the count."""
    groups: dict[str, list[int]] = {}
    for index, call in enumerate(calls):
        rest = {n: value for n, value in call.items() if n not in ("texts", count, "seed")}
        plain = all(isinstance(value, PLAIN) for value in rest.values())
        key = repr((call["texts"] is None, sorted(rest.items()))) if plain else f"alone {index}"
        groups.setdefault(key, []).append(index)
    results: dict[int, Any] = {}
    for indices in groups.values():
        results |= zip(indices, _joint(model, [calls[index] for index in indices], count))
    return [results[index] for index in range(len(calls))]


def _joint(model: Any, calls: Sequence[Mapping[str, Any]], count: str) -> Sequence[Any]:
    if len(calls) == 1:
        return [model.generate(**calls[0])]
    counts = [call[count] for call in calls]
    seeds = [(call["seed"], number) for call in calls for number in range(call[count])]
    texts = [text for call in calls for text in (call["texts"] or ()) * call[count]]
    joint = {**calls[0], "texts": texts or None, count: sum(counts), "seed": seeds}
    samples = model.generate(**joint)
    return [samples[end - size : end] for size, end in zip(counts, accumulate(counts))]
