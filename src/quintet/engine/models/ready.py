"""Trained models that travel with the package: `ready/NAME` stands for the folder of one.

Each is an export, with a card.json that says how it was trained and what it reaches. A frozen stage
lies in the folder of its generator: ready/image-tokenizer is ready/image/tokenizer.
"""

import json
from pathlib import Path
from typing import Any

from quintet.engine.errors import RunError
from quintet.suggest import among, command

FOLDER = Path(__file__).parents[2] / "ready"
CARD = "card.json"


def cards() -> dict[str, dict[str, Any]]:
    """The cards of the models, by `ready/NAME`."""
    return {
        name: json.loads((folder / CARD).read_text(encoding="utf-8"))
        for name, folder in sorted(_folders().items())
    }


def found(path: Path) -> Path:
    """The folder of `ready/NAME`; other paths as they are. Where a folder here has the name of a
    model, neither is meant by itself."""
    if path.parts[:1] != ("ready",) or len(path.parts) != 2:
        return path
    known = _folders()
    packaged = known.get(path.as_posix())
    if packaged and path.exists():
        raise RunError(
            f"{path} is a model of the package and a folder here; name one of them in full: "
            f"{packaged} or {path.resolve()}"
        )
    if packaged or path.exists():
        return packaged or path
    hint = among(path.as_posix(), sorted(known))
    raise RunError(f"there is no ready model '{path.name}'; {hint} ({command('list')} shows them)")


def _folders() -> dict[str, Path]:
    folders = [file.parent for file in FOLDER.rglob(CARD)]
    return {f"ready/{'-'.join(path.relative_to(FOLDER).parts)}": path for path in folders}
