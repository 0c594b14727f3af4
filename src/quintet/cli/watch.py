"""`quintet watch`."""

import dataclasses
import secrets
from pathlib import Path

import tyro

from quintet.cli.common import parse

Flag = tyro.conf.FlagCreatePairsOff[bool]


@dataclasses.dataclass(kw_only=True)
class Watch:
    """Show the report of a run live in a browser, or compare the runs of a folder: curves that
    grow, the newest samples, warnings, time left. Buttons save, evaluate or stop the run. Prints
    the address to open, which holds a token.

    The page only reads files, so it can be opened before, during and after the run, on any machine
    that sees the folder.
    """

    path: tyro.conf.Positional[Path]
    """Run folder, or a folder of runs."""
    port: int = 8001
    """Port of the server; 0 takes any that is free."""
    host: str = "127.0.0.1"
    """Address of the server; one that other machines reach needs --token."""
    token: str | None = None
    """Token that browsers must show; default: QUINTET_TOKEN, on 127.0.0.1 also a new one."""
    read_only: Flag = False
    """Without buttons. On 127.0.0.1 no token is needed."""


def watch(arguments: list[str]) -> None:
    from quintet.engine.runs.remote.mirror import Mirror, follow
    from quintet.serve.access import Access, Guard, Limits, is_loopback, listen, port_of, run
    from quintet.watch.app import application
    from quintet.watch.site import Site

    options = parse(Watch, arguments, "watch")
    mirror = Mirror.of(options.path)
    if mirror is not None:
        follow(mirror)
        if not mirror.is_held():  # requests do not leave this machine
            options = dataclasses.replace(options, read_only=True)
    app = application(Site(options.path, writes=not options.read_only))
    access = Access.of(options.host, options.port, options.token)
    if access.token is None and is_loopback(options.host) and not options.read_only:
        access = dataclasses.replace(access, token=secrets.token_urlsafe(24))
    listening = listen(options.host, options.port)
    access = dataclasses.replace(access, port=port_of(listening))
    run(Guard(app, access, Limits(body_bytes=100_000)), access, listening)
