"""`quintet export`."""

import dataclasses
from pathlib import Path

import tyro

from quintet.cli.words import parse, recorded
from quintet.engine.errors import RunError


@dataclasses.dataclass(kw_only=True)
class Export:
    """Write weights, configuration and a model card; `from_pretrained` and the Hub read them."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: tyro.conf.Positional[Path]
    """A new folder."""


def export(given: list[str]) -> None:
    import quintet
    from quintet.report import model_card

    asked = parse(Export, given, "export")
    recorded(asked.run)
    if asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        raise RunError(f"{asked.out} exists and is not empty; choose a new folder")
    model = quintet.load(asked.run)
    model.save_pretrained(asked.out)
    (asked.out / "README.md").write_text(model_card(asked.run, model), encoding="utf-8")
    print(
        f"{asked.out}: load it with quintet.{type(model).__name__}.from_pretrained('{asked.out}')"
    )
