import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
import torch
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quintet.mesh.geometry import (
    canonical,
    corner_angles,
    discretise,
    face_areas,
    face_neighbours,
    face_normals,
    has_area,
    neighbours_from_edges,
    normalised,
    undiscretise,
    weld,
)


def grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    """A bent sheet of 2 * size * size triangles."""
    number = np.arange((size + 1) ** 2).reshape(size + 1, size + 1)
    quads = [number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]]
    corners = np.stack(quads, -1).reshape(-1, 4)
    faces = np.concatenate([corners[:, :3], corners[:, [0, 2, 3]]])
    x, y = np.divmod(np.arange((size + 1) ** 2), size + 1)
    return np.stack([x, y, np.sin(x + 2 * y)], 1) / (size / 2) - 1, faces


# -- bins -----------------------------------------------------------------------------------

coordinates = arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1, 1, width=32))


@given(coordinates, st.sampled_from([2, 24, 100, 128, 576]))
def test_a_coordinate_comes_back_within_half_a_bin(x, bins):
    ids = discretise(torch.from_numpy(x), bins)
    assert ids.dtype == torch.int64
    assert ((ids >= 0) & (ids < bins)).all()
    back = undiscretise(ids, bins).numpy()
    assert np.abs(back - x).max() <= 1 / bins + 1e-6
    assert torch.equal(discretise(torch.from_numpy(back), bins), ids)
    assert (discretise(x, bins) == ids.numpy()).all()
    assert (undiscretise(ids.numpy(), bins) == back).all()


def test_the_outer_bins_hold_what_lies_outside():
    x = torch.tensor([-9.0, -1.0, -0.01, 0.0, 1.0, 70.0])
    assert discretise(x, 10).tolist() == [0, 0, 4, 5, 9, 9]


# -- adjacency ------------------------------------------------------------------------------


def by_definition(faces: np.ndarray) -> list[list[int]]:
    sets = [set(face) if min(face) >= 0 else set() for face in faces.tolist()]
    return [
        [j for j, other in enumerate(sets) if j != i and len(one & other) >= 2]
        for i, one in enumerate(sets)
    ]


def padded(lists: list[list[int]], width: int) -> list[list[int]]:
    return [(row + [-1] * width)[:width] for row in lists]


# Few vertices, so that faces repeat, fold onto themselves and meet many others at one edge.
faces_of = st.sampled_from([3, 4]).flatmap(
    lambda corners: arrays.arrays(
        np.int64, st.tuples(st.integers(0, 25), st.just(corners)), elements=st.integers(-1, 8)
    )
)


@given(faces_of, st.integers(1, 30))
def test_neighbours_are_the_faces_that_share_two_vertices(faces, width):
    expected = by_definition(faces)
    assert face_neighbours(faces, width).tolist() == padded(expected, width)
    pairs = [[i, j] for i, row in enumerate(expected) for j in row]
    edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    mixed = torch.cat([edges.flip(0), torch.tensor([[-1, -1], [0, 0]])])
    if len(faces):
        actual = neighbours_from_edges(mixed, len(faces), width)
        assert actual.tolist() == padded(expected, width)


def test_a_batch_is_linked_mesh_by_mesh_on_the_device_it_is_on():
    one, other = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([[0, 1, 2], [-1, -1, -1]])
    actual = face_neighbours(torch.stack([one, other]), 2)
    assert actual.tolist() == [[[1, -1], [0, -1]], [[-1, -1], [-1, -1]]]
    edges = torch.tensor([[[0, 1], [1, 0]], [[-1, -1], [-1, -1]]])
    assert torch.equal(neighbours_from_edges(edges, 2, 2), actual)


def test_quads_on_a_cube_have_four_neighbours():
    box = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
    table = face_neighbours(np.array(box))
    assert ((table >= 0).sum(1) == 4).all()


def test_an_edge_of_a_face_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="refers to face 5 of 3"):
        neighbours_from_edges(torch.tensor([[0, 5]]), 3)


LARGE = """
import resource, numpy as np
from quintet.mesh.geometry import face_neighbours
fan = np.stack([np.zeros(100_000, int), np.ones(100_000, int), np.arange(2, 100_002)], 1)
n = 224
number = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
rows = [number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]]
quads = np.stack(rows, -1).reshape(-1, 4)
sheet = np.concatenate([quads[:, :3], quads[:, [0, 2, 3]]])
face_neighbours(sheet[:10])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = face_neighbours(sheet)
around = face_neighbours(fan)
used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(len(sheet), (table >= 0).sum(), (around >= 0).all(), used)
"""


@pytest.mark.slow
def test_a_hundred_thousand_faces_are_linked_in_little_memory():
    # A fan of faces around a single edge included: its pairs alone would be ten thousand million.
    run = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, timeout=120, check=True
    )
    count, links, full, megabytes = run.stdout.split()
    inner = 3 * 224 * 224 - 2 * 224
    assert (int(count), int(links), full) == (2 * 224 * 224, 2 * inner, "True")
    assert float(megabytes) < 500


# -- order ----------------------------------------------------------------------------------


@st.composite
def small_meshes(draw):
    corners = draw(st.sampled_from([3, 4]))
    cells = draw(
        arrays.arrays(np.int64, (draw(st.integers(corners, 12)), 3), elements=st.integers(0, 127))
    )
    cells = np.unique(cells, axis=0)
    choose = list(combinations(range(len(cells)), corners))
    if not choose:
        return draw(small_meshes())
    faces = draw(st.lists(st.sampled_from(choose), min_size=1, max_size=12, unique=True))
    return undiscretise(cells), np.array(faces)


