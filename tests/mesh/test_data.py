import json
import pickle
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.media.errors import BadFile
from quintet.mesh.agreement import agrees, valid
from quintet.mesh.config import MeshDataConfig
from quintet.mesh.data import (
    BuiltinMeshes,
    Collate,
    MeshFolder,
    augmented,
    capacity,
    check,
    open_data,
    prepare,
    some_lengths,
)
from quintet.mesh.geometry import canonical, discretise, face_neighbours

SMALL = MeshDataConfig(max_faces=250, valid_limit=40, builtin_count=60)
SUFFIXES = ("obj", "ply", "stl", "glb", "off")


class Key:
    """Stands in for the engine's keys."""

    def __init__(self, sample: int) -> None:
        self.sample = sample

    def random(self, name: str) -> Random:
        return Random(f"{self.sample}/{name}")

    def numpy(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.sample, *name.encode()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for number in range(20):
        path = tmp_path / ("office_chair", "box")[number % 2]
        path.mkdir(exist_ok=True)
        mesh = trimesh.creation.box(random.uniform(1, 3, 3))
        mesh.export(path / f"{number:02}.{SUFFIXES[number % 5]}")
    trimesh.creation.box((1, 2, 3)).export(tmp_path / "alone.ply")
    (tmp_path / "notes.txt").write_text("x")
    rows = [{"file_name": "box/01.ply", "caption": "a crate"}]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def both(folder: Path, config: MeshDataConfig = SMALL) -> tuple[MeshFolder, MeshFolder]:
    return MeshFolder(folder, config, "train", 0), MeshFolder(folder, config, "valid", 0)


def names(data: MeshFolder) -> set[str]:
    return {data.name(i) for i in range(len(data))}


def equal(one: dict, other: dict) -> bool:
    same = [torch.equal(one[field], other[field]) for field in ("vertices", "faces")]
    return all(same) and one["text"] == other["text"]


# -- folders --------------------------------------------------------------------------------


def test_every_format_becomes_a_prepared_mesh_with_its_caption(folder):
    texts = {}
    for data in both(folder):
        for index in range(len(data)):
            sample = data.keyed(index, None)
            vertices, faces = sample["vertices"], sample["faces"]
            assert (vertices.dtype, faces.dtype) == (torch.float32, torch.int64)
            assert (vertices.shape, faces.shape) == ((8, 3), (12, 3))
            assert vertices.abs().max() == pytest.approx(0.95)
            points, ordered = canonical(vertices.numpy(), faces.numpy())
            assert (points == vertices.numpy()).all()
            assert (ordered == faces.numpy()).all()
            texts[data.name(index)] = sample["text"]
    assert len(texts) == 21
    assert texts.pop("box/01.ply") == "a crate"
    assert texts.pop("alone.ply") == ""
    assert {name.split("/")[0]: text for name, text in texts.items()} == {
        "office_chair": "office chair",
        "box": "box",
    }


def test_train_and_valid_share_no_mesh_and_the_seed_chooses(folder):
    train, valid_ = both(folder)
    assert not names(train) & names(valid_)
    assert len(train) + len(valid_) == 21
    assert len(valid_) >= 1
    config = MeshDataConfig(valid_fraction=0.5)
    held = {frozenset(names(MeshFolder(folder, config, "valid", seed))) for seed in range(3)}
    assert len(held) == 3


def test_a_damaged_mesh_is_met_when_it_is_read_and_by_check(folder):
    (folder / "box/01.ply").write_bytes(b"not a mesh")
    problems = dict(check(folder, SMALL))
    assert len(problems) == 21
    assert [path.name for path, problem in problems.items() if problem] == ["01.ply"]
    for data in both(folder):
        for index in range(len(data)):
            if data.name(index) == "box/01.ply":
                with pytest.raises(BadFile, match=r"01\.ply"):
                    data.keyed(index, None)


def test_folders_without_meshes_and_metadata_that_fits_none_are_refused(folder, tmp_path):
    (folder / "metadata.jsonl").write_text('{"file_name": "elsewhere/a.ply", "text": "x"}')
    with pytest.raises(BadFile, match="names none of its 21 meshes"):
        MeshFolder(folder, SMALL, "train", 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match=r"holds no meshes \(.obj, .ply"):
        MeshFolder(tmp_path / "empty", SMALL, "train", 0)
    with pytest.raises(ValueError, match="give 'train' or 'valid'"):
        open_data(None, SMALL, "test", 0)  # type: ignore[arg-type]


def test_a_mesh_past_the_limit_is_left_out_or_simplified(folder, capfd):
    before = both(folder)
    for number, size in enumerate((3, 3, 4)):
        trimesh.creation.icosphere(size).export(folder / f"ball{number}.ply")
    for data, same in zip(both(folder), before):
        assert names(data) == names(same), "in neither split, and the others have not moved"
    line = (
        f"{folder}: 3 of 24 meshes left out: more than max_faces = 250 (1,280 to 5,120); raise it"
    )
    assert capfd.readouterr().err.count(line) == 1, "both splits, one line"
    simplified = MeshDataConfig(max_faces=200, too_large="simplify", valid_fraction=0)
    data = MeshFolder(folder, simplified, "train", 0)
    sample = data.keyed([data.name(i) for i in range(len(data))].index("ball1.ply"), None)
    assert 50 < len(sample["faces"]) <= 200
    assert sample["vertices"].abs().max() == pytest.approx(0.95, abs=1e-3)


@pytest.mark.parametrize("cap", ["max_faces", "max_bytes", "max_file_faces"])
def test_a_folder_of_nothing_but_large_meshes_is_refused_with_the_setting(tmp_path, cap):
    trimesh.creation.icosphere(3).export(tmp_path / "ball.ply")
    with pytest.raises(BadFile, match=rf"none of its 1 meshes can be used: .* {cap} = 100 \("):
        MeshFolder(tmp_path, MeshDataConfig(**{cap: 100}), "train", 0)


def test_a_mesh_that_fits_once_its_faces_are_merged_is_used(tmp_path):
    box = trimesh.creation.box((1, 2, 3))
    doubled = trimesh.Trimesh(box.vertices, np.tile(box.faces, (30, 1)), process=False)
    for suffix in ("obj", "ply", "stl", "glb", "off"):
        doubled.export(tmp_path / f"box.{suffix}")
    data = MeshFolder(tmp_path, MeshDataConfig(max_faces=12, valid_fraction=0.001), "train", 0)
    assert len(data) == 4
    assert len(data.keyed(0, None)["faces"]) == 12


def test_what_is_passed_over_in_a_folder_is_said(folder, tmp_path_factory, capfd):
    other = tmp_path_factory.mktemp("other")
    trimesh.creation.box().export(other / "box.ply")
    (folder / "link.ply").symlink_to(other / "box.ply")
    for name in ("a.fbx", "b.fbx", "box/c.BLEND"):
        (folder / name).write_text("x")
    both(folder)
    said = capfd.readouterr().err
    assert said.count("left out, formats that are not read: 2 .fbx, 1 .blend") == 1
    assert said.count("left out, links that lead out of the folder: 1;") == 1


def test_headers_are_examined_once_and_again_when_a_file_changes(folder, monkeypatch):
    seen: list[str] = []
    examine = MeshFolder.examine
    counting = lambda self, path: seen.append(path.name) or examine(self, path)
    monkeypatch.setattr(MeshFolder, "examine", counting)
    both(folder)
    assert len(seen) == 21, "both splits share one index"
    trimesh.creation.icosphere(3).export(folder / "alone.ply")
    assert "alone.ply" not in names(MeshFolder(folder, SMALL, "train", 0))
    assert seen[21:] == ["alone.ply"]
    MeshFolder(folder, MeshDataConfig(max_faces=2000), "train", 0)
    assert len(seen) == 43, "another range is another index"


def test_formats_with_y_up_are_turned_unless_told_otherwise(tmp_path):
    trimesh.creation.box((1, 3, 2)).export(tmp_path / "tall.obj")
    for upright, sides in ((True, (1, 2, 3)), (False, (1, 3, 2))):
        config = MeshDataConfig(upright=upright)
        vertices = MeshFolder(tmp_path, config, "train", 0).keyed(0, None)["vertices"]
        extent = vertices.amax(0) - vertices.amin(0)
        assert torch.allclose(extent, torch.tensor(sides) * 1.9 / 3)


# -- preparing ------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 30), st.integers(1, 60), st.sampled_from([3, 4]))
def test_what_is_prepared_is_clean_centred_and_fills_the_space(seed, points, count, corners):
    random = np.random.default_rng(seed)
    vertices = random.normal(5, 40, (points, 3)).round(-1)
    faces = random.integers(0, points, (count, corners))
    try:
        actual = prepare(vertices, faces, SMALL)
    except ValueError:
        return  # no face has an area: told apart below
    cells = discretise(actual[0])
    assert len(np.unique(cells, axis=0)) == len(cells)
    assert len(np.unique(np.sort(actual[1], 1), axis=0)) == len(actual[1])
    assert set(actual[1].ravel()) == set(range(len(actual[0])))
    assert valid(*actual) or len(actual[1]) < 4
    low, high = actual[0].min(0), actual[0].max(0)
    assert np.abs(low + high).max() < 0.05
    assert (high - low).max() == pytest.approx(1.9, abs=0.05)


def test_stray_vertices_and_lost_faces_do_not_shrink_the_mesh():
    box = trimesh.creation.box((2, 2, 2))
    far = np.array([[900.0, 0, 0], [900, 0, 1], [900, 0, 2]])
    for faces in (box.faces, np.concatenate([box.faces, [[8, 9, 10]]])):
        vertices, kept = prepare(np.concatenate([box.vertices, far]), faces, SMALL)
        assert (vertices.shape, kept.shape) == ((8, 3), (12, 3))
        assert np.abs(vertices).min() == pytest.approx(0.95)


def test_what_cannot_be_prepared_is_explained():
    line = np.arange(9.0).reshape(3, 3)
    with pytest.raises(ValueError, match="none of its 1 faces has an area"):
        prepare(line, np.array([[0, 1, 2]]), SMALL)
    with pytest.raises(ValueError, match="not finite"):
        prepare(line * np.nan, np.array([[0, 1, 2]]), SMALL)


# -- augmentation ---------------------------------------------------------------------------


def test_a_sample_is_a_function_of_its_key(folder):
    for data in (both(folder)[0], BuiltinMeshes(SMALL, "train")):
        again, other = data.keyed(0, Key(1)), data.keyed(0, Key(2))
        assert equal(data.keyed(0, Key(1)), again)
        assert not torch.equal(again["vertices"], other["vertices"])
        assert equal(data.keyed(0, None), data.keyed(0, None))


def test_each_part_of_the_augmentation_does_what_it_says():
    box = prepare(*_box((4, 4, 2)), SMALL)[0]

    def look(**changes: float) -> np.ndarray:
        config = MeshDataConfig(**{"scale": 0.0, "shift": 0.0, "rotation": 0.0, **changes})
        return augmented(box, Key(3), config)

    assert look() is box
    moved = look(shift=0.04)
    assert np.allclose(moved - box, (moved - box)[0], atol=1e-6)
    assert 0 < np.abs(moved - box).max() < 0.04
    turned = look(rotation=180.0)
    sides = np.linalg.norm(turned[:, None, :2] - turned[None, :, :2], axis=-1)
    ratio = np.ptp(turned[:, 2]) / sides.max()
    assert ratio == pytest.approx(2 / np.hypot(4, 4), abs=1e-5)
    assert np.abs(turned[:, :2]).max() == pytest.approx(0.95)
    stretched = np.ptp(look(scale=0.3), axis=0)
    assert stretched.max() == pytest.approx(1.9)
    assert abs(stretched[0] / stretched[1] - 1) > 0.01
    assert augmented(box, None, MeshDataConfig(scale=0.5)) is box


def _box(sides: tuple[float, float, float]) -> tuple[np.ndarray, np.ndarray]:
    mesh = trimesh.creation.box(sides)
    return np.asarray(mesh.vertices), np.asarray(mesh.faces)


def test_augmented_meshes_stay_inside_valid_and_true_to_their_caption():
    config = MeshDataConfig(max_faces=250, scale=0.1, shift=0.045, rotation=180, builtin_count=150)
    data = BuiltinMeshes(config, "train")
    agreed = []
    for index in range(len(data)):
        sample = data.keyed(index, Key(index))
        vertices, faces = sample["vertices"].numpy(), sample["faces"].numpy()
        assert np.abs(vertices).max() < 1
        assert valid(vertices, faces)
        assert len(np.unique(discretise(vertices), axis=0)) == len(vertices)
        agreed.append(agrees(sample["text"], vertices, faces))
    assert np.mean(agreed) > 0.97


def test_a_mesh_is_prepared_once_and_then_the_same(folder):
    source, again = (MeshFolder(folder, SMALL, "train", 0) for _ in range(2))
    first = [source.keyed(0, key) for key in (None, Key(1), Key(2))]
    again.keyed(0, None)
    again.path(0).unlink()
    for key, one in zip((None, Key(1), Key(2)), first):
        other = again.keyed(0, key)
        assert torch.equal(one["vertices"], other["vertices"])
        assert torch.equal(one["faces"], other["faces"])
        other["vertices"].zero_()  # a copy: the next epoch has it unchanged


def test_variants_are_fixed_and_number_zero_is_the_mesh_itself(folder):
    for data in (both(folder)[0], BuiltinMeshes(SMALL, "train")):
        assert equal(data.variant(2, 0), data.keyed(2, None))
        seen = [data.variant(2, number) for number in range(4)]
        assert all(equal(data.variant(2, k), seen[k]) for k in range(4))
        assert len({sample["vertices"].numpy().tobytes() for sample in seen}) == 4


def test_the_digest_follows_content_and_settings(folder):
    data = both(folder)[0]
    digests = [data.digest(i) for i in range(len(data))]
    assert len(set(digests)) == len(data)
    assert [both(folder)[0].digest(i) for i in range(len(data))] == digests
    other = both(folder, MeshDataConfig(max_faces=250, scale=0.2))[0]
    assert other.digest(0) != digests[0]
    path = folder / data.name(0)
    trimesh.creation.box((7, 1, 1)).export(path)
    assert data.digest(0) != digests[0]
    path.unlink()
    with pytest.raises(BadFile, match="cannot be read"):
        data.digest(0)
    builtin, held = BuiltinMeshes(SMALL, "train"), BuiltinMeshes(SMALL, "valid")
    assert len({one.digest(i) for one in (builtin, held) for i in range(30)}) == 60
    assert BuiltinMeshes(SMALL, "train", seed=1).digest(0) != builtin.digest(0)


# -- built-in data --------------------------------------------------------------------------


def test_builtin_meshes_are_all_different_in_both_splits():
    data = [BuiltinMeshes(SMALL, "train"), BuiltinMeshes(SMALL, "valid")]
    meshes = [one.keyed(i, None)["vertices"].numpy() for one in data for i in range(len(one))]
    assert len({vertices.tobytes() for vertices in meshes}) == 100


def test_builtin_meshes_depend_on_nothing_but_split_and_index():
    held = BuiltinMeshes(SMALL, "valid")
    assert equal(held.keyed(7, None), open_data(None, SMALL, "valid", seed=123).keyed(7, None))
    assert BuiltinMeshes(SMALL, "valid", seed=1).shape(7) != held.shape(7)
    assert held.name(7) == "built-in valid mesh 7"
    with pytest.raises(IndexError, match="mesh 40 of 40"):
        held.shape(40)


def test_builtin_meshes_keep_the_limit_on_faces():
    data = BuiltinMeshes(MeshDataConfig(max_faces=60, builtin_count=40), "train")
    assert max(len(data.keyed(i, None)["faces"]) for i in range(40)) <= 60


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_faces", 7),
        ("valid_fraction", 1.0),
        ("valid_limit", 0),
        ("scale", 1.0),
        ("shift", 0.05),
        ("rotation", 181.0),
    ],
)
def test_settings_that_cannot_work_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        MeshDataConfig(**{field: value})


