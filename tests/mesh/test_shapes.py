from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
import trimesh

from quintet.media.meshes.polygons import closedness
from quintet.mesh import agreement as judge
from quintet.mesh import shapes
from quintet.mesh.geometry import canonical, discretise, has_area, undiscretise

COUNT = 2000
judged = pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.slow)])
ON_LEGS = ("table", "stool", "chair", "bench", "bed")
Mesh = tuple[np.ndarray, np.ndarray]


@lru_cache(1)
def many() -> list[tuple[shapes.Shape, Mesh]]:
    composed = [shapes.compose(number) for number in range(COUNT)]
    return [(shape, shapes.build(shape)) for shape in composed]


def noisy(vertices: np.ndarray, seed: int) -> np.ndarray:
    """Every coordinate in its own bin, or in one of the two beside it."""
    noise = np.random.default_rng(seed).integers(-1, 2, vertices.shape)
    return undiscretise((discretise(vertices) + noise).clip(0, 127))


# -- shapes ---------------------------------------------------------------------------------


def test_a_shape_depends_on_nothing_but_its_number_and_the_seed():
    known = many()
    shapes.compose.cache_clear()
    for number in range(20):
        assert shapes.compose(number) == known[number][0]
        assert shapes.compose(number, seed=1) != known[number][0]


def test_no_two_meshes_are_alike():
    assert len({mesh[0].tobytes() for _, mesh in many()}) == COUNT
    assert len({discretise(mesh[0]).tobytes() for _, mesh in many()}) == COUNT


def test_meshes_are_small_and_of_every_kind():
    faces = [len(mesh[1]) for _, mesh in many()]
    assert min(faces) >= 8
    assert max(faces) <= shapes.MAX_FACES
    assert 70 < np.mean(faces) < 120
    kinds = Counter(shape.kind for shape, _ in many())
    assert kinds.keys() == shapes.KINDS.keys()
    assert min(kinds.values()) > 40


def test_a_limit_on_faces_is_kept_and_one_that_cannot_be_is_refused():
    assert all(len(shapes.build(shapes.compose(n, max_faces=16))[1]) <= 16 for n in range(30))
    with pytest.raises(ValueError, match="smallest built-in mesh has 8"):
        shapes.compose(0, max_faces=7)


def test_meshes_are_normalised_and_canonical():
    for _, (vertices, faces) in many()[:300]:
        assert vertices.dtype == np.float32
        assert faces.dtype == np.int64
        low, high = vertices.min(0), vertices.max(0)
        assert np.allclose(low + high, 0, atol=1e-6)
        assert np.isclose(high.max(), 0.95)
        points, ordered = canonical(vertices, faces)
        assert (points == vertices).all()
        assert (ordered == faces).all()


def test_meshes_survive_their_bins():
    for _, (vertices, faces) in many():
        cells = discretise(vertices)
        assert len(np.unique(cells, axis=0)) == len(cells)
        assert len(np.unique(np.sort(faces, 1), axis=0)) == len(faces)
        assert has_area(undiscretise(cells), faces).all()


def test_every_part_is_closed_and_faces_outwards():
    for _, (vertices, faces) in many()[:200]:
        mesh = trimesh.Trimesh(vertices.astype(np.float64), faces, process=False)
        for part in mesh.split(only_watertight=False):
            assert part.is_watertight
            assert part.is_winding_consistent
            assert part.volume > 0


def test_vertices_fill_the_space():
    vertices = np.concatenate([mesh[0] for _, mesh in many()])
    for axis in range(3):
        assert len(np.unique(discretise(vertices[:, axis]))) >= 120
    coarse = discretise(vertices, 24) @ (576, 24, 1)
    assert len(np.unique(coarse)) > 0.6 * 24**3


def test_the_caption_names_the_kind_and_the_number():
    for shape, _ in many():
        assert shape.kind in shape.caption.split()
        if shape.kind in ON_LEGS:
            assert judge.parse_caption(shape.caption).count is not None
            assert shape.caption.endswith("legs")
    assert len({shape.caption for shape, _ in many()}) > 200


def test_short_and_long_thin_and_thick_legs_look_so():
    lengths: dict[str, list[float]] = {}
    for shape, _ in many():
        if shape.kind == "table":
            leg, top = shape.parts[0], shape.parts[-1]
            assert isinstance(leg, shapes.Loft)
            assert isinstance(top, shapes.Loft)
            ring = leg.rings[1]
            legs = shape.caption.partition(" with ")[2].split()
            for word in legs[1:-1]:
                size = ring[2] if word in ("short", "long") else ring[3]
                lengths.setdefault(word, []).append(size)
    assert max(lengths["short"]) < min(lengths["long"])
    assert max(lengths["thin"]) < min(lengths["thick"])


