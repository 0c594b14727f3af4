import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from quintet.media.meshes.render import PAPER, render
from quintet.media.sheets import contact_sheet

CUBE = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float64)
QUADS = np.array(
    [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
)
SIDES = np.concatenate([QUADS[:, [0, 1, 2]], QUADS[:, [0, 2, 3]]])
PLAIN = {"edges": False, "shadow": False}


def covered(picture: np.ndarray) -> np.ndarray:
    return (picture != PAPER).any(axis=-1)


def wall(depth: float, half: float) -> np.ndarray:
    """A square that faces a viewer at azimuth 0 and elevation 0, so far from them."""
    sides = ((-half, -half), (half, -half), (half, half), (-half, half))
    return np.array([(x, depth, z) for x, z in sides])


def test_a_square_from_the_front_covers_the_expected_pixels():
    """By hand: radius sqrt 2, eye 4.5 radii away, and the ball of radius 1 just fits 96 %."""
    seen = covered(render(wall(0, 1), [[0, 1, 2, 3]], 200, 0, 0, **PLAIN))
    half = 100 * 0.96 * np.sqrt(4.5**2 - 1) / 4.5 / np.sqrt(2)
    rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    for found in (rows, columns):
        assert abs(found[0] - (100 - half)) < 1.01
        assert abs(found[-1] + 1 - (100 + half)) < 1.01
    assert seen[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()


def test_a_box_has_a_silhouette_of_six_corners_without_holes():
    seen = covered(render(CUBE, SIDES, 200, **PLAIN))
    for line in (*seen, *seen.T):
        at = np.flatnonzero(line)
        assert at.size == 0 or at[-1] - at[0] + 1 == at.size
    assert 0.35 < seen.mean() < 0.65


def test_three_sides_of_a_box_have_three_shades():
    picture = render(CUBE, SIDES, 128, **PLAIN)
    colours, counts = np.unique(picture[covered(picture)], axis=0, return_counts=True)
    large = colours[counts > 300].astype(int)
    assert len(large) == 3
    brightness = np.sort(large.sum(axis=1))
    assert (np.diff(brightness) > 40).all()


def test_the_nearer_face_hides_the_farther_in_either_order():
    vertices = np.concatenate([wall(1, 1), wall(-1, 0.5)])
    tilted = vertices.copy()
    tilted[4:, 1] += [-0.2, 0.2, 0.2, -0.2]
    without_area = [0, 0, 2, 2]  # keeps the frame of both faces
    alone = render(tilted, [without_area, [4, 5, 6, 7]], 100, 0, 0, **PLAIN)
    both = [
        render(tilted, faces, 100, 0, 0, **PLAIN)
        for faces in ([[0, 1, 2, 3], [4, 5, 6, 7]], [[4, 5, 6, 7], [0, 1, 2, 3]])
    ]
    np.testing.assert_array_equal(both[0], both[1])
    inner = covered(alone)
    inner[1:-1, 1:-1] &= inner[2:, 1:-1] & inner[:-2, 1:-1] & inner[1:-1, 2:] & inner[1:-1, :-2]
    np.testing.assert_array_equal(both[0][inner], alone[inner])
    from_behind = render(tilted, [[0, 1, 2, 3], [4, 5, 6, 7]], 100, 180, 0, **PLAIN)
    assert len(np.unique(from_behind[covered(from_behind)], axis=0)) < 20
    assert not np.array_equal(from_behind[50, 50], alone[50, 50])


def test_faces_that_cut_through_each_other_are_split_where_they_meet():
    cross = np.array([[-1, -1, -1], [1, 1, -1], [1, 1, 1], [-1, -1, 1]], np.float64)
    other = cross * [1, -1, 1]
    faces = [[0, 1, 2, 3], [4, 5, 6, 7]]
    picture = render(np.concatenate([cross, other]), faces, 100, 0, 0, **PLAIN).astype(int)
    assert not np.array_equal(picture[50, 25], picture[50, 75])
    assert np.array_equal(picture[50, 25], picture[50, 45])
    assert np.array_equal(picture[50, 55], picture[50, 75])


def test_the_last_coordinate_is_up_and_azimuth_turns_to_the_right():
    spike = [[-0.1, 0, 0], [0.1, 0, 0], [0, 0, 2]]
    rows = np.flatnonzero(covered(render(spike, [[0, 1, 2]], 64, 0, 0, **PLAIN)).any(axis=1))
    width = covered(render(spike, [[0, 1, 2]], 64, 0, 0, **PLAIN)).sum(axis=1)
    assert rows[0] < 8
    assert width[rows[-1]] > width[rows[0]]
    flag = np.concatenate([wall(0, 1), [[2, 0, 0]]])
    seen = covered(render(flag, [[0, 1, 2, 3], [1, 4, 2, 2]], 64, 0, 0, **PLAIN))
    mirrored = covered(render(flag, [[0, 1, 2, 3], [1, 4, 2, 2]], 64, 180, 0, **PLAIN))
    np.testing.assert_array_equal(seen, mirrored[:, ::-1])
    front, right = render(CUBE, SIDES, 64, 0, 0), render(CUBE * [1, 3, 1], SIDES, 64, 90, 0)
    assert covered(right).any(axis=0).sum() > covered(front).any(axis=0).sum()


def test_turning_changes_the_picture_and_moving_or_scaling_does_not():
    vertices = CUBE * [1, 2, 0.5]
    first = render(vertices, SIDES, 64)
    assert not np.array_equal(first, render(vertices, SIDES, 64, azimuth=80))
    assert not np.array_equal(first, render(vertices, SIDES, 64, elevation=60))
    for other in (vertices * 1024 + 4096, vertices / 1024):
        near = np.abs(render(other, SIDES, 64).astype(int) - first).max(axis=-1) > 8
        assert near.mean() < 0.002
    np.testing.assert_array_equal(first, render(vertices, SIDES, 64))


def test_both_sides_of_a_face_are_lit():
    np.testing.assert_array_equal(
        render(CUBE, SIDES, 64, **PLAIN), render(CUBE, SIDES[:, ::-1], 64, **PLAIN)
    )


def test_edges_show_the_triangles_and_quads_have_no_diagonal():
    bare, triangles, quads = (
        render(CUBE, faces, 128, shadow=False, edges=edges).astype(int).sum()
        for faces, edges in ((SIDES, False), (SIDES, True), (QUADS, True))
    )
    assert bare > quads > triangles
    inked = render(wall(0, 1), [[0, 1, 2, 3]], 64, 0, 0, shadow=False)[12:-12, 12:-12]
    assert len(np.unique(inked.reshape(-1, 3), axis=0)) == 1
    np.testing.assert_array_equal(
        render(CUBE, QUADS, 64, **PLAIN), render(CUBE, SIDES, 64, **PLAIN)
    )


def test_a_shadow_lies_on_the_ground():
    raised = np.concatenate(
        [CUBE + np.array([0, 0, 3]), [[-1, -1, -1], [-0.99, -1, -1], [-1, -0.99, -1]]]
    )
    faces = np.concatenate([SIDES, [[8, 9, 10]]])
    with_shadow, without = render(raised, faces, 128), render(raised, faces, 128, shadow=False)
    changed = (with_shadow != without).any(axis=-1)
    assert changed[64:].sum() > 100
    assert not changed[:40].any()
    assert (with_shadow <= without).all()


NOTHING = np.zeros((0, 3))


@pytest.mark.parametrize(
    ("vertices", "faces"),
    [
        (NOTHING, NOTHING),
        ([], []),
        (CUBE, np.zeros((0, 0))),
        (CUBE, np.full((4, 3), -1)),
        (CUBE, [[0, 1, 8]]),
        (CUBE * np.nan, SIDES),
        (CUBE * np.inf, SIDES),
        (CUBE * 1e300, SIDES),
    ],
)
def test_a_mesh_without_valid_faces_is_a_cross(vertices, faces):
    picture = render(vertices, faces, 64)
    assert picture.shape == (64, 64, 3)
    assert 20 < covered(picture).sum() < 400
    np.testing.assert_array_equal(picture, render(NOTHING, NOTHING, 64))


def test_invalid_faces_are_skipped():
    vertices = np.concatenate([CUBE, [[np.nan, 0, 0], [np.inf, 0, 0]]])
    odd = [[0, 0, 1], [0, 1, 8], [0, 1, 9], [-1, -1, -1], [0, 1, 99], [2, 2, 2]]
    picture = render(vertices, np.concatenate([SIDES, odd]), 64)
    np.testing.assert_array_equal(picture, render(CUBE, SIDES, 64))


def test_a_mesh_without_extent_is_drawn():
    render(np.zeros((3, 3)), [[0, 1, 2]], 32)
    render([[0, 0, 0], [1, 1, 1], [2, 2, 2]], [[0, 1, 2]], 32)


@settings(max_examples=60, deadline=None)
@given(
    vertices=some.arrays(np.float64, (5, 3)),
    faces=some.arrays(np.int64, (6, 3), elements=st.integers(-1, 5)),
    azimuth=st.floats(-720, 720),
    elevation=st.floats(-90, 90),
)
def test_any_numbers_give_a_picture_and_always_the_same(vertices, faces, azimuth, elevation):
    picture = render(vertices, faces, 24, azimuth, elevation)
    assert picture.shape == (24, 24, 3)
    assert picture.dtype == np.uint8
    np.testing.assert_array_equal(picture, render(vertices, faces, 24, azimuth, elevation))


def test_many_small_faces_are_drawn_in_pieces_like_few(monkeypatch):
    whole = render(CUBE, SIDES, 64)
    monkeypatch.setattr("quintet.media.meshes.render.MAX_SPANS", 50)
    np.testing.assert_array_equal(whole, render(CUBE, SIDES, 64))


# -- contact sheets -------------------------------------------------------------------------


def test_a_contact_sheet_has_a_caption_under_the_first_image_of_a_row():
    picture = render(CUBE, SIDES, 96)
    bare = contact_sheet([[picture, picture], [picture]])
    sheet = contact_sheet([[picture, picture], [picture]], (), ["a cube"])
    assert bare.shape == (204, 204, 3)
    assert sheet.shape == (224, 204, 3)
    np.testing.assert_array_equal(sheet[4:100, 4:100], picture)
    np.testing.assert_array_equal(sheet[124:220, 4:100], picture)
    assert (sheet[100:120, 4:100] < 128).any()
    assert not (sheet[100:120, 104:200] < 128).any()
    titled = contact_sheet([[picture, picture]], ["left", "right"], ["one text for the row"])
    assert (titled[:21] < 128).any()
    assert (titled[121:141, 4:100] < 128).any()
    assert not (titled[121:, 104:200] < 128).any()


def test_long_captions_are_wrapped_and_cut_and_stay_in_their_column():
    picture = render(CUBE, SIDES, 96)
    texts = ["word " * 200, "w" * 3000, "tall\x1b[31m\n\ttext " * 9, "", "   "]
    sheet = contact_sheet([[picture]] * 5, (), texts)
    assert sheet.shape == (5 * 100 + 4 + 3 * 50 + 20, 104, 3)
    assert (sheet[:, [0, 1, 2, 3, 100, 101, 102, 103]] == 255).all()


def test_surplus_captions_are_ignored():
    picture = render(CUBE, SIDES, 32)
    assert contact_sheet([[picture]], (), ["a", "b"]).shape[1] == 40
