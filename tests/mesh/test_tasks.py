"""What the two tasks compute of a batch: losses, measures and things to look at."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness import lines
from quintet.engine.config import to_json
from quintet.engine.errors import RunError
from quintet.engine.keys import Key
from quintet.engine.machine.world import World
from quintet.engine.task import Batch, Rows, StepContext, Tally
from quintet.media.meshes.files import read_mesh
from quintet.media.pixels import read_image
from quintet.mesh.autoencoder.task import AutoencoderTask
from quintet.mesh.exhibits import MeshSheet, mesh_of_corners
from quintet.mesh.measures import chamfer, nearest, surface_points
from quintet.mesh.transformer.config import GenerationConfig
from quintet.mesh.transformer.model import MeshLosses
from quintet.mesh.transformer.task import TransformerTask

TALLIES = ("exact", "within_one", "triangles")


def batch_of(task: Any, items: list[dict[str, Any]], epoch: int = 0) -> Batch:
    keys = [Key(0, epoch, index).fold("device") for index in range(len(items))]
    return Batch(task.collate(items), list(range(len(items))), torch.tensor(keys))


def value_of(found: Tally | Rows) -> float:
    if isinstance(found, Tally):
        return float(found.total) / float(found.count)
    return found.values.double().mean().item()


# -- the autoencoder --------------------------------------------------------------------------


@pytest.fixture
def measured(autoencoder_recipe: Callable, replaced: Callable, some_meshes: Callable) -> Callable:
    """What the untrained autoencoder with these settings gives on eight meshes."""

    def run(most: int = 16, count: int = 8, **model: Any) -> tuple[AutoencoderTask, dict]:
        recipe = replaced(autoencoder_recipe(), model=model, meshes={"max_faces": most})
        task = AutoencoderTask(recipe)
        nets = {"autoencoder": task.parts["autoencoder"].network.eval()}
        with torch.no_grad():
            return task, task.measure(nets, batch_of(task, some_meshes(count)))

    return run


def test_codes_finer_than_bins_bring_every_coordinate_back(measured: Callable) -> None:
    """Untrained: 24 x 24 steps for 128 bins, straight through."""
    task, actual = measured(levels=(24, 24, 24))
    assert [value_of(actual[name]) for name in TALLIES] == [1, 1, 1]
    summary = task.summarise({n: v.values for n, v in actual.items() if isinstance(v, Rows)})
    assert summary["chamfer_bins"] == 0


def test_codes_coarser_than_bins_lose_some_and_the_measures_say_so(measured: Callable) -> None:
    task, actual = measured(levels=(8, 8, 8))  # 64 steps for 128 bins: one bin off at most
    exact, near, whole = (value_of(actual[name]) for name in TALLIES)
    assert 0 <= whole < exact < 1
    assert near == 1
    _, coarse = measured(levels=(3, 3, 3))
    assert value_of(coarse["within_one"]) < near
    distances = [
        task.summarise({n: v.values for n, v in f.items() if isinstance(v, Rows)})["chamfer_bins"]
        for f in (actual, coarse)
    ]
    assert 0 < distances[0] < 3**0.5 < distances[1]


def test_padding_changes_no_measure(measured: Callable) -> None:
    (task, narrow), (_, wide) = measured(16, levels=(8, 8, 8)), measured(40, levels=(8, 8, 8))
    for name in TALLIES:
        assert narrow[name].count == wide[name].count
        assert narrow[name].total == wide[name].total
    rows = [
        {n: v.values for n, v in actual.items() if isinstance(v, Rows)} for actual in (narrow, wide)
    ]
    assert task.summarise(rows[0]) == pytest.approx(task.summarise(rows[1]), rel=1e-5)


def test_measures_of_a_whole_are_those_of_its_parts(
    measured: Callable, some_meshes: Callable
) -> None:
    task, whole = measured(levels=(8, 8, 8))
    nets = {"autoencoder": task.parts["autoencoder"].network.eval()}
    items = some_meshes(8)
    with torch.no_grad():
        parts = [task.measure(nets, batch_of(task, half)) for half in (items[:3], items[3:])]
    for name in TALLIES:
        assert sum(float(part[name].total) for part in parts) == float(whole[name].total)
        assert sum(float(part[name].count) for part in parts) == float(whole[name].count)
    together = torch.cat([part["chamfer_bins"].values for part in parts])
    assert torch.allclose(together, whole["chamfer_bins"].values, atol=1e-5)


def test_use_of_the_codebook_counts_codes_of_each_level_without_padding(
    autoencoder_recipe: Callable, replaced: Callable
) -> None:
    task = AutoencoderTask(replaced(autoencoder_recipe(), model={"levels": (2, 2, 2)}))
    # Two meshes of two faces of three corners, two levels; the second ends after one face.
    first = [[0, 0, 1, 0, 2, 0], [0, 0, 2, 0, 3, 1]]
    second = [[3, 1, 0, 0, 1, 0], [-1] * 6]
    codes = torch.tensor([first, second]).flatten(1)
    positions = torch.tensor([[0, 5, 9, 0, 9, 7], [7, 0, 5, -1, -1, -1]])
    rows = {"codes": codes, "positions": positions}
    rows |= {"loss": torch.tensor([1.0, 2.0]), "chamfer_bins": torch.zeros(2)}
    actual = task.summarise(rows)
    assert actual["codebook_usage_0"] == 4 / 8  # 0, 1, 2 and 3
    assert actual["codebook_usage_1"] == 2 / 8
    assert actual["codebook_usage"] == 3 / 8
    drawn = 1 - (7 / 8) ** 4  # of the codebook, by four positions
    assert actual["codebook_coverage"] == pytest.approx(3 / 8 / drawn)
    assert actual["vertices_per_code"] == 4 / 8  # (0 0) (1 0) (2 0) (3 1)
    assert actual["loss"] == 1.5


# -- the transformer --------------------------------------------------------------------------


@pytest.fixture
def task(transformer_recipe: Callable, autoencoder_model: Path) -> TransformerTask:
    recipe = transformer_recipe(autoencoder_model)
    output = TransformerTask(recipe)
    output.prepare(World(recipe))
    return output


class Listening:
    """The transformer, and which captions were withheld from it."""

    def __init__(self, network: Any) -> None:
        self.network, self.dropped = network, list[list[bool]]()

    def __call__(self, codes: Tensor, text: Any, mask: Any, drop: Tensor, lengths: Tensor) -> Any:
        self.dropped.append(drop.tolist())
        return self.network(codes, text, mask, drop, lengths)


def at(task: TransformerTask, samples: int) -> StepContext:
    return StepContext(0, 0, samples, World(task.recipe), torch.zeros(()))


def items_of(task: TransformerTask, *indices: int) -> list[dict[str, Any]]:
    codes = task.data("train")
    return [codes.keyed(index, None) for index in indices]


def keyed(task: TransformerTask, indices: list[int], epoch: int) -> Batch:
    keys = torch.tensor([Key(0, epoch, index).fold("device") for index in indices])
    return Batch(task.collate(items_of(task, *indices)), indices, keys)


def withheld(task: TransformerTask, batches: list[Batch]) -> list[list[bool]]:
    heard = Listening(task.model)
    with torch.no_grad():
        list(task.losses({"transformer": heard}, batches, at(task, sum(b.size for b in batches))))
    return heard.dropped


def test_a_caption_is_withheld_by_its_samples_key_alone(
    transformer_recipe: Callable, autoencoder_model: Path
) -> None:
    recipe = transformer_recipe(autoencoder_model, text_drop=0.5)
    task = TransformerTask(recipe)
    task.prepare(World(recipe))
    (whole,) = withheld(task, [keyed(task, list(range(16)), epoch=2)])
    halves = [keyed(task, list(range(0, 16, 2)), 2), keyed(task, list(range(1, 16, 2)), 2)]
    even, odd = withheld(task, halves)
    assert whole[::2] == even
    assert whole[1::2] == odd
    assert 2 < sum(whole) < 14
    (later,) = withheld(task, [keyed(task, list(range(16)), epoch=3)])
    assert later != whole


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_the_share_of_captions_withheld_is_the_recipes(
    share: float, transformer_recipe: Callable, autoencoder_model: Path
) -> None:
    recipe = transformer_recipe(autoencoder_model, text_drop=share)
    task = TransformerTask(recipe)
    task.device = torch.device("cpu")
    dropped: list[Tensor] = []

    def record(codes: Tensor, text: Any, mask: Any, drop: Tensor, lengths: Tensor) -> MeshLosses:
        dropped.append(drop)
        return MeshLosses(*torch.ones(6, len(lengths)))

    keys = [Key(0, epoch, sample).fold("device") for epoch in range(40) for sample in range(50)]
    meshes = {"codes": torch.zeros(2000, 6, dtype=torch.int32), "lengths": torch.ones(2000)}
    batch = Batch(meshes, list(range(2000)), torch.tensor(keys))
    list(task.losses({"transformer": record}, [batch], at(task, 2000)))
    assert dropped[0].float().mean().item() == pytest.approx(share, abs=0.025 if share % 1 else 0)


def test_every_code_of_a_step_weighs_the_same(task: TransformerTask) -> None:
    """A long mesh counts by its codes, whichever micro-batch it is in."""
    lengths = [
        len(task.data("train").keyed(i, None)["codes"]) for i in range(len(task.data("train")))
    ]
    long, short = lengths.index(max(lengths)), lengths.index(min(lengths))
    assert lengths[long] > lengths[short]
    other = next(i for i in range(32) if i not in (long, short))
    nets = {"transformer": task.model.eval()}
    cut = [[long, other], [short]]
    with torch.no_grad():
        batches = [keyed(task, indices, 0) for indices in cut]
        actual = list(task.losses(nets, batches, at(task, 3)))
        total = torch.stack([loss for loss, _ in actual]).sum()
        (whole,) = task.losses(nets, [keyed(task, [long, other, short], 0)], at(task, 3))
        alone = []
        for index in (long, other, short):
            batch = keyed(task, [index], 0)
            (loss, _) = next(task.losses(nets, [batch], at(task, 1)))
            alone.append(loss.item())
    weights = np.array([lengths[i] for i in (long, other, short)], float)
    expected = float(np.average(alone, weights=weights))
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert whole[0].item() == pytest.approx(expected, rel=1e-5)
    assert total.item() != pytest.approx(float(np.mean(alone)), rel=1e-6)
    # Reports are weighed by samples; together they are the loss of the step.
    reported = sum(m["loss"].item() * len(c) / 3 for (_, m), c in zip(actual, cut))
    assert reported == pytest.approx(expected, rel=1e-5)


def test_padding_of_codes_changes_no_measure(
    task: TransformerTask, transformer_recipe: Callable, autoencoder_model: Path, replaced: Callable
) -> None:
    recipe = replaced(
        transformer_recipe(autoencoder_model), meshes={"max_faces": 40}, generation={"count": 0}
    )
    wide = TransformerTask(recipe)
    wide.device = task.device
    wide.model.load_state_dict(task.model.state_dict())
    lengths = {n: len(task.data("train").codes_of(n)) for n in range(32)}
    # A mesh of max_faces decides nothing about its end; a wider task would.
    shorter = sorted((n for n in lengths if lengths[n] < 12), key=lengths.__getitem__)
    assert lengths[shorter[0]] < lengths[shorter[-1]]
    items = items_of(task, *shorter[:2], shorter[-1])
    rows = []
    for one in (task, wide):
        batch = Batch(one.collate(items), [101, 102, 103], torch.zeros(3, dtype=torch.int64))
        with torch.no_grad():
            rows.append(
                {
                    n: value_of(v)
                    for n, v in one.measure({"transformer": one.model.eval()}, batch).items()
                }
            )
    assert rows[0] == pytest.approx(rows[1], rel=1e-4)
    assert rows[0]["loss"] > 0


def test_captions_are_worth_something_only_if_they_are_read(task: TransformerTask) -> None:
    """Measured with and without them; a fresh model has not learned to look."""
    batch = keyed(task, [0, 1, 2], 0)
    with torch.no_grad():
        actual = task.measure({"transformer": task.model.eval()}, batch)
    assert math.isfinite(value_of(actual["loss_without_text"]))
    for name in ("valid", "closed", "faces_generated", "nearest_generated", "agrees"):
        assert len(actual[name].values) == 2  # generation.count
    assert value_of(actual["nearest_validation"]) < 0.2  # training meshes through their codes


def test_meshes_generated_for_a_caption_are_the_same_every_time(task: TransformerTask) -> None:
    once, again = (
        task.generate(["a box", "a cone"], seed=3),
        task.generate(["a box", "a cone"], seed=3),
    )
    assert torch.equal(once[0], again[0])
    for (v, f), (w, g) in zip(once[1], again[1]):
        assert np.array_equal(v, w)
        assert np.array_equal(f, g)


# -- a frozen text encoder --------------------------------------------------------------------


def embeddings(cache: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in (cache / "text-embeddings").glob("*.safetensors")}


def test_a_frozen_encoder_reads_each_caption_once(
    encoder: Path,
    autoencoder_model: Path,
    tmp_path: Path,
    cache: Path,
    train: Callable,
    transformer_recipe: Callable,
    replaced: Callable,
    cli: Callable,
) -> None:
    settings = {"text": "frozen", "text_dim": 12, "text_path": str(encoder), "text_length": 10}
    recipe = replaced(transformer_recipe(autoencoder_model, steps=2), model=settings)
    train(recipe, tmp_path / "run", measured=True)
    assert math.isfinite(lines(tmp_path / "run")[0]["transformer/loss"])
    before = embeddings(cache)
    assert len(before) == 1
    again = TransformerTask(recipe)
    again.prepare(World(recipe))
    assert embeddings(cache) == before
    actual = again.collate(
        [
            {"codes": torch.zeros(1, 6, dtype=torch.int32), "text": text}
            for text in (again.data("train").text(0), again.data("valid").text(0))
        ]
    )
    assert actual["text"].shape[2] == 12
    assert actual["mask"].any(1).all()
    arguments = ["sample", tmp_path / "run", "--text", "a box", "--count", 1]
    result = cli(*arguments, "--out", tmp_path / "out")
    assert result.status == 0, result.err


def test_a_frozen_encoder_that_is_not_there_or_does_not_fit_is_named(
    encoder: Path, autoencoder_model: Path, tmp_path: Path, cli: Callable
) -> None:
    arguments = ["train", "mesh/transformer_tiny", "--autoencoder", autoencoder_model]
    arguments += ["--meshes.builtin-count", 16, "--meshes.valid-limit", 2, "--workers", 0]
    arguments += [
        "--device",
        "cpu",
        "--trackers",
        "--run",
        tmp_path / "run",
        "--model.text",
        "frozen",
    ]
    assert "text_path" in cli(*arguments).sentence
    nowhere = tmp_path / "nowhere"
    assert str(nowhere) in cli(*arguments, "--model.text-path", nowhere).sentence
    wide = cli(*arguments, "--model.text-path", encoder, "--model.text-dim", 99).sentence
    assert "text_dim" in wide
    assert "12" in wide
    assert not (tmp_path / "run").exists()


def test_no_text_at_all_is_a_choice(
    autoencoder_model: Path,
    tmp_path: Path,
    train: Callable,
    transformer_recipe: Callable,
    replaced: Callable,
    cli: Callable,
) -> None:
    recipe = replaced(transformer_recipe(autoencoder_model, steps=1), model={"text": "none"})
    train(recipe, tmp_path / "run", measured=True)
    out = ["--count", 1, "--out", tmp_path / "out"]
    assert "--text" in cli("sample", tmp_path / "run", "--text", "a box", *out).sentence
    assert cli("sample", tmp_path / "run", *out).status == 0
    assert to_json(recipe)["model"]["text"] == "none"


# -- measures ---------------------------------------------------------------------------------


def whole(points: Tensor) -> Tensor:
    return torch.ones(points.shape[:2], dtype=torch.bool)


def test_chamfer_is_the_mean_way_to_the_nearest_point_both_ways() -> None:
    a = torch.tensor([[[0.0, 0, 0], [1, 0, 0]]])
    b = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [1, 3, 4]]])
    # From a: 0 and 0. From b: 0, 0 and 5.
    assert chamfer(a, b, whole(a), whole(b)).tolist() == pytest.approx([(0 + 5 / 3) / 2])
    assert chamfer(b, a, whole(b), whole(a)).tolist() == pytest.approx([(0 + 5 / 3) / 2])
    assert chamfer(a, a + 0.25, whole(a), whole(a)).item() == pytest.approx(0.25 * 3**0.5)


def test_chamfer_does_not_see_what_is_masked() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 3), torch.randn(2, 7, 3)
    in_a, in_b = whole(a), whole(b)
    in_a[1, 3:] = in_b[0, 2:] = False
    actual = chamfer(a, b, in_a, in_b)
    for row in range(2):
        x, y = a[row][in_a[row]][None], b[row][in_b[row]][None]
        assert actual[row].item() == pytest.approx(
            chamfer(x, y, whole(x), whole(y)).item(), rel=1e-6
        )


def test_chamfer_of_tiny_distances_is_exact() -> None:
    a = torch.full((1, 4, 3), 100.0) + torch.arange(4)[None, :, None] * 10
    assert chamfer(a, a, whole(a), whole(a)).item() == 0
    near = chamfer(a, a + 2**-10, whole(a), whole(a)).item()
    assert near == pytest.approx(2**-10 * 3**0.5, rel=1e-3)


def test_the_nearest_is_the_nearest() -> None:
    torch.manual_seed(0)
    known = torch.randn(5, 16, 3)
    actual = nearest(torch.stack([known[3], known[1] + 0.01, known[0] + 100]), known)
    assert actual[0] == 0
    assert actual[1].item() == pytest.approx(0.01 * 3**0.5, rel=1e-3)
    assert actual[2] > 50
    assert nearest(known[:0], known).shape == (0,)


def test_points_are_spread_by_area_and_lie_on_the_surface() -> None:
    # A large square at z = 0 and, of a quarter of its area, one at z = 1.
    square = np.array([[0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0]], float)
    small = square / 2 + [0, 0, 1]
    faces = np.array([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]])
    points = surface_points(np.concatenate([square, small]), faces, count=4000)
    assert points.shape == (4000, 3)
    assert set(np.unique(points[:, 2])) == {0.0, 1.0}
    assert (points[:, 2] == 0).mean() == pytest.approx(0.8, abs=0.03)
    assert points[points[:, 2] == 0][:, :2].mean(0) == pytest.approx([1, 1], abs=0.06)
    assert points.min() >= 0
    assert points[:, :2].max() <= 2
    assert (points[points[:, 2] == 1][:, :2] <= 1).all()
    assert np.array_equal(points, surface_points(np.concatenate([square, small]), faces, 4000))


@pytest.mark.parametrize("faces", [np.zeros((0, 3), int), np.array([[0, 0, 1]])])
def test_a_mesh_without_area_still_has_finite_points(faces: np.ndarray) -> None:
    points = surface_points(np.array([[0.5, 0, 0], [1, 0, 0]]), faces, 6)
    assert points.shape == (6, 3)
    assert np.isfinite(points).all()


# -- things to look at ------------------------------------------------------------------------


def test_corners_in_one_place_are_one_vertex() -> None:
    corners = torch.tensor(
        [[[0.0, 0, 0], [1, 0, 0], [0, 1, 0]], [[1, 0, 0], [1, 1, 0], [0, 1, 0]], [[9.0] * 3] * 3]
    )
    vertices, faces = mesh_of_corners(corners, torch.tensor([True, True, False]))
    assert vertices.shape == (4, 3)
    assert faces.shape == (2, 3)
    assert np.array_equal(vertices[faces], corners[:2].numpy())
    vertices, faces = mesh_of_corners(corners, torch.zeros(3, dtype=torch.bool))
    assert (vertices.shape, faces.shape) == ((0, 3), (0, 3))


def test_a_sheet_is_written_with_a_file_for_each_mesh(
    tmp_path: Path, tetrahedron: tuple[np.ndarray, np.ndarray]
) -> None:
    points, faces = tetrahedron
    nothing = (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.int64))
    rows = [[(points, faces), (points * 0.5, faces)], [(points, faces[:2]), nothing]]
    sheet = MeshSheet("pairs", rows, ["validation", "generated"], ["a ☃ chair", ""])
    paths = sheet.write(tmp_path)
    assert paths[-1] == tmp_path / "pairs.png"
    assert read_image(paths[-1]).std() > 0
    assert all(path.stat().st_size for path in paths)
    upright = read_mesh(tmp_path / "pairs-0-validation.glb", upright=True)
    assert np.allclose(upright.vertices, points, atol=1e-5)
    assert np.array_equal(upright.faces, faces)
    half = read_mesh(tmp_path / "pairs-0-generated.glb", upright=True)
    assert np.allclose(half.vertices, points / 2, atol=1e-5)


def test_exhibits_of_both_stages_open_again(
    autoencoder_run: Path, train: Callable, transformer_recipe: Callable, tmp_path: Path
) -> None:
    train(transformer_recipe(autoencoder_run), tmp_path / "run", measured=True)
    for run, names in (
        (autoencoder_run, {"original", "reconstruction"}),
        (tmp_path / "run", {"validation"}),
    ):
        meshes = sorted((run / "exhibits/step-00000004").glob("*.glb"))
        assert meshes
        sound = [path for path in meshes if any(path.stem.endswith(name) for name in names)]
        assert len(sound) == 2 * len(names)
        for path in sound:
            vertices, faces = read_mesh(path)
            assert len(faces) >= 4
            assert np.abs(vertices).max() <= 1


def test_a_transformer_without_its_stage_is_refused_by_the_engine(
    train: Callable, transformer_recipe: Callable, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=r"--autoencoder to a run of .*mesh/autoencoder"):
        train(transformer_recipe(None), tmp_path / "run")


def test_fixed_shapes_change_no_measure_and_no_loss(
    transformer_recipe: Callable, autoencoder_recipe: Callable, autoencoder_model: Path
) -> None:
    """Batches of a GPU have rows that belong to no mesh, and captions of one length."""
    of_codes = transformer_recipe(autoencoder_model, generation=GenerationConfig(count=0))
    for kind, recipe in ((AutoencoderTask, autoencoder_recipe()), (TransformerTask, of_codes)):
        values, shapes = [], []
        for fixed in (False, True):
            task: Any = kind(recipe)
            task.prepare(World(recipe))
            task.fixed_shapes = fixed
            source = task.data("train")
            task.plan(source)
            batch = batch_of(task, [source.keyed(i, None) for i in range(recipe.batch_size)])
            nets = {name: part.network.eval() for name, part in task.parts.items()}
            with torch.no_grad():
                loss, _ = next(task.updates[0].losses(nets, [batch], at(task, batch.size)))
                rows = task.measure(nets, batch)
            values.append([loss.item(), *map(value_of, rows.values())])
            shapes.append({n: v.shape for n, v in batch.data.items() if isinstance(v, Tensor)})
        assert shapes[0] != shapes[1]
        assert values[0] == pytest.approx(values[1], rel=1e-5)