# -- the judge ------------------------------------------------------------------------------


@judged
def test_the_judge_agrees_with_the_captions(count: int):
    agreed = [judge.agrees(shape.caption, *mesh) for shape, mesh in many()[:count]]
    assert np.mean(agreed) >= 0.98
    for shape, mesh in many()[: count // 3]:
        assert judge.read(*mesh) == judge.parse_caption(shape.caption)
        assert len(judge.parts(*mesh)) == len(shape.parts)


@judged
def test_the_judge_allows_for_a_bin_of_noise(count: int):
    agreed = [
        judge.agrees(shape.caption, noisy(vertices, number), faces)
        for number, (shape, (vertices, faces)) in enumerate(many()[:count])
    ]
    assert np.mean(agreed) >= 0.95


@judged
def test_the_judge_allows_for_small_cracks(count: int):
    """Here and there a corner is a bin away from the vertex it belongs to."""
    random, agreed = np.random.default_rng(0), []
    for shape, (vertices, faces) in many()[: count // 2]:
        cells = discretise(vertices)[faces]
        cells += (random.random(cells.shape) < 0.01) * random.integers(-1, 2, cells.shape)
        points, corners = np.unique(cells.reshape(-1, 3), axis=0, return_inverse=True)
        agreed.append(judge.agrees(shape.caption, undiscretise(points), corners.reshape(-1, 3)))
    assert np.mean(agreed) >= 0.95


@judged
def test_the_judge_refuses_captions_of_another_kind_or_number(count: int):
    accepted, captions = [], [shape.caption for shape, _ in many()]
    for number, (shape, (vertices, faces)) in enumerate(many()[:count]):
        true = judge.parse_caption(shape.caption)
        for other in (captions[(number * 7 + k) % COUNT] for k in (1, 2)):
            if judge.parse_caption(other) != true:
                accepted.append(judge.agrees(other, noisy(vertices, number), faces))
        if shape.kind in ON_LEGS:
            assert true.count is not None
            word = shapes.NUMBERS[true.count]
            wrong = shapes.NUMBERS[true.count + (1 if number % 2 else -1)]
            accepted.append(judge.agrees(shape.caption.replace(word, wrong), vertices, faces))
    assert len(accepted) > 1.6 * count
    assert np.mean(accepted) <= 0.02


def test_a_leg_less_is_seen():
    shape, (vertices, faces) = next(one for one in many() if "four legs" in one[0].caption)
    mesh = trimesh.Trimesh(vertices, faces, process=False)
    pieces = mesh.split(only_watertight=False)
    low = [piece for piece in pieces if piece.vertices[:, 2].min() < vertices[:, 2].min() + 0.01]
    rest = trimesh.util.concatenate([piece for piece in pieces if piece is not low[0]])
    assert judge.read(np.asarray(rest.vertices), np.asarray(rest.faces)) == judge.Reading(
        shape.kind, 3
    )


def test_noise_and_nothing_are_no_furniture():
    random = np.random.default_rng(0)
    kinds = []
    for _ in range(100):
        vertices = random.uniform(-1, 1, (40, 3))
        kinds.append(judge.read(vertices, random.integers(0, 40, (60, 3))).kind)
    assert kinds.count(None) >= 95
    assert judge.read(np.zeros((0, 3)), np.zeros((0, 3), np.int64)).kind is None
    assert judge.read(np.full((3, 3), np.nan), np.array([[0, 1, 2]])).kind is None
    assert not judge.agrees("a wish", *many()[0][1])


def test_valid_means_four_faces_with_an_area_none_twice():
    vertices = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [2, 0, 0]])
    solid = np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]])
    assert judge.valid(vertices, solid)
    assert closedness(solid) == 1
    assert not judge.valid(vertices, solid[:3])
    assert closedness(solid[:3]) == 0.5
    for wrong in ([0, 0, 1], [0, 1, 4], [1, 0, 2], [0, 1, 9], [0, 1, -1]):
        assert not judge.valid(vertices, np.array([*solid.tolist(), wrong]))
    assert all(judge.valid(*mesh) and closedness(mesh[1]) == 1 for _, mesh in many()[:300])
