"""The examples of exact resume: killed and started again, they end with the same bits."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from examples.scripts import run_on
from harness import assert_same

EXAMPLES = Path(__file__).parents[2] / "examples/exact_resume"
LAST = {
    "plain_loop": "state.pt",
    "with_accelerate": "step-000060/model.safetensors",
    "with_lightning": "last.ckpt",
    "with_transformers": "checkpoint-60/model.safetensors",
}
# What they say themselves: Lightning of srun, and transformers of a scheduler.
ACTION = {"with_lightning": "ignore", "with_transformers": "ignore"}


def weights(name: str, run: Path) -> dict[str, Tensor]:
    path = run / LAST[name]
    if path.suffix == ".safetensors":
        return load_file(path)
    state = torch.load(path, weights_only=False)
    return state.get("model") or state["state_dict"]


def trained(name: str, folder: Path, *words: Any, size: int = 1) -> list[int]:
    """Exit statuses of the example on so many processes."""
    folders = [folder / f"process{rank}" for rank in range(size)]
    for each in folders:
        each.mkdir(exist_ok=True, parents=True)
    words = ("--run", folder / "run", *words)
    said = run_on(folders, EXAMPLES / f"{name}.py", *words, action=ACTION.get(name, "error"))
    return [each.status for each in said]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The weights of an example that nobody killed, by its name."""
    kept: dict[str, dict[str, Tensor]] = {}

    def get(name: str) -> dict[str, Tensor]:
        if name not in kept:
            folder = tmp_path_factory.mktemp("straight")
            assert trained(name, folder, "--workers", 0) == [0]
            kept[name] = weights(name, folder / "run")
        return kept[name]

    return get


OTHERS = [pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((1, 1), (1, 2), (2, 2))]


# No checkpoint is at step 23 or 37.
@pytest.mark.parametrize(("first", "then"), [(2, 1), *OTHERS])
def test_a_plain_loop_goes_on_with_any_number_of_processes(
    first: int, then: int, straight: Any, tmp_path: Path
) -> None:
    killed = trained("plain_loop", tmp_path, "--kill-at", 23, size=first)
    assert -signal.SIGKILL in killed  # the other may see it die, and end with an error
    assert 0 not in killed
    assert trained("plain_loop", tmp_path, "--workers", 0, size=then) == [0] * then
    assert_same(straight("plain_loop"), weights("plain_loop", tmp_path / "run"))


SLOW = ["with_lightning", "with_transformers"]


@pytest.mark.parametrize(
    "name",
    ["with_accelerate", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_a_framework_goes_on(name: str, straight: Any, tmp_path: Path) -> None:
    assert trained(name, tmp_path, "--kill-at", 37) == [-signal.SIGKILL]
    assert trained(name, tmp_path, "--workers", 1) == [0]
    assert_same(straight(name), weights(name, tmp_path / "run"))


@pytest.mark.slow
def test_the_state_of_the_loader_is_needed(straight: Any, tmp_path: Path) -> None:
    """The comparison above sees a loader that begins again."""
    trained("plain_loop", tmp_path, "--kill-at", 23, "--workers", 0)
    saved = tmp_path / "run/state.pt"
    state = torch.load(saved)
    state["loader"]["samples"] += state["loader"]["global_batch"]
    torch.save(state, saved)
    trained("plain_loop", tmp_path, "--workers", 0)
    other = weights("plain_loop", tmp_path / "run")
    assert not other["0.weight"].equal(straight("plain_loop")["0.weight"])
