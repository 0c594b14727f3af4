"""Rendezvous after a restart by torchrun.

The launcher keeps one key-value store for all attempts, with the stale addresses of earlier ones: a
process that reads before the others have written would connect to a dead peer. The processes of an
attempt therefore agree on a fresh prefix first. The restart count cannot serve as the prefix:
launchers on several hosts count differently.
"""

import json
import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

PAUSE = 0.05
"""Seconds between two polls of the store."""
PATIENCE = timedelta(minutes=30)
"""Timeout for the last process of an attempt."""


def is_needed() -> bool:
    """Whether the launcher keeps the store, and no process group exists yet."""
    keeps_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return keeps_store and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()


def meet(backend: str) -> None:
    """Form the default process group of this attempt."""
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    name = agreed_name(store, rank, size, time.monotonic() + PATIENCE.total_seconds())
    inner = dist.PrefixStore(name, store)
    dist.init_process_group(backend, store=inner, rank=rank, world_size=size)


def agreed_name(store: dist.Store, rank: int, size: int, deadline: float) -> str:
    """A prefix that exactly the processes of this attempt share.

    Each process writes a random token. Rank 0 publishes the tokens that it reads together with its
    own; a process that finds its token there knows that this rank 0 belongs to its attempt, and
    acknowledges under rank 0's token. Rank 0 sends `go` after all acknowledgements.
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
        raise TimeoutError("the other processes of this attempt did not join")
    time.sleep(PAUSE)
