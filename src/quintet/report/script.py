"""The page's script and style, and plotly from the installed package, packed."""

import base64
import gzip
import hashlib
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Packed(NamedTuple):
    data: str
    """gzip in base64: two fifths of the size, and no text in it that means anything to HTML."""
    digest: str
    """Of what is inside, for the page's policy."""


@lru_cache(maxsize=2)
def style() -> str:
    return (HERE / "page.css").read_text(encoding="utf-8")


@lru_cache(maxsize=2)
def script() -> str:
    return (HERE / "page.js").read_text(encoding="utf-8")


def digest(code: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code).digest()).decode()}'"


@lru_cache(maxsize=1)
def plotly() -> Packed | None:
    """None where plotly is not installed. The package itself is not imported: it takes a while."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        return None
    try:
        code = (Path(found.origin).parent / "package_data" / "plotly.min.js").read_bytes()
    except OSError:
        return None
    packed = gzip.compress(code, 6, mtime=0)
    return Packed(base64.b64encode(packed).decode(), digest(code))


def policy() -> str:
    """Nothing is fetched, and no script runs but these two, whatever else the page holds."""
    packed = plotly()
    scripts = f"{digest(script().encode())} {packed.digest if packed else ''}".strip()
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
        "img-src data: blob:; media-src data:; base-uri 'none'; form-action 'none'"
    )
