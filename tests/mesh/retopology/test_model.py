"""Codes of meshes in order, and generation of meshes for points."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quintet.mesh import recipes
from quintet.mesh.data import BuiltinMeshes
from quintet.mesh.retopology.codes import codes_of, mesh_of
from quintet.mesh.retopology.model import Retopology, limits
from quintet.mesh.transformer.generator import Sampling, keep_order, precedes

SMALL: dict[str, Any] = {
    "bins": 16,
    "points": 64,
    "latents": 8,
    "point_layers": 1,
    "max_faces": 8,
    "dim": 32,
    "layers": 2,
    "heads": 2,
    "head_dim": 8,
    "fine_layers": 1,
    "fine_heads": 2,
    "fine_head_dim": 8,
}


def awake(end_bias: float = -50.0, **changes: Any) -> Retopology:
    """A model whose branches are not zero, which by default does not end a mesh."""
    torch.manual_seed(0)
    model = Retopology(**SMALL | changes)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    nn.init.constant_(model.transformer.end_head.bias, end_bias)
    return model.eval()


@pytest.fixture(scope="module")
def shape() -> tuple[np.ndarray, np.ndarray]:
    item = BuiltinMeshes(recipes.retopology_tiny().meshes, "train").keyed(2, None)
    return item["vertices"].numpy().astype(np.float64), item["faces"].numpy()


def cloud(seed: int, count: int = 64) -> Tensor:
    rng = np.random.default_rng(seed)
    normals = rng.normal(size=(count, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    rows = np.concatenate((normals * [0.9, 0.6, 0.3], normals), 1)
    return torch.from_numpy(rows.astype(np.float32))


def ordered(codes: Tensor) -> bool:
    codes = codes[codes[:, 0] >= 0]
    return bool(precedes(codes[:-1], codes[1:]).all())


# -- codes --------------------------------------------------------------------------------------


def test_a_mesh_has_one_sequence_of_codes_whatever_its_order(shape: Any) -> None:
    vertices, faces = shape
    codes = torch.from_numpy(codes_of(vertices, faces, 128))
    assert ordered(codes)
    assert len(codes) == len(faces)
    corners = codes.unflatten(1, (3, 3))
    for other in (1, 2):  # the first corner is the lowest
        assert precedes(corners[:, 0], corners[:, other]).all()
    rng = np.random.default_rng(0)
    moved = rng.permutation(len(vertices))
    renamed = np.argsort(moved)[faces[rng.permutation(len(faces))]]
    turned = np.stack([np.roll(face, rng.integers(3)) for face in renamed])
    assert np.array_equal(codes_of(vertices[moved], turned, 128), codes)


def test_codes_are_the_mesh_again_at_the_centres_of_its_cells(shape: Any) -> None:
    vertices, faces = shape
    mesh = mesh_of(torch.from_numpy(codes_of(vertices, faces, 128)), 128)
    assert len(mesh.faces) == len(faces)
    assert len(mesh.vertices) == len(vertices)
    corners = np.sort(mesh.vertices.numpy()[mesh.faces.numpy()].reshape(-1, 3), 0)
    original = np.sort(vertices[faces].reshape(-1, 3), 0)
    assert np.abs(corners - original).max() <= 1 / 128 + 1e-6
    # The same side is outside: areas have the same direction.
    area = lambda points, rows: np.cross(
        points[rows[:, 1]] - points[rows[:, 0]], points[rows[:, 2]] - points[rows[:, 0]]
    ).sum(0)
    volume = lambda points, rows: np.linalg.det(points[rows]).sum()
    assert np.abs(area(mesh.vertices.numpy(), mesh.faces.numpy())).max() < 0.1
    assert volume(mesh.vertices.numpy(), mesh.faces.numpy()) == pytest.approx(
        volume(vertices, faces), rel=0.1
    )


def test_faces_without_an_area_on_the_grid_and_repeated_ones_are_left_out() -> None:
    points = np.array([[0, 0, 0], [0.5, 0, 0], [0, 0.5, 0], [0.01, 0.01, 0]], float)
    faces = np.array([[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 3, 1]])
    codes = codes_of(points, faces, 16)
    assert len(codes) == 1
    assert np.array_equal(codes, codes_of(points, faces[:1], 16))


# -- order --------------------------------------------------------------------------------------


def test_the_order_leaves_exactly_the_faces_that_come_later() -> None:
    """Against a list of all faces on a small grid."""
    size = 2
    grid = torch.cartesian_prod(*[torch.arange(size)] * 6)
    corners = grid.unflatten(1, (2, 3))
    every = grid[precedes(corners[:, 0], corners[:, 1]) | (corners[:, 0] == corners[:, 1]).all(1)]
    previous = every[len(every) // 3]
    allowed = {tuple(row.tolist()) for row in every if bool(precedes(previous[None], row[None]))}
    reached: set[tuple[int, ...]] = set()

    def extend(face: list[int]) -> None:
        if len(face) == 6:
            reached.add(tuple(face))
            return
        before = [torch.tensor([token]) for token in face]
        logits = keep_order(torch.zeros(1, size), before, previous[None], 6, 3)
        for token in (logits[0] == 0).nonzero()[:, 0].tolist():
            extend([*face, token])

    extend([])
    assert allowed <= reached
    # Beyond them only where nothing was left in order: behind the last of a prefix.
    assert len(reached - allowed) <= 2


def test_generated_faces_are_in_order() -> None:
    model = awake(bins=64)
    points = torch.stack((cloud(0), cloud(1)))
    codes = model.generate_codes(points, torch.tensor([8, 8]), seed=1, temperature=0.2)
    assert all(ordered(rows[:4]) for rows in codes)
    assert codes.shape[1] > 8
    free = model.transformer.generate_codes(
        model.transformer.encode_inputs(model.encode(points, torch.tensor([8, 8]), torch.zeros(2))),
        2,
        seed=1,
        temperature=0.2,
    )
    assert not all(ordered(rows[:4]) for rows in free)


def test_codes_of_several_digits_have_no_order() -> None:
    from quintet.mesh.transformer.model import MeshTransformer

    digits = MeshTransformer(
        dim=32, layers=1, heads=2, head_dim=8, codebook_size=6, levels=(2, 3), text="none"
    )
    with pytest.raises(ValueError, match="drop ordered"):
        digits.generate_codes(None, 1, ordered=True)
    assert not Sampling().ordered


# -- generation ---------------------------------------------------------------------------------


def test_a_mesh_does_not_depend_on_its_batch() -> None:
    model = awake(end_bias=-2.0)
    points = torch.stack([cloud(seed) for seed in range(3)])
    wished = torch.tensor([8, 20, 0])
    together = model.generate_codes(points, wished, seed=4, temperature=1.0)
    alone = model.generate_codes(points[:1], wished[:1], seed=4, temperature=1.0)
    length = int((alone[0, :, 0] >= 0).sum())
    assert torch.equal(together[0, :length], alone[0, :length])
    assert (together[0, length:] == -1).all()


def test_a_long_mesh_goes_on_from_window_to_window() -> None:
    model = awake()
    wished = torch.tensor([30, 3])
    codes = model.generate_codes(torch.stack((cloud(0), cloud(1))), wished, seed=2, temperature=1.0)
    lengths = (codes[..., 0] >= 0).sum(1)
    assert torch.equal(lengths, limits(wished, model.max_faces))
    assert lengths.tolist() == [55, 19]


def test_what_is_told_changes_what_is_attended_to() -> None:
    model, points = awake(), cloud(0)[None]
    encode = lambda faces, first: model.encode(
        points, torch.tensor([faces]), torch.tensor([first])
    )[0, -1]
    seen = [encode(0, 0), encode(0, 4), encode(100, 0), encode(200, 0), encode(200, 100)]
    for index, one in enumerate(seen):
        assert all(not torch.allclose(one, other) for other in seen[:index])


def test_faces_to_keep_are_in_the_mesh() -> None:
    model = awake(end_bias=0.0)
    faces = torch.randint(16, (20, 9), generator=torch.Generator().manual_seed(0))
    kept = torch.stack(sorted(faces, key=lambda row: row.tolist()))[None]
    codes = model.generate_codes(
        cloud(0)[None], torch.tensor([40]), kept=kept, seed=2, temperature=1.0
    )[0]
    rows = [row.tolist() for row in codes]
    places = [rows.index(face.tolist()) for face in kept[0]]
    assert places == sorted(places)
    assert len(codes) > len(kept[0])


def test_the_mesh_is_in_the_units_of_the_points() -> None:
    model = awake(end_bias=-3.0)
    points = cloud(0, 200).numpy().astype(np.float64)
    (vertices, faces), *others = model.retopologise(points, 20, count=3, seed=1, temperature=1.0)
    assert len(others) == 2
    centre = np.array([1e6, -2e6, 5.0])
    far = np.concatenate((points[:, :3] * 1000 + centre, points[:, 3:]), 1)
    (moved, same), *_ = model.retopologise(far, 20, count=3, seed=1, temperature=1.0)
    assert np.array_equal(same, faces)
    np.testing.assert_allclose(moved, vertices * 1000 + centre, atol=0.01)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (np.zeros((10, 6)), "at one place"),
        (np.full((10, 6), np.nan), "not finite"),
        (np.zeros((10, 4)), r"\(n, 3\), or \(n, 6\)"),
        (np.zeros((0, 6)), r"\(n, 3\), or \(n, 6\)"),
    ],
)
def test_points_that_are_no_surface_are_refused(points: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        awake().retopologise(points)


def test_a_part_from_elsewhere_is_refused() -> None:
    far = (np.eye(3) * 100, np.array([[0, 1, 2]]))
    with pytest.raises(ValueError, match="same units"):
        awake().retopologise(cloud(0).numpy(), keep=far)


def test_the_loss_of_a_batch_is_that_of_its_meshes() -> None:
    from quintet.mesh.transformer.data import pack

    model = awake()
    rng = torch.Generator().manual_seed(0)
    codes = [torch.randint(16, (n, 9), generator=rng, dtype=torch.int32) for n in (3, 8)]
    points, faces = torch.stack((cloud(0), cloud(1))), torch.tensor([3, 11])
    first = torch.tensor([0, 3])

    def sums(rows: list[int]) -> Tensor:
        packed = pack([codes[row] for row in rows], 8, 1)
        parts = points[rows], faces[rows], first[rows]
        return model(packed["codes"].long(), packed["lengths"], *parts).loss_sum

    torch.testing.assert_close(sums([0, 1]), torch.cat((sums([0]), sums([1]))))
