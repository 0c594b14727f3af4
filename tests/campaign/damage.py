"""What may become of the checkpoints of a run: damage, swaps, and forgeries that vouch for
themselves. Each function makes one change and says what it was."""

import pickle
import random
import shutil
from functools import partial
from typing import Any

import torch
from safetensors.torch import load_file

from campaign.forgery import BULK, Forger
from campaign.subjects import Subject

# -- damage ---------------------------------------------------------------------------------------


def flip(forger: Forger, chance: random.Random) -> str:
    """One bit of one file of a checkpoint."""
    file = chance.choice(forger.checkpoint_files())
    content = bytearray(file.read_bytes())
    at = chance.randrange(8 * len(content))
    content[at // 8] ^= 1 << at % 8
    file.write_bytes(content)
    return f"bit {at} of {file.name}"


def cut(forger: Forger, chance: random.Random) -> str:
    file = chance.choice(forger.checkpoint_files())
    size = chance.choice([0, 1, 7, chance.randrange(file.stat().st_size)])
    file.write_bytes(file.read_bytes()[:size])
    return f"{file.name} cut to {size} bytes"


def flip_config(forger: Forger, chance: random.Random) -> str:
    content = bytearray((forger.path / "config.json").read_bytes())
    at = chance.randrange(8 * len(content))
    content[at // 8] ^= 1 << at % 8
    (forger.path / "config.json").write_bytes(content)
    return f"bit {at} of config.json"


def missing(forger: Forger, chance: random.Random) -> str:
    file = chance.choice(forger.checkpoint_files())
    file.unlink()
    return f"{file.name} removed"


def grown(forger: Forger, chance: random.Random) -> str:
    file = chance.choice(forger.checkpoint_files())
    file.write_bytes(file.read_bytes() + bytes(chance.randrange(1, 64)))
    return f"{file.name} made longer"


def renamed(forger: Forger, _: random.Random) -> str:
    """The older checkpoint under a newer one's name."""
    shutil.rmtree(forger.newest)
    forger.older.rename(forger.newest)
    return "step 4 under the name of step 6, and no other"


# -- swaps ----------------------------------------------------------------------------------------


def swap(forger: Forger, chance: random.Random) -> str:
    """A file of the same name and step out of a run with another number of processes."""
    file = chance.choice(forger.checkpoint_files())
    shutil.copy(forger.other / "checkpoints" / forger.newest.name / file.name, file)
    return f"{file.name} of another run"


def swap_checkpoint(forger: Forger, _: random.Random) -> str:
    for mine in (forger.older, forger.newest):
        shutil.rmtree(mine)
        shutil.copytree(forger.other / "checkpoints" / mine.name, mine)
    return "both checkpoints of another run"


def swap_config(forger: Forger, _: random.Random) -> str:
    shutil.copy(forger.other / "config.json", forger.path / "config.json")
    return "config.json of another run"


def swap_steps(forger: Forger, chance: random.Random) -> str:
    """A file of the older checkpoint in the newer one."""
    files = [file for file in forger.checkpoint_files() if file.suffix == ".safetensors"]
    file = chance.choice(files)
    shutil.copy(forger.older / file.name, file)
    return f"{file.name} of step 4 in step 6"


def another_recipe(forger: Forger, _: random.Random) -> str:
    """Checkpoints of another recipe, with this run's id and a seal."""
    foreign = Subject("music/mulan_tiny" if "mesh" in forger.name else BULK).reference(1)
    for mine in (forger.older, forger.newest):
        shutil.rmtree(mine)
        shutil.copytree(foreign / "checkpoints" / mine.name, mine)
        forger.reseal(mine, {"run": forger.id})
    return "checkpoints of another recipe, sealed"


# -- forgeries, with digests and seals that vouch for them ----------------------------------------


def another_version(forger: Forger, _: random.Random) -> str:
    for mine in (forger.older, forger.newest):
        forger.reseal(mine, {"versions": {"quintet": "99.0", "torch": "0.1", "python": "2.7"}})
    return "written by version 99.0"


def page(forger: Forger, chance: random.Random) -> str:
    """A page of state with an absurd value."""
    name = chance.choice(["step", "samples", "seconds", "run", "seed", "files"])
    odd: list[Any] = [None, "x", -5, 1e300, [], {}, True, 2.5, "os.system"]
    value = chance.choice(odd)
    for mine in (forger.older, forger.newest):
        forger.reseal(mine, {name: value})
    return f"{name} is {value!r} in state.json, sealed"


def bare_page(forger: Forger, chance: random.Random) -> str:
    name = chance.choice(["step", "samples", "seconds", "run", "seed", "files"])
    for mine in (forger.older, forger.newest):
        forger.reseal(mine, without=name)
    return f"state.json lacks {name}, sealed"


def tensors(forger: Forger, chance: random.Random) -> str:
    """A tensor too many, too few, of another shape or of another type, in both checkpoints."""
    how = chance.choice(["extra", "missing", "shape", "flat", "half", "double", "integer"])
    stored = [f for f in forger.checkpoint_files() if f.suffix == ".safetensors"]
    files = [f.name for f in stored if _sized(load_file(f))]
    file, pick = chance.choice(files), chance.random()
    for mine in (forger.older, forger.newest):
        forger.rewrite(mine / file, partial(_altered, how=how, pick=pick))
        forger.reseal(mine)
    return f"{how} in {file}, sealed"


def _sized(held: dict[str, torch.Tensor]) -> list[str]:
    return sorted(n for n, t in held.items() if t.is_floating_point() and t.ndim and t.numel() > 1)


def _altered(held: dict[str, torch.Tensor], how: str, pick: float) -> dict[str, torch.Tensor]:
    sized = _sized(held)
    if not sized:  # the moments of a part that has not begun
        return held
    name = sized[int(pick * len(sized))]
    old = held[name]
    if how == "missing":
        return {n: t for n, t in held.items() if n != name}
    if how == "extra":
        return {**held, f"{name}.more": old}
    changed = {
        "shape": torch.zeros(*old.shape[:-1], old.shape[-1] + 1),
        "flat": old.reshape(-1, 1),
        "half": old.half(),
        "double": old.double(),
        "integer": old.long(),
    }
    return {**held, name: changed[how]}


def trap(forger: Forger, chance: random.Random) -> str:
    """A pickle that would leave a mark, in place of tensors and beside them, vouched for."""
    sprung = pickle.dumps(forger.trap())
    files = [f.name for f in forger.checkpoint_files() if f.suffix == ".safetensors"]
    file = chance.choice(files)
    for mine in (forger.older, forger.newest):
        (mine / file).write_bytes(sprung)
        (mine / "optimizer.pt").write_bytes(sprung)
        forger.reseal(mine)
    return f"a pickle as {file}, sealed"
