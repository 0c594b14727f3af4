"""Runs in object storage, as words of a command: a local mirror takes the place of the address."""

import re

from quintet.cli.common import say
from quintet.engine.errors import RunError
from quintet.suggest import command
from quintet.urls import is_url

WANTED = {"report": "none", "watch": "none", "replay": "all", "doctor": "all"}
"""Checkpoints that a command needs; the others need the newest one, or the one they name."""
NEEDS_RUN = ("resume", "sample", "export", "report", "watch", "replay")
READ_ONLY = ("http://", "https://")


def with_mirrors(verb: str, arguments: list[str]) -> list[str]:
    """The arguments with folders in place of the addresses of runs; other addresses may be data."""
    if not any(is_url(word.partition("=")[2] or word) for word in arguments):
        return arguments
    if verb == "train":
        return _trained(arguments)
    from quintet.engine.runs.remote.mirror import pull

    words: list[str] = []
    is_run = False
    for word in arguments:
        url, at, step = word.rpartition("@")
        if not re.fullmatch(r"\d+|best", step) or not is_url(url):
            url, at, step = word, "", _step_flag(arguments)
        if is_url(url) and not url.startswith(READ_ONLY):
            wanted = int(step) if step.isdecimal() else step or WANTED.get(verb, "newest")
            mirror = pull(url, wanted, say)  # type: ignore[arg-type]
            if mirror is not None:
                is_run = True
                say(f"{url} is mirrored in {mirror.path}")
                word = f"{mirror.path}@{step}" if at else str(mirror.path)
        words.append(word)
    if verb in NEEDS_RUN and not is_run:
        url = next(filter(is_url, arguments), "")
        start = command("train", "RECIPE", "--run", url)
        raise RunError(f"there is no run at {url}; {start} starts one")
    return words


def _trained(arguments: list[str]) -> list[str]:
    from quintet.engine.runs.remote.mirror import Mirror

    words: list[str] = []
    for index, word in enumerate(arguments):
        flag, equals, url = word.partition("=")
        if not equals:
            flag, url = arguments[index - 1] if index else "", word
        if flag == "--run" and is_url(url):
            if url.startswith(READ_ONLY):
                raise RunError(
                    f"--run is {url}, which cannot be written; take s3://, gs:// or az://"
                )
            path = Mirror.at(url).path
            say(f"{url} is mirrored in {path}")
            word = f"--run={path}" if equals else str(path)
        words.append(word)
    return words


def _step_flag(arguments: list[str]) -> str:
    text = " ".join(arguments).replace("=", " ")
    match = re.search(r"(?:^| )--step (\d+|best)(?: |$)", text)
    return match[1] if match else ""
