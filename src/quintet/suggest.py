"""Commands that messages suggest: one function makes them all, so that a test can run them all."""

import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches

ALIASES: dict[str, str] = {}
"""Addresses by the folder that stands for them here."""


def words(*values: object) -> str:
    """Words as typed into a shell."""
    return shlex.join(map(_alias, map(str, values)))


def _alias(word: str) -> str:
    path, at, step = word.partition("@")
    return f"{ALIASES[path]}{at}{step}" if path in ALIASES else word


def command(verb: str, *values: object) -> str:
    """`quintet VERB …` as typed into a shell. Words in capitals stand for the user's own."""
    return words("quintet", verb, *values)


def among(word: str, known: Sequence[str]) -> str:
    """What a mistyped word may stand for, or all that there is."""
    near = get_close_matches(word.lower(), known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


RESUME = "trainer.train(resume=True)"


def in_python(message: str) -> str:
    """A message of the engine without the flags of the command line."""
    path = r"""(?:'[^']*'|"[^"]*"|[^\s,;'"`])+"""  # as shlex.quote writes it
    flags = r"((?: --[a-z-]+ \w+)*)"
    call = rf"`?quintet resume {path}{flags}`?( or train --resume)?"
    message = re.sub(call, lambda m: RESUME + (m[1] and f" with{m[1]}"), message)
    message = message.replace("train --resume", RESUME)
    return re.sub(r"--([a-z][a-z.-]*[a-z])", lambda m: m[1].replace("-", "_"), message)
