"""Small pieces of HTML. Whatever comes from a file passes through `text`."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any


def text(value: object) -> str:
    """Any value as text that is safe between tags and inside quoted attributes."""
    return html.escape(str(value))


def shown(value: Any, style: str) -> str:
    """A number in its style; anything else that a file holds there, as text."""
    try:
        return format(value, style) if isinstance(value, (int, float)) else str(value)
    except OverflowError:  # an integer beyond what a float can hold
        return "beyond counting"


def is_finite(value: Any) -> bool:
    """A number that can be drawn: differences and ratios of two such are finite too."""
    return isinstance(value, (int, float)) and abs(value) < 1e100


def number(value: Any) -> str:
    """Escaped, and short."""
    if value is None:
        return "–"
    return text(shown(value, "d" if isinstance(value, int) else ".5g"))


def attribute(value: Any) -> str:
    """JSON for a data- attribute: no text in it can end the attribute or begin a tag."""
    return html.escape(json.dumps(value, separators=(",", ":"), allow_nan=False))


def duration(seconds: Any) -> str:
    if not is_finite(seconds):
        return str(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{shown(seconds, '.3g')} s"


def size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def table(head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Cells are HTML already; wider than the page, it is scrolled by itself."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    top = f"<thead><tr><td></td>{columns}</tr></thead>" if head else ""
    lines = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, cells in rows.items()
    )
    return f'<div class="wide" tabindex="0"><table>{top}<tbody>{lines}</tbody></table></div>'


def folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""
