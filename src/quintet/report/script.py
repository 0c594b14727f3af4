"""Script and style of the page, and plotly from the installed package, compressed."""

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
    """gzip in base64: two fifths of the size, and no characters special to HTML."""
    digest: str
    """Hash of the uncompressed script, for the content security policy."""


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
    """The plotly script, or None without the package, which is not imported because it is slow."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    try:
        code = (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()
    except OSError:
        return None
    packed = gzip.compress(code, 6, mtime=0)  # the same run gives the same page
    return Packed(base64.b64encode(packed).decode(), digest(code))


def policy(second: str = "") -> str:
    """Content security policy: only the scripts of the page run, and there is no network access but
    for a second script, which asks the host of the page."""
    packed = plotly()
    codes = [digest(code.encode()) for code in (script(), second) if code]
    scripts = " ".join([*codes, *([packed.digest] if packed else [])])
    reach = "connect-src 'self'; form-action 'self'" if second else "form-action 'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; media-src data:; base-uri 'none'; {reach}"
    )