def test_open_data_chooses_and_caps(folder):
    config = MeshDataConfig(valid_fraction=0.5, valid_limit=3, builtin_count=7)
    assert len(open_data(folder, config, "valid", 0)) == 3
    assert isinstance(open_data(folder, config, "train", 0), MeshFolder)
    assert [len(open_data(None, config, split, 0)) for split in ("train", "valid")] == [7, 3]


# -- batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1, 256])
def test_a_batch_is_packed_in_whole_units(unit):
    data = BuiltinMeshes(SMALL, "train")
    items = [data.keyed(i, Key(i)) for i in range(5)]
    collate = pickle.loads(pickle.dumps(Collate(250, 3, unit)))
    batch = collate(items)
    faces, vertices = (sum(len(item[name]) for item in items) for name in ("faces", "vertices"))
    sizes = [(-(-count // unit) * unit) for count in (faces, vertices)]
    assert batch["faces"].shape == (1, sizes[0], 3)
    assert batch["neighbours"].shape == (1, sizes[0], 8)
    assert batch["vertices"].shape == (1, sizes[1], 3)
    assert batch["faces"].dtype == batch["neighbours"].dtype == torch.int32
    assert batch["text"] == [data.shape(i).caption for i in range(5)]
    row = vertex = 0
    for item, lengths in zip(items, batch["lengths"].tolist()):
        count, points = lengths
        assert lengths == [len(item["faces"]), len(item["vertices"])]
        mine = batch["faces"][0, row : row + count] - vertex
        assert torch.equal(mine.long(), item["faces"])
        assert torch.equal(batch["vertices"][0, vertex : vertex + points], item["vertices"])
        table = batch["neighbours"][0, row : row + count].long()
        assert torch.equal(torch.where(table >= 0, table - row, -1), face_neighbours(mine))
        assert ((table >= 0).sum(1) >= 3).all()
        row, vertex = row + count, vertex + points
    assert (batch["faces"][0, row:] == -1).all()
    assert (batch["neighbours"][0, row:] == -1).all()
    assert (batch["vertices"][0, vertex:] == 0).all()


def test_the_rows_of_a_batch_follow_from_some_meshes_and_hold_nearly_all_batches():
    data = BuiltinMeshes(SMALL, "train")
    known = some_lengths(data, 0)
    rows = capacity(known, 16)
    assert rows % 64 == 0
    lengths = [len(data.keyed(i, None)["faces"]) for i in range(len(data))]
    draw = np.random.default_rng(0)
    totals = draw.choice(lengths, (2000, 16)).sum(1)
    assert (totals > rows).mean() < 0.002
    assert totals.mean() > 0.5 * rows
    assert capacity([7] * 9, 3) == 64
    assert capacity(lengths, 16, window=64) < rows


def test_quads_and_numpy_arrays_are_taken():
    quads = np.array([[0, 1, 2, 3], [2, 3, 4, 5], [6, 7, 8, 9]])
    item = {"vertices": np.zeros((10, 3)), "faces": quads}
    batch = Collate(4, 4)([item])
    assert batch["neighbours"][0, :, 0].tolist() == [1, 0, -1]
    assert batch["text"] == [""]


@pytest.mark.parametrize(
    ("vertices", "faces", "reason"),
    [
        (6, [[0, 1, 2, 3]], r"shape \(1, 4\), not \(faces, 3\)"),
        (6, [[0, 1, 2]] * 3, "3 faces, more than max_faces = 2"),
        (7, [[0, 1, 2]], "`vertices` holds 7"),
        (3, [[0, 1, 3]], "names vertex 3 of 3"),
    ],
)
def test_samples_that_fit_no_batch_are_explained(vertices, faces, reason):
    with pytest.raises(ValueError, match=reason):
        Collate(2, 3)([{"vertices": torch.zeros(vertices, 3), "faces": faces}])
