"""Cracks of generated meshes are closed, and nothing else is changed."""

import numpy as np
import pytest

from quintet.media.meshes.points import sample_surface
from quintet.mesh import shapes
from quintet.mesh.agreement import valid
from quintet.mesh.retopology.measures import compare, structure
from quintet.mesh.retopology.ranking import best_first, distance, open_share
from quintet.mesh.retopology.seams import mended, spacing

BINS = 128
SHAPES = [shapes.build(shapes.compose(number)) for number in range(6)]


def on_grid(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A closed mesh with vertices in the middle of cells, and points of its surface."""
    vertices, faces = SHAPES[number]
    cells = np.floor((np.asarray(vertices, np.float64) + 1) * BINS / 2)
    vertices = (cells + 0.5) * 2 / BINS - 1
    return vertices, faces, sample_surface(vertices, faces, 4096, np.random.default_rng(1)).points


def cracked(
    vertices: np.ndarray, faces: np.ndarray, seed: int, moved: float, lost: float
) -> tuple[np.ndarray, np.ndarray]:
    """Some corners in a cell beside that of their vertex, and some faces left out."""
    rng = np.random.default_rng(seed)
    corners = vertices[faces[rng.random(len(faces)) >= lost]].reshape(-1, 3)
    rows = rng.random(len(corners)) < moved
    corners[rows] += rng.integers(-1, 2, (rows.sum(), 3)) * 2 / BINS
    places, numbers = np.unique(np.round(corners, 6), axis=0, return_inverse=True)
    return places, numbers.reshape(-1, 3)


@pytest.mark.by_default("0", "3")
@pytest.mark.parametrize("number", range(6))
def test_a_closed_mesh_remains_as_it_is(number: int) -> None:
    vertices, faces, points = on_grid(number)
    same, rows = mended(vertices, faces, points, BINS)
    np.testing.assert_array_equal(same[rows], vertices[faces])


@pytest.mark.by_default("0", "3")
@pytest.mark.parametrize("number", range(6))
def test_cracks_and_missing_faces_are_closed(number: int) -> None:
    vertices, faces, points = on_grid(number)
    broken = cracked(vertices, faces, number, 0.08, 0.04)
    whole = mended(*broken, points, BINS)
    before, after = structure(*broken), structure(*whole)
    assert before["boundary"] > 0.2
    assert after["boundary"] < 0.2 * before["boundary"]
    assert after["nonmanifold"] <= before["nonmanifold"]
    assert {*map(tuple, whole[0].tolist())} <= {*map(tuple, broken[0].tolist())}
    assert compare(whole, (vertices, faces), 512)["chamfer"] < 1.5 / BINS
    assert abs(len(whole[1]) / len(faces) - 1) < 0.1
    assert valid(*whole) or not valid(*broken)


def test_faces_of_a_hole_face_outwards() -> None:
    vertices, faces, points = on_grid(1)
    for left_out in (1, 2):
        same, rows = mended(vertices, faces[left_out:], points, BINS)
        corners = same[rows]
        volume = np.linalg.det(corners - points.mean(0)).sum() / 6
        whole = np.linalg.det(vertices[faces] - points.mean(0)).sum() / 6
        assert structure(same, rows)["boundary"] == 0
        assert volume == pytest.approx(whole, rel=0.05)


def test_an_opening_of_the_surface_stays_open() -> None:
    vertices, faces, _ = on_grid(1)
    kept = faces[2:]
    points = sample_surface(vertices, kept, 4096, np.random.default_rng(0)).points
    _, rows = mended(vertices, kept, points, BINS)
    assert len(rows) == len(kept)


def test_corners_that_are_far_apart_are_not_merged() -> None:
    square = np.array([[0, 0, 0], [0.9, 0, 0], [0, 0.9, 0], [0.9, 0.9, 0], [0.9, 0, 0]])
    faces = np.array([[0, 1, 2], [3, 2, 4]])
    points = sample_surface(square, faces, 512, np.random.default_rng(0)).points
    for cells, left in ((2, 4), (3, 5)):  # no back is made for it
        square[4, 2] = cells * 2 / BINS
        vertices, rows = mended(square, faces, points, BINS)
        assert (len(vertices), len(rows)) == (left, 2)
    empty = mended(square, faces[:0], points, BINS)
    assert (empty[0].shape, empty[1].shape) == ((0, 3), (0, 3))


def test_a_gap_without_area_is_left() -> None:
    vertices = np.array([[0, 0, 0], [0.8, 0, 0], [0.4, 0.4, 0], [0.4, -0.4, 0], [0.4, 0, 0]])
    faces = np.array([[0, 1, 2], [0, 3, 4], [4, 3, 1]])  # one edge opposite to two
    assert len(mended(vertices, faces, vertices, BINS)[1]) == 3


def test_the_spacing_of_points_is_that_of_a_grid() -> None:
    grid = np.stack(np.meshgrid(*[np.arange(10.0)] * 3), -1).reshape(-1, 3)
    assert spacing(grid * 0.2) == pytest.approx(0.2)


def test_tries_are_in_the_order_of_distance_and_of_open_edges() -> None:
    vertices, faces, points = on_grid(2)
    far, opened = vertices * [0.6, 1, 1], faces[1:]
    assert distance(vertices, faces, points) < 0.04 < distance(far, faces, points)
    tries = [(far, faces), (vertices, opened), (vertices, faces[:0]), (vertices, faces)]
    order = [
        next(i for i, other in enumerate(tries) if other is each)
        for each in best_first(tries, points)
    ]
    assert order == [3, 1, 0, 2]
    assert open_share(faces) == 0
    assert open_share(opened) == pytest.approx(3 / (3 * len(faces) / 2))
