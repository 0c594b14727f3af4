"""What an evaluation of retopology measures."""

from dataclasses import replace

import numpy as np
import torch

from quintet.engine.task import Batch
from quintet.mesh import recipes
from quintet.mesh.retopology.task import RetopologyTask


def test_the_original_is_exact_and_a_mesh_without_a_part_is_not() -> None:
    task = RetopologyTask(recipes.retopology_tiny())
    source = task.data("valid")
    batch = task.collate([source.keyed(index, None) for index in range(3)])
    rows = batch["codes"].split(batch["lengths"].tolist())
    originals = [codes[codes[:, 0] >= 0].long() for codes in rows]
    most = max(map(len, originals)) + 2
    generated = torch.full((3, most, 9), -1)
    for row, codes in zip(generated, originals):
        row[: len(codes)] = codes
    values = task._compare(generated, originals)
    assert {n: v.values.tolist() for n, v in values.items() if n in ("valid", "exact")} == {
        "valid": [1.0] * 3,
        "exact": [1.0] * 3,
    }
    assert values["face_error"].values.sum() == 0
    assert values["chamfer"].values.max() < 2  # of samples of the same surface, in percent
    generated[0, 2:] = -1  # two faces are left
    generated[1] = originals[1][:1]  # one face, many times, and no end
    values = task._compare(generated, originals)
    assert values["exact"].values.tolist() == [0.0, 0.0, 1.0]
    assert values["valid"].values.tolist() == [0.0, 0.0, 1.0]
    assert values["chamfer"].values[0] > 5
    assert values["hausdorff"].values[0] > values["chamfer"].values[0]


def test_the_loss_with_other_points_is_that_of_shifted_points() -> None:
    task = RetopologyTask(recipes.retopology_tiny())
    task.device = torch.device("cpu")
    for parameter in task.model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    items = [task.data("valid").keyed(index, None) for index in range(3)]
    nets = {"retopology": task.model.eval()}
    with torch.no_grad():
        own = task.measure(nets, Batch(task.collate(items), [900, 901, 902], torch.zeros(3)))
    assert {"loss", "loss_other_points", "accuracy", "end_accuracy"} == set(own)
    moved = [{**a, "points": b["points"]} for a, b in zip(items, items[-1:] + items[:-1])]
    with torch.no_grad():
        other = task.measure(nets, Batch(task.collate(moved), [900, 901, 902], torch.zeros(3)))
    torch.testing.assert_close(own["loss_other_points"].total, other["loss"].total)
    assert own["loss"].total != other["loss"].total


def test_batches_of_a_fixed_size_are_measured_and_shown_as_others() -> None:
    recipe = recipes.retopology_tiny()
    few = {"max_faces": 16, "dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "fine_heads": 2}
    recipe = replace(recipe, model=replace(recipe.model, **few))
    recipe = replace(recipe, meshes=replace(recipe.meshes, max_faces=8))
    task = RetopologyTask(replace(recipe, generation=replace(recipe.generation, count=2)))
    task.device = torch.device("cpu")
    items = [task.data("valid").keyed(index, None) for index in range(3)]
    nets = {"retopology": task.model.eval()}
    found = []
    for unit in (1, 64):  # rows of padding, as on a GPU
        task.unit = unit
        batch = Batch(task.collate(items), [0, 1, 2], torch.zeros(3))
        with torch.no_grad():
            [sheet] = task.exhibit(nets, batch)
            found.append((task.measure(nets, batch), sheet.rows))
    (own, rows), (padded, padded_rows) = found
    assert own["valid"].values.tolist() == padded["valid"].values.tolist()
    torch.testing.assert_close(own["chamfer"].values, padded["chamfer"].values)
    torch.testing.assert_close(own["loss"].total, padded["loss"].total)
    for row, other in zip(rows, padded_rows):
        for mesh, same in zip(row, other):
            np.testing.assert_array_equal(mesh[1], same[1])
