"""Settings, reports and other words of a run that somebody has tampered with."""

import json
import random
from typing import Any

from campaign.forgery import Forger

HOSTILE = "<script>alert('x')</script>\x1b[2J\u202e"

# -- settings -------------------------------------------------------------------------------------

SETTINGS: list[tuple[str, Any]] = [
    ("settings.unheard_of", 1),
    ("settings.model.unheard_of", "x"),
    ("settings.steps", "ten"),
    ("settings.steps", True),
    ("settings.steps", 2.5),
    ("settings.steps", -1),
    ("settings.batch_size", 10**12),
    ("settings.batch_size", 0),
    ("settings.accumulate", 10**9),
    ("settings.seed", 7),
    ("settings.seed", "0"),
    ("settings.workers", -1),
    ("settings.keep_last", 0),
    ("settings.log_every", None),
    ("settings.minutes", -1),
    ("settings.precision", "fp16"),
    ("settings.precision", "bf16"),
    ("settings.device", "tpu"),
    ("settings.model", []),
    ("settings.model", None),
    ("settings.model.dim", 10**12),
    ("settings.model.dim", 10**7),
    ("settings.model.dim", 0),
    ("settings.model.dim", "os.system"),
    ("settings.model.levels", "abc"),
    ("settings.model.levels", [10**9, 10**9]),
    ("settings.optim.learning_rate", 0.5),
    ("settings.optim.learning_rate", 1e999),
    ("settings.optim.optimizer", "sgd"),
    ("settings.optim.betas", [0.9]),
    ("settings.optim.warmup_steps", 3),
    ("settings.meshes.builtin_count", 10**15),
    ("settings.meshes.builtin_count", 64),
    ("settings.meshes.max_faces", 10**15),
    ("settings.data", "/nowhere/at/all"),
    ("settings.data", "python:os.system"),
    ("settings.trackers", ["os"]),
    ("settings.trackers", ["__import__('os')"]),
    ("settings", None),
    ("settings", "rm -rf"),
    ("recipe", "os/system"),
    ("recipe", "../mesh/autoencoder_tiny"),
    ("recipe", "mesh/__import__"),
    ("recipe", "image/vqgan_tiny"),
    ("recipe", ["mesh/autoencoder_tiny"]),
    ("recipe", None),
    ("global_batch", 4),
    ("global_batch", 10**18),
    ("global_batch", "2"),
    ("id", "somebody else's"),
    ("id", None),
    ("id", ["x"]),
    ("frozen", {"../../x": "abc"}),
    ("frozen", "x"),
    ("quintet", "99.0"),
    ("machine", HOSTILE),
]
"""Made in the configuration of the bulk's run; the list is of its fields."""


def setting(forger: Forger, _: random.Random, field: str, value: Any) -> str:
    about = forger.config()
    place = about
    *path, last = field.split(".")
    for name in path:
        place = place[name]
    place[last] = value
    (forger.path / "config.json").write_text(json.dumps(about), encoding="utf-8")
    return f"{field} is {value!r}"


RAW = {
    "empty": b"",
    "binary": bytes(range(256)),
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "a list": b"[]",
    "NaN": b'{"settings": NaN}',
    "a long number": b'{"id": ' + b"9" * 10_000 + b"}",
    "lone surrogate": b'{"id": "\\ud800"}',
    "nothing at all": b"\n\n",
}


def raw(forger: Forger, _: random.Random, file: str, how: str) -> str:
    (forger.path / file).write_bytes(RAW[how])
    return f"{file} is {how}"


# -- reports --------------------------------------------------------------------------------------

LINES: list[Any] = [
    {"step": "six", "loss": 1.0},
    {"step": None},
    {"step": [6]},
    {"step": 1e300},
    {"step": 3, HOSTILE: 1.0},
    {"step": 3, "autoencoder/loss": HOSTILE},
    {"step": 3, "message": HOSTILE},
    {"step": 3, "message": {"a": [HOSTILE]}},
    {"message": 5},
    "x",
    None,
    [1],
]


def hostile_report(forger: Forger, chance: random.Random) -> str:
    file, line = chance.choice(["metrics.jsonl", "events.jsonl"]), chance.choice(LINES)
    forger.insert(file, json.dumps(line), chance)
    return f"{json.dumps(line)[:60]} in {file}"


def broken_report(forger: Forger, chance: random.Random) -> str:
    file = chance.choice(["metrics.jsonl", "events.jsonl"])
    how = chance.choice(sorted(RAW))
    forger.insert(file, RAW[how].decode("latin-1"), chance)
    return f"a line of {file} is {how}"


def hostile_best(forger: Forger, chance: random.Random) -> str:
    odd: list[Any] = [None, "x", [], {}, {"step": "../.."}, {"step": 10**30, "value": 1}]
    odd += [{"step": 6}, {"step": None, "value": None}, {"step": 4, "value": "x"}, [6]]
    value = chance.choice(odd)
    (forger.path / "best.json").write_text(json.dumps(value), encoding="utf-8")
    return f"best.json is {value!r}"
