"""Measures of retopology on known answers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.media.meshes.remesh import voxel_remesh
from quintet.mesh import shapes
from quintet.mesh.geometry import BINS, undiscretise
from quintet.mesh.retopology.measures import compare, exact_faces, nearest
from quintet.mesh.solids import Loft, part_mesh

HALF = 2**0.5 / 2
CUBE = part_mesh(Loft(4, ((0, 0, -0.5, HALF, HALF), (0, 0, 0.5, HALF, HALF)), np.pi / 4))
SQUARE = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0.0]]), np.array([[0, 1, 2], [0, 2, 3]])


def test_a_mesh_against_itself_is_perfect():
    found = compare(CUBE, CUBE)
    assert found["chamfer"] < 1e-12
    assert found["hausdorff"] < 1e-12
    assert found["normal_consistency"] == pytest.approx(1)
    assert found == compare(CUBE, CUBE)
    assert found["faces"] == 12
    assert found["boundary"] == found["nonmanifold"] == 0
    # Half a square: 4 sqrt(3) * 0.5 / (1 + 1 + 2).
    assert found["aspect"] == pytest.approx(3**0.5 / 2)


@pytest.mark.by_default("0.02-1", "0.1-1000")
@pytest.mark.parametrize("scale", [1, 1000])
@pytest.mark.parametrize("distance", [0.02, 0.1])
def test_a_moved_cube_is_as_far_as_it_was_moved(distance, scale):
    """The side that stands out, the one inside, nearer to others at its border, and four strips."""
    moved = (CUBE[0] + [distance, 0, 0], CUBE[1])
    found = compare(*((each[0] * scale + 7, each[1]) for each in (moved, CUBE)))
    assert found["hausdorff"] == pytest.approx(distance, rel=1e-6)
    inside = (1 - (1 - 2 * distance) ** 3) / 6
    assert found["chamfer"] == pytest.approx((distance + inside + 2 * distance**2) / 6, rel=0.02)
    assert 0.8 < found["normal_consistency"] < 1


def test_parallel_squares_are_their_distance_apart():
    above = (SQUARE[0] + [0, 0, 0.25], SQUARE[1][:, ::-1])
    found = compare(above, SQUARE)
    for name in ("chamfer", "hausdorff"):
        assert found[name] == pytest.approx(0.25, rel=2e-3)
    assert found["normal_consistency"] == pytest.approx(1)
    assert found["boundary"] == pytest.approx(4 / 5)


def test_distances_to_dense_meshes_are_exact_too():
    half = np.linspace(0, 1, 60)
    vertices = np.stack([*np.meshgrid(half, half), np.zeros((60, 60))], -1).reshape(-1, 3)
    corner = (np.arange(59)[:, None] * 60 + np.arange(59)).reshape(-1)
    faces = np.concatenate(
        [[corner, corner + 1, corner + 61], [corner, corner + 61, corner + 60]], 1
    ).T
    assert compare(SQUARE, (vertices, faces), 1024)["hausdorff"] < 1e-9
    assert compare((vertices, faces), SQUARE, 1024)["faces"] == 2 * 59 * 59


def test_a_remesh_is_close_but_not_equal():
    mesh = shapes.build(shapes.compose(0))
    found = compare(voxel_remesh(*mesh, 32), mesh, 1024)
    assert 1e-4 < found["chamfer"] < 0.25 / 32
    assert found["normal_consistency"] > 0.85


def test_an_edge_of_three_faces_is_not_manifold():
    fan = np.array([[0, 1, 2], [0, 1, 3], [0, 1, 4]])
    vertices = np.array([[0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [-1, 0, 0.0]])
    found = compare((vertices, fan), CUBE, 256)
    assert found["nonmanifold"] == pytest.approx(1 / 7)
    assert found["boundary"] == pytest.approx(6 / 7)


@pytest.mark.parametrize("faces", [np.zeros((0, 3), int), np.zeros((2, 3), int)])
def test_a_mesh_without_area_is_a_point_in_the_middle(faces):
    found = compare((np.full((3, 3), 9.0), faces), CUBE)
    assert found["hausdorff"] == pytest.approx(0.75**0.5, rel=0.03)
    assert found["normal_consistency"] == found["aspect"] == 0
    assert found["faces"] == len(faces)


def test_nearest_agrees_with_all_distances():
    rng = np.random.default_rng(0)
    points, others = rng.random((700, 3)), rng.random((300, 3))
    apart = np.linalg.norm(points[:, None] - others, axis=2)
    found = np.take_along_axis(apart, nearest(points, others, 3), 1)
    np.testing.assert_allclose(found, np.sort(apart, 1)[:, :3], rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.randoms(use_true_random=False))
def test_exact_faces_ignore_order_and_rotation(number, rng):
    vertices, faces = shapes.build(shapes.compose(number))
    order = rng.sample(range(len(vertices)), len(vertices))
    place = np.argsort(order)
    rows = rng.sample(range(len(faces)), len(faces))
    turned = np.stack([np.roll(place[faces[row]], rng.randrange(3)) for row in rows])
    assert exact_faces((vertices[order], turned), (vertices, faces), BINS) == (1.0, True)
    kept = len(faces) // 2
    share, same = exact_faces((vertices[order], turned[:kept]), (vertices, faces), BINS)
    assert share == pytest.approx(kept / len(faces))
    assert not same
    assert exact_faces((vertices, faces), (vertices[order], turned[:kept]), BINS) == (1.0, False)


def test_exact_faces_are_of_the_same_bins_and_orientation():
    ids = np.array([[0, 0, 0], [5, 0, 0], [5, 5, 0], [0, 5, 9]])
    vertices = undiscretise(ids)
    faces = np.array([[0, 1, 2], [0, 2, 3]])
    within = vertices + 0.4 * 2 / BINS
    assert exact_faces((within, faces), (vertices, faces), BINS) == (1.0, True)
    assert exact_faces((vertices + 2 / BINS, faces), (vertices, faces), BINS) == (0.0, False)
    mirrored = faces.copy()
    mirrored[0] = mirrored[0, ::-1]
    assert exact_faces((vertices, mirrored), (vertices, faces), BINS) == (0.5, False)
    assert exact_faces((vertices, faces[:0]), (vertices, faces), BINS) == (0.0, False)
