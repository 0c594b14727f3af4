"""Remeshing from voxels: closed, close to the original, and what becomes of open sheets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quintet.media.meshes.points import sample_surface
from quintet.media.meshes.remesh import MAX_RESOLUTION, closest, voxel_remesh
from quintet.mesh import shapes
from quintet.mesh.solids import Loft, Torus, part_mesh

SHEET = np.array([[0, 0, 0], [2, 0, 0], [2, 1, 0], [0, 1, 0.0]]), np.array([[0, 1, 2], [0, 2, 3]])


def cube(half=1.0, centre=0.0):
    reach = half * np.sqrt(2)
    rings = (0, 0, -half, reach, reach), (0, 0, half, reach, reach)
    vertices, faces = part_mesh(Loft(4, rings, np.pi / 4))
    return vertices + centre, faces


def volume(vertices, faces):
    a, b, c = vertices[faces].swapaxes(0, 1)
    return (a * np.cross(b, c)).sum() / 6


def distances(points, mesh):
    """From each point to the surface, by comparing with every triangle."""
    vertices, faces = mesh
    pairs = np.repeat(points.T, len(faces), 1)
    triangles = np.tile(vertices[faces].transpose(1, 2, 0), len(points))
    apart = np.linalg.norm(pairs - closest(pairs, triangles), axis=0)
    return apart.reshape(len(points), -1).min(1)


def samples(mesh, count):
    return sample_surface(*mesh, count, np.random.default_rng(0)).points


def uses(faces):
    edges = np.sort(np.stack([faces, np.roll(faces, -1, 1)], -1).reshape(-1, 2), 1)
    return np.unique(edges, axis=0, return_counts=True)[1]


@pytest.mark.by_default("0", "3")
@pytest.mark.parametrize("number", [0, 3, 5])
def test_a_remesh_is_closed_and_within_half_a_voxel_of_the_original(number):
    vertices, faces = shapes.build(shapes.compose(number))
    mesh = voxel_remesh(vertices, faces, 32)
    voxel = np.ptp(vertices, axis=0).max() / 32
    assert len(mesh.faces) > 10 * len(faces)
    assert (uses(mesh.faces) % 2 == 0).all()
    there = distances(samples(mesh, 300), (vertices.astype(np.float64), faces))
    assert (there.mean() + distances(samples((vertices, faces), 60), mesh).mean()) / 2 < 0.2 * voxel
    assert there.max() < voxel


@pytest.mark.parametrize("resolution", [9, 24, 47])
def test_solids_keep_their_volume_and_face_outwards(resolution):
    for vertices, faces in (cube(), part_mesh(Torus(24, 12, 1.0, 0.4, 0.4))):
        found = volume(*voxel_remesh(vertices, faces, resolution))
        assert found == pytest.approx(volume(vertices, faces), rel=1 / resolution)


def test_vertices_lie_on_the_planes_of_a_solid_and_not_on_steps():
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    vertices, faces = cube()
    mesh = voxel_remesh(vertices @ turn, faces, 30)
    heights = np.abs(mesh.vertices @ turn.T)
    heights.sort(1)
    flat = heights[:, 1] < 0.8  # away from the edges of the cube
    assert flat.sum() > 500
    assert np.abs(heights[flat, 2] - 1).max() < 1e-4


def test_an_open_sheet_becomes_a_closed_shell_half_a_voxel_thick():
    for faces in (SHEET[1], SHEET[1][:, ::-1]):
        mesh = voxel_remesh(SHEET[0], faces, 20)
        assert (uses(mesh.faces) == 2).all()
        assert np.abs(mesh.vertices[:, 2]).max() == pytest.approx(0.025, rel=1e-3)
        assert 0 < volume(*mesh) == pytest.approx(2 * 0.05, rel=0.15)


def test_a_box_without_a_lid_is_a_shell_on_both_sides():
    vertices, faces = cube()
    open_box = faces[np.abs(vertices[faces][:, :, 2] - 1).max(1) > 0]
    mesh = voxel_remesh(vertices, open_box, 24)
    assert 0 < volume(*mesh) < 2.5  # of 8


def test_overlapping_parts_are_united_and_inner_walls_are_gone():
    outer, faces = cube()
    inner, _ = cube(0.5)
    shifted, _ = cube(1.0, np.array([1.0, 0, 0]))
    alone = voxel_remesh(outer, faces, 20)
    nested = voxel_remesh(np.concatenate([outer, inner]), np.concatenate([faces, faces + 8]), 20)
    np.testing.assert_array_equal(nested.faces, alone.faces)
    both = voxel_remesh(np.concatenate([outer, shifted]), np.concatenate([faces, faces + 8]), 24)
    assert volume(*both) == pytest.approx(12, rel=0.02)


def test_a_slit_narrower_than_a_voxel_is_closed():
    vertices, faces = cube()
    vertices = vertices[faces].reshape(-1, 3)  # every triangle by itself
    corners = vertices.reshape(-1, 3, 3)
    apart = (corners + 0.01 * (corners.mean(1, keepdims=True) - corners)).reshape(-1, 3)
    mesh = voxel_remesh(apart, np.arange(len(apart)).reshape(-1, 3), 16)
    assert volume(*mesh) == pytest.approx(8, rel=0.03)


def test_a_remesh_does_not_depend_on_place_or_unit():
    vertices, faces = shapes.build(shapes.compose(1))
    mesh = voxel_remesh(vertices, faces, 16)
    moved = voxel_remesh(vertices * 1024.0 + 4096, faces, 16)
    np.testing.assert_array_equal(mesh.faces, moved.faces)
    np.testing.assert_allclose(moved.vertices, mesh.vertices * 1024 + 4096, atol=1)


@pytest.mark.parametrize(
    ("vertices", "faces", "resolution", "words"),
    [
        (*SHEET, 1, "resolution is 1; take 2 to 320"),
        (*SHEET, MAX_RESOLUTION + 1, "resolution is 321"),
        (np.zeros((3, 3)), [[0, 1, 2]], 8, "no extent"),
        (np.full((3, 3), np.nan), [[0, 1, 2]], 8, "no extent"),
        (SHEET[0], np.zeros((0, 3), int), 8, "no extent"),
        ([[0, 0, 0], [1, 0, 0], [2, 0, 0]], [[0, 1, 2]], 8, "has an area"),
    ],
)
def test_what_cannot_be_remeshed_is_named(vertices, faces, resolution, words):
    with pytest.raises(ValueError, match=words):
        voxel_remesh(vertices, faces, resolution)


NUMBERS = st.integers(-20, 20).map(lambda number: number / 4)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, 3, elements=NUMBERS), arrays(np.float64, (3, 3), elements=NUMBERS))
def test_no_point_of_a_triangle_is_closer_than_the_closest(point, triangle):
    at = closest(point[:, None], triangle[..., None])[:, 0]
    u, v = np.meshgrid(np.linspace(0, 1, 41), np.linspace(0, 1, 41))
    inside = u + v <= 1
    u, v = u[inside][:, None], v[inside][:, None]
    grid = triangle[0] + u * (triangle[1] - triangle[0]) + v * (triangle[2] - triangle[0])
    nearest = np.linalg.norm(grid - point, axis=1).min()
    side = np.linalg.norm(triangle - np.roll(triangle, 1, 0), axis=1).max()
    found = np.linalg.norm(at - point)
    assert found <= nearest + 1e-9
    assert found >= nearest - side / 40 - 1e-9
    assert np.linalg.norm(grid - at, axis=1).min() <= side / 40 + 1e-6
