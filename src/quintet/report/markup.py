"""HTML helpers. All text read from files goes through `text`."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any


def text(value: object) -> str:
    """Escape a value for use between tags and inside quoted attributes."""
    return html.escape(str(value))


def format_value(value: Any, spec: str) -> str:
    """Format a number; any other value is shown as it is."""
    try:
        return format(value, spec) if isinstance(value, (int, float)) else str(value)
    except OverflowError:  # an integer beyond the range of a float
        return "out of range"


def is_finite(value: Any) -> bool:
    """Whether a value can be plotted; differences and ratios of two such values are finite too."""
    return isinstance(value, (int, float)) and abs(value) < 1e100


def number(value: Any) -> str:
    """Format a number in short form, escaped."""
    if value is None:
        return "–"
    return text(format_value(value, "d" if isinstance(value, int) else ".5g"))


def attribute(value: Any) -> str:
    """JSON for a data- attribute; no string in it can end the attribute or open a tag."""
    return html.escape(json.dumps(value, separators=(",", ":"), allow_nan=False))


def duration(seconds: Any) -> str:
    if not is_finite(seconds):
        return str(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{format_value(seconds, '.3g')} s"


def file_size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def table(header: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table of HTML cells; it scrolls by itself where it is wider than the page."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    top = f"<thead><tr><td></td>{columns}</tr></thead>" if header else ""
    lines = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, cells in rows.items()
    )
    return f'<div class="wide" tabindex="0"><table>{top}<tbody>{lines}</tbody></table></div>'


def details(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""
