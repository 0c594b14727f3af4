"""`quintet list`."""

import dataclasses

from quintet.cli.common import listing, parse


@dataclasses.dataclass(kw_only=True)
class List:
    """Show what can be trained."""


def list(arguments: list[str]) -> None:
    parse(List, arguments, "list")
    print(listing())
