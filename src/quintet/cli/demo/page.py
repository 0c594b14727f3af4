"""The demo page: rewritten as the demo goes on, and reloaded by its own script until it ends."""

import os
import shlex
import sys
import time
import webbrowser
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from quintet.cli.demo.gallery import Shown
from quintet.files import atomic_write
from quintet.report import script
from quintet.report.markup import duration, text
from quintet.report.page import LOGO, MARKER, check_output
from quintet.shared.demo import Row
from quintet.suggest import command

HERE = Path(__file__).parent
TITLE = "Quintet demo"


@dataclass
class Page:
    """What the page shows at the moment; `write` puts it into the file."""

    path: Path
    lead: str
    rows: Sequence[Shown]
    status: str = ""
    sections: dict[str, str] = field(default_factory=dict[str, str])
    """Trusted HTML after the rows, by name."""
    live: bool = True
    written: float = 0.0

    def write(self, status: str | None = None) -> None:
        if not self.written:
            check_output(self.path, "--run")
        self.status = self.status if status is None else status
        atomic_write(self.path, self.html().encode("utf-8", "replace"), sync=False)
        self.written = time.monotonic()

    def html(self) -> str:
        state = f'data-live="{int(time.time() * 1000)}"' if self.live else ""
        scripts = script.digest(_own("page.js").encode())
        policy = (
            f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
            "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
        )
        rows = "".join(row.html() for row in self.rows)
        return (
            f'<!doctype html>{MARKER}<html lang="en" {state}><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{TITLE}</title><style>{script.style()}{_own('page.css')}</style></head><body>"
            f"<header>{LOGO}<h1>{TITLE}</h1><p>{text(self.lead)}</p>"
            f'<p class="status" role="status">{text(self.status)}</p></header>'
            f'<main id="main">{rows}{"".join(self.sections.values())}</main>'
            f"<script>{_own('page.js')}</script></body></html>\n"
        )


# -- beginning and end --------------------------------------------------------------------------


@contextmanager
def showing(page: Page) -> Generator[None, None, None]:
    """Write the first version, name it, and open it in a browser if somebody watches. However the
    demo ends, the page stops reloading and says how."""
    begun = time.monotonic()
    page.write()
    print(f"Page: {page.path.resolve()}", flush=True)
    if watched():
        with suppress(webbrowser.Error):
            webbrowser.open(page.path.resolve().as_uri())
    try:
        yield
    except BaseException as error:
        page.live = False
        reason = str(error).partition("; the state is saved")[0] or type(error).__name__
        page.write(f"Not finished: {reason}.")
        raise
    page.live = False
    page.write(f"Finished in {duration(time.monotonic() - begun)}.")


def watched() -> bool:
    """Whether stdout is a terminal on a machine with a display, and not of a CI."""
    if not sys.stdout.isatty() or os.environ.get("CI"):
        return False
    displays = (os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return sys.platform in ("darwin", "win32") or any(displays)


# -- parts --------------------------------------------------------------------------------------


@lru_cache
def _own(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def next_steps(more: dict[str, str]) -> str:
    """Commands to run next; `more` come first."""
    commands = {
        **more,
        "Train on your own images": command(
            "train", "image/vqgan_tiny", "PHOTOS", "--run", "runs/photos"
        ),
        "List the recipes": command("list"),
    }
    items = "".join(
        f"<dt>{text(title)}</dt><dd><code>{text(line)}</code></dd>"
        for title, line in commands.items()
    )
    return f'<section><h2>Next steps</h2><dl class="next">{items}</dl></section>'


def sample_command(row: Row, model: Path | str) -> str:
    words = shlex.split(row.arguments)
    return command("sample", model, *words) if words else ""
