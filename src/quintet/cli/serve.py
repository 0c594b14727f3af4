"""`quintet serve`."""

import dataclasses
import re
from pathlib import Path

import tyro

from quintet.cli.common import check_positive, parse
from quintet.engine.errors import RunError
from quintet.shared.sampling import Device
from quintet.suggest import command


@dataclasses.dataclass(kw_only=True)
class Serve:
    """Serve models over HTTP, with a page to try them: what `quintet sample` does, for clients of
    OpenAI too. Models are runs, RUN@STEP, exports or ready/NAME; NAME=RUN chooses the name that
    clients use."""

    models: tyro.conf.Positional[tuple[str, ...]]
    """Runs, exports or ready/NAME."""
    port: int = 8000
    """Port; 0 takes one that is free."""
    host: str = "127.0.0.1"
    """Address to listen on; any but this machine's own needs a token."""
    token: str | None = None
    """What clients must show; the environment variable QUINTET_TOKEN is not seen by other users."""
    name: tuple[str, ...] = ()
    """Further names of this machine that clients use in the address."""
    files: tuple[str, ...] = ()
    """NAME=PATH of files that requests may name, such as recordings of voices, or a vocoder."""
    queue: int = 64
    """Requests that may wait; more are told to try again."""
    seconds: float = 300.0
    """Time for a request, waiting included."""
    upload_mb: int = 64
    """Size of a request."""
    log_texts: bool = False
    """Write the texts of requests to the log."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def serve(arguments: list[str]) -> None:
    options = parse(Serve, arguments, "serve")
    if not options.models:
        raise RunError(f"name a model, for example: {command('serve', 'ready/image')}")
    check_positive("--queue", options.queue)
    check_positive("--upload-mb", options.upload_mb)
    if not options.seconds > 0:
        raise RunError(f"--seconds is {options.seconds}; it must be above 0")
    from quintet.serve import access
    from quintet.serve.worker import Capacity

    access.require_extra()
    access.Access.of(options.host, options.port, options.token)  # before models are loaded
    from quintet.serve.app import Server
    from quintet.serve.models import Served

    files = {name: existing(path) for name, path in pairs(options.files, "--files")}
    sources = pairs([named(each) for each in options.models], "the models")
    models = [Served.open(n, Path(path), options.device, files) for n, path in sources]
    listening = access.listen(options.host, options.port)
    reached = access.Access.of(options.host, access.port_of(listening), options.token, options.name)
    server = Server(models, Capacity(options.queue, options.seconds), options.log_texts)
    limits = access.Limits(options.upload_mb * 1_000_000)
    try:
        access.run(access.Guard(server.app, reached, limits), reached, listening)
    finally:
        server.worker.close()


def named(model: str) -> str:
    """NAME=RUN, by default with the last part of its path."""
    if re.match(r"[\w.-]+=", model):
        return model
    name = re.sub(r"[^\w.-]", "-", Path(model).name.partition("@")[0])
    return f"{name}={model}"


def pairs(words: tuple[str, ...] | list[str], what: str) -> list[tuple[str, str]]:
    """NAME=PATH of each word; the names must be distinct."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not path or not re.fullmatch(r"[\w.-]{1,60}", name, re.ASCII):
            raise RunError(f"{what}: {word} is not NAME=PATH, with a name of letters and digits")
        if name in found:
            raise RunError(f"{what}: two are named {name}; give other names: NAME=PATH")
        found[name] = path
    return [*found.items()]


def existing(path: str) -> Path:
    if not Path(path).exists():
        raise RunError(f"--files: {path} does not exist")
    return Path(path).absolute()