@settings(deadline=None)
@given(small_meshes(), st.randoms(use_true_random=False))
def test_the_canonical_order_forgets_the_order_given(mesh, random):
    vertices, faces = mesh
    order = list(range(len(vertices)))
    random.shuffle(order)
    shuffled = np.empty_like(vertices)
    shuffled[order] = vertices
    turned = [np.roll([order[v] for v in face], random.randrange(4)) for face in faces.tolist()]
    random.shuffle(turned)
    one, other = canonical(vertices, faces), canonical(shuffled, np.array(turned))
    assert (one[0] == other[0]).all()
    assert (one[1] == other[1]).all()


@settings(deadline=None)
@given(small_meshes())
def test_the_canonical_order_is_the_same_mesh_in_order(mesh):
    vertices, faces = mesh
    points, ordered = canonical(vertices, faces)
    keys = [tuple(row[::-1]) for row in points.tolist()]
    assert keys == sorted(set(keys))
    assert set(ordered.ravel()) == set(range(len(points)))
    assert (ordered[:, 0] == ordered.min(1)).all()
    assert ordered.tolist() == sorted(ordered.tolist())

    def turns(points, faces):
        rows = [tuple(map(tuple, points[face].tolist())) for face in faces]
        return sorted(min(row[k:] + row[:k] for k in range(len(row))) for row in rows)

    assert turns(vertices, faces) == turns(points, ordered)


def test_rounding_noise_within_a_bin_reorders_nothing():
    vertices, faces = grid(5)
    centres = undiscretise(discretise(normalised(vertices)))
    noise = np.random.default_rng(0).uniform(-1e-3, 1e-3, centres.shape).astype(np.float32)
    assert (canonical(centres, faces)[1] == canonical(centres + noise, faces)[1]).all()


def test_normalised_meshes_are_centred_and_fill_the_longest_side():
    points = normalised(np.random.default_rng(0).normal(3, 5, (30, 3)) * (1, 2, 9))
    low, high = points.min(0), points.max(0)
    assert np.allclose(low + high, 0)
    assert np.allclose(high.max(), 0.95)
    assert np.isfinite(normalised(np.ones((4, 3)))).all()


def test_welding_merges_cells_and_drops_what_collapses():
    vertices = np.array([[0, 0, 0], [0.001, 0, 0], [0.5, 0, 0], [0, 0.5, 0], [0.25, 0, 0]])
    faces = np.array([[0, 2, 3], [1, 3, 2], [0, 1, 3], [0, 4, 2], [2, 2, 3]])
    points, kept = weld(vertices, faces)
    assert len(points) == 4
    assert (points[kept] == vertices[[[0, 2, 3]]]).all()
    assert weld(vertices, faces[:0])[1].shape == (0, 3)


def test_area_is_asked_of_quads_and_triangles():
    vertices = np.array([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0], [0, 1, 0]])
    assert has_area(vertices, np.array([[0, 1, 4], [0, 1, 2]])).tolist() == [True, False]
    assert has_area(vertices, np.array([[0, 1, 2, 4], [0, 1, 2, 3]])).tolist() == [True, False]


# -- angles, areas, normals -----------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_angles_areas_and_normals_are_those_of_trimesh(seed):
    corners = np.random.default_rng(seed).uniform(-1, 1, (20, 3, 3))
    mesh = trimesh.Trimesh(corners.reshape(-1, 3), np.arange(60).reshape(-1, 3), process=False)
    ours = torch.from_numpy(corners)
    assert np.allclose(corner_angles(ours), mesh.face_angles, atol=1e-9)
    assert np.allclose(face_areas(ours), mesh.area_faces, atol=1e-9)
    assert np.allclose(face_normals(ours), mesh.face_normals, atol=1e-9)


def test_a_quad_has_its_four_angles_and_its_whole_area():
    square = torch.tensor([[[0.0, 0, 0], [2, 0, 0], [2, 1, 0], [0, 1, 0]]])
    assert torch.allclose(corner_angles(square), torch.full((1, 4), torch.pi / 2))
    assert face_areas(square).tolist() == [2]
    assert face_normals(square).tolist() == [[0, 0, 1]]
    bent = torch.rand(50, 4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(face_areas(bent), face_areas(bent.roll(1, 1)), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("corners", [3, 4])
def test_degenerate_and_padded_faces_are_finite_forwards_and_backwards(dtype, corners):
    point = torch.zeros(corners, 3)
    line = torch.arange(corners).float()[:, None] * torch.tensor([1.0, 2, 3])
    twice = torch.eye(4)[:corners, :3].clone()
    twice[1] = twice[0]
    hair = torch.eye(4)[:corners, :3] * 1e-9
    faces = torch.stack([point, line, twice, hair]).to(dtype).requires_grad_()
    for function in (corner_angles, face_areas, face_normals):
        faces.grad = None
        actual = function(faces)
        assert actual.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        actual.sum().backward()
        assert actual.isfinite().all()
        assert faces.grad is not None
        assert faces.grad.isfinite().all()
    assert corner_angles(faces)[0].abs().max() == 0
    assert face_normals(faces)[:2].abs().max() == 0
