"""Where processes find one another again after torchrun has restarted them.

The launcher keeps one store of names and addresses for all attempts, and what the dead ones wrote
stays in it: whoever reads it before the new ones have written tries to reach the dead. So the
processes of an attempt first agree on a name for it that nobody used before, and meet under that.
The number of restarts cannot serve: launchers on several hosts count them differently.
"""

import json
import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

PAUSE = 0.05
"""Seconds between two looks at the store."""
PATIENCE = timedelta(minutes=30)
"""How long the processes of an attempt wait for the last of them."""


def is_needed() -> bool:
    """Under a launcher that keeps the store itself, and before anybody else has met there."""
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return kept and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()


def meet(backend: str) -> None:
    """Form the default process group of this attempt."""
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    name = agreed_name(store, rank, size, time.monotonic() + PATIENCE.total_seconds())
    inner = dist.PrefixStore(name, store)
    dist.init_process_group(backend, store=inner, rank=rank, world_size=size)


def agreed_name(store: dist.Store, rank: int, size: int, deadline: float) -> str:
    """A name that exactly the processes living now hold.

    Each writes a word of its own. The first repeats all the words it finds beside its own; whoever
    finds its word repeated knows that it was heard by a first process of its own time, and says so
    under that one's word, which is new. The first says `go` once everybody has.
    """
    word = uuid.uuid4().hex
    store.set(f"quintet/word/{rank}", word)
    if rank == 0:
        _lead(store, size, word, deadline)
        return f"quintet/{word}"
    return f"quintet/{_follow(store, rank, word, deadline)}"


def _lead(store: dist.Store, size: int, word: str, deadline: float) -> None:
    words = [f"quintet/word/{rank}" for rank in range(size)]
    heard = [f"quintet/{word}/heard/{rank}" for rank in range(1, size)]
    while not store.check(heard):
        if store.check(words):
            repeated = [value.decode() for value in store.multi_get(words)]
            store.set("quintet/repeated", json.dumps([word, *repeated]))
        _pause(deadline)
    store.set(f"quintet/{word}/go", "1")


def _follow(store: dist.Store, rank: int, word: str, deadline: float) -> str:
    leader = ""
    while not (leader and store.check([f"quintet/{leader}/go"])):
        if store.check(["quintet/repeated"]):
            first, *repeated = json.loads(store.get("quintet/repeated"))
            if repeated[rank : rank + 1] == [word] and first != leader:
                leader = first
                store.set(f"quintet/{leader}/heard/{rank}", "1")
        _pause(deadline)
    return leader


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("the other processes of this attempt did not come")
    time.sleep(PAUSE)
