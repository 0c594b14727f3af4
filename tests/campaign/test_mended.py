"""What the campaign of faults found, each as a small claim."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness import Processes, run, steps_reported
from quintet.engine.errors import RunError
from quintet.engine.runs import checkpoint
from quintet.engine.runs.folder import RunFolder, read_json, read_lines, require_settings
from toy import ToyRecipe

RECIPE = ToyRecipe(steps=4, batch_size=2, workers=0, log_every=1, save_every=2, trackers=())


def page(recipe: Any, **changes: Any) -> dict[str, Any]:
    from quintet.engine.config import to_json

    return {"settings": to_json(dataclasses.replace(recipe, **changes)), "global_batch": 2}


# -- settings that were changed by hand -----------------------------------------------------


def test_a_changed_setting_is_refused_by_name_with_both_values() -> None:
    with pytest.raises(RunError, match=r"width was 999 and is now \d+"):
        require_settings(Path("x"), page(RECIPE, width=999), RECIPE, 2)


def test_a_changed_global_batch_is_refused() -> None:
    with pytest.raises(RunError, match="global_batch was 2 and is now 4"):
        require_settings(Path("x"), page(RECIPE), RECIPE, 4)


@pytest.mark.parametrize(
    "free",
    [
        {"steps": 9},
        {"log_every": 3},
        {"data": "/moved"},
        {"init_from": "/moved"},
        {"device": "cpu"},
    ],
)
def test_what_changes_no_result_may_differ(free: dict[str, Any]) -> None:
    require_settings(Path("x"), page(RECIPE, **free), RECIPE, 2)


def test_checkpoints_without_settings_are_accepted() -> None:
    require_settings(Path("x"), {}, RECIPE, 2)


def test_a_run_with_an_edited_setting_does_not_resume(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(RECIPE, path)
    about = json.loads((path / "config.json").read_text())
    about["settings"]["width"] = 5
    (path / "config.json").write_text(json.dumps(about))
    changed = dataclasses.replace(RECIPE, width=5, steps=6)
    processes = Processes(changed, path, "resume")
    assert processes.wait() == [2]
    assert "width" in processes.said()
    assert steps_reported(path) == 4


# -- tensors of other forms -----------------------------------------------------------------

WEIGHT = torch.zeros(3, 2)
FILES = {"net": {"w": WEIGHT}, "net.optim": {"exp_avg/w": WEIGHT, "step/w": torch.zeros(())}}


def test_tensors_with_the_shapes_of_the_networks_are_accepted() -> None:
    checkpoint.require_forms(Path("x"), FILES, {"net": {"w": WEIGHT}, "net.optim": {}})


@pytest.mark.parametrize("file", ["net", "net.optim"])
@pytest.mark.parametrize(
    "bad", [WEIGHT.double(), WEIGHT.half(), WEIGHT.long(), WEIGHT.T.clone(), WEIGHT.reshape(6)]
)
def test_a_tensor_of_another_shape_or_type_is_refused_by_name(file: str, bad: Tensor) -> None:
    name = "w" if file == "net" else "exp_avg/w"
    files = {**FILES, file: {**FILES[file], name: bad}}
    with pytest.raises(RunError, match=f"{name} in {file}.safetensors is"):
        checkpoint.require_forms(Path("x"), files, {"net": {"w": WEIGHT}, "net.optim": {}})


# -- pages that say nothing that can be -----------------------------------------------------


@pytest.mark.parametrize("name", ["step", "samples", "seconds"])
@pytest.mark.parametrize("value", [None, "x", [], {}, float("nan"), float("inf")])
def test_an_invalid_position_is_an_error(name: str, value: Any) -> None:
    about = {"step": 4, "samples": 8, "seconds": 1.5, name: value}
    with pytest.raises(RunError, match="step, samples or seconds cannot be used"):
        checkpoint.position(Path("x"), about)


@pytest.mark.parametrize("name", ["step", "samples"])
@pytest.mark.parametrize("value", [-1, True, 2.5])
def test_counts_must_be_integers(name: str, value: Any) -> None:
    about = {"step": 4, "samples": 8, "seconds": 1.5, name: value}
    with pytest.raises(RunError, match="cannot be used"):
        checkpoint.position(Path("x"), about)


def test_a_checkpoint_under_the_name_of_another_step_is_damaged(tmp_path: Path) -> None:
    written = checkpoint.write(tmp_path, 4, {"net": {"w": WEIGHT}}, {})
    assert checkpoint.examine(written) is None
    moved = written.rename(tmp_path / "step-00000006")
    assert checkpoint.examine(moved) == "state.json says step 4"


# -- reports and what a kill leaves behind --------------------------------------------------


def test_invalid_lines_are_dropped_on_resume(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    odd = ['{"step": "six"}', '{"step": null}', '{"step": [6]}', "[" * 100_000, '{"message": 5}']
    folder.metrics.write_text("\n".join(['{"step": 1}', *odd, '{"step": 2}', '{"step": 3}']))
    folder.forget_after(2)
    assert read_lines(folder.metrics) == [{"step": 1}, {"step": 2}]


def test_only_partial_files_of_a_kill_are_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    shown = folder.exhibits / "step-00000005"
    shown.mkdir(parents=True)
    strays = [shown / ".a.png.17.writing", tmp_path / ".best.json.writing"]
    kept = [shown / "a.png", tmp_path / "best.json", tmp_path / ".mine", shown / ".hidden"]
    for file in (*strays, *kept):
        file.write_text("x")
    folder.forget_after(0)
    assert [file.exists() for file in strays] == [False, False]
    assert all(file.exists() for file in kept)


@pytest.mark.parametrize("value", [{}, {"step": "../.."}, {"step": 6}, {"step": 6, "value": "x"}])
def test_an_empty_best_json_is_an_error(tmp_path: Path, value: Any) -> None:
    (tmp_path / "best.json").write_text(json.dumps(value))
    with pytest.raises(RunError, match="lacks a step or a value; delete it"):
        RunFolder(tmp_path).best()


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_nan_in_json_is_an_error(tmp_path: Path, constant: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"settings": {constant}}}')
    with pytest.raises(RunError, match=f"JSON has no {constant}"):
        read_json(tmp_path / "config.json")
