"""`quintet list`."""

import dataclasses

from quintet.cli.common import listing, parse
from quintet.engine.models import ready


@dataclasses.dataclass(kw_only=True)
class List:
    """Show what can be trained, and the trained models that travel with the package."""


def list(arguments: list[str]) -> None:
    parse(List, arguments, "list")
    print(listing())
    if cards := ready.cards():
        print("\nReady models, to use as RUN or in --init-from, each with a command:")
    for name, card in cards.items():
        print(
            f"  {name:<23} {card['recipe']}, {card['bytes'] / 1e6:.1f} MB\n      {card['example']}"
        )
