import base64
import json
import os
import struct
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from quintet.media.errors import BadFile
from quintet.media.meshes.files import SUFFIXES, Mesh, read_mesh, simplify, write_mesh

WRITABLE = (".obj", ".glb", ".ply", ".stl")

CUBE = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], np.float64)
QUADS = np.array(
    [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
)
SIDES = np.concatenate([QUADS[:, [0, 1, 2]], QUADS[:, [0, 2, 3]]])


def ring() -> Mesh:
    """A torus of 8 x 6 quads, cut into triangles; no two coordinates alike by chance."""
    turn, tilt = np.meshgrid(np.arange(8) * np.pi / 4, np.arange(6) * np.pi / 3, indexing="ij")
    width = 1 + 0.3 * np.cos(tilt)
    points = [width * np.cos(turn), width * np.sin(turn), 0.4 * np.sin(tilt)]
    at = lambda i, j: (i % 8) * 6 + j % 6
    faces = []
    for i in range(8):
        for j in range(6):
            a, b, c, d = at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)
            faces += [[a, b, c], [a, c, d]]
    return Mesh(np.stack(points, axis=-1).reshape(-1, 3), np.array(faces))


def put(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def corners(mesh: tuple) -> np.ndarray:
    return np.asarray(mesh[0])[np.asarray(mesh[1])]


def same_shape(mesh: tuple, other: tuple, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(corners(mesh), corners(other), atol=tolerance)


def refused(path: Path, match: str | None = None) -> None:
    with pytest.raises(BadFile, match=match) as caught:
        read_mesh(path)
    assert caught.value.path == path
    assert caught.value.remedy


# -- glTF by hand ---------------------------------------------------------------------------


def document(mesh: Mesh, uri: str | None = None, **more: object) -> tuple[dict, bytes]:
    points, indices = mesh.vertices.astype("<f4").tobytes(), mesh.faces.astype("<u2").tobytes()
    buffer: dict[str, object] = {"byteLength": len(points + indices)}
    if uri is not None:
        buffer["uri"] = uri
    return {
        "asset": {"version": "2.0"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
        "accessors": [
            {"bufferView": 0, "componentType": 5126, "count": len(mesh.vertices), "type": "VEC3"},
            {"bufferView": 1, "componentType": 5123, "count": mesh.faces.size, "type": "SCALAR"},
        ],
        "bufferViews": [
            {"buffer": 0, "byteLength": len(points)},
            {"buffer": 0, "byteOffset": len(points), "byteLength": len(indices)},
        ],
        "buffers": [buffer],
        **more,
    }, points + indices


def glb(about: dict, binary: bytes) -> bytes:
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 4)
    binary += b"\0" * (-len(binary) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text
    chunks += struct.pack("<I4s", len(binary), b"BIN\0") + binary
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks


def embedded(mesh: Mesh) -> bytes:
    _, binary = document(mesh)
    uri = "data:application/octet-stream;base64," + base64.b64encode(binary).decode()
    return json.dumps(document(mesh, uri)[0]).encode()


# -- files of other programs ----------------------------------------------------------------


def by_trimesh(suffix: str) -> bytes:
    import trimesh

    mesh = trimesh.Trimesh(*ring(), process=False)
    if suffix == ".gltf":
        from trimesh.exchange.gltf import export_gltf

        return export_gltf(trimesh.Scene(mesh), embed_buffers=True)["model.gltf"]
    content = mesh.export(file_type=suffix[1:])
    return content.encode() if isinstance(content, str) else content


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_of_another_program_are_read_in_every_format(tmp_path, suffix):
    mesh = read_mesh(put(tmp_path, "a" + suffix.upper(), by_trimesh(suffix)))
    assert mesh.vertices.dtype == np.float64
    assert mesh.faces.dtype == np.int64
    same_shape(mesh, ring())


@pytest.mark.parametrize("kind", ["stl_ascii", "ply"])
def test_text_forms_of_another_program_are_read(tmp_path, kind):
    import trimesh

    mesh = trimesh.Trimesh(*ring(), process=False)
    text = mesh.export(file_type=kind, **({"encoding": "ascii"} if kind == "ply" else {}))
    same_shape(read_mesh(put(tmp_path, f"a.{kind[:3]}", text)), ring())


def test_a_scene_is_flattened_with_its_transforms_as_another_program_does(tmp_path):
    import trimesh

    ball = trimesh.Trimesh(*ring(), process=False)
    scene = trimesh.Scene(ball)
    move = trimesh.transformations.compose_matrix(
        scale=[2, 2, 0.5], angles=[0.3, -1.1, 2.0], translate=[3, -1, 7]
    )
    scene.add_geometry(ball, transform=move, node_name="second", geom_name="ball")
    ours = read_mesh(put(tmp_path, "a.glb", scene.export(file_type="glb")))
    theirs = scene.to_mesh()
    assert len(ours.faces) == 2 * len(ring().faces)
    order = lambda points: np.sort(np.round(points, 4).reshape(-1, 9), axis=0)
    np.testing.assert_allclose(order(corners(ours)), order(theirs.triangles), atol=2e-4)


# -- what the formats allow -----------------------------------------------------------------


def test_obj_counts_back_from_the_last_vertex_and_takes_polygons_and_comments(tmp_path):
    text = (
        "mtllib gone.mtl\no one\nv 0 0 0 1 1 1\nv 1 0 0 # corner\nv 1 1 0\nusemtl red\n"
        "vn 0 0 1\nvt 0 0\nf -3/1/1 -2//1 -1\nv 0 1 0\n  f 1 2 \\\n 3 4\nl 1 2\np 1\n"
    )
    mesh = read_mesh(put(tmp_path, "a.obj", text))
    assert mesh.faces.tolist() == [[0, 1, 2], [0, 1, 2], [0, 2, 3]]
    assert mesh.vertices[3].tolist() == [0, 1, 0]
    for line_end in ("\r\n", "\r"):
        other = read_mesh(put(tmp_path, "b.obj", text.replace("\\\n", "").replace("\n", line_end)))
        assert other.faces.tolist() == mesh.faces.tolist()


@pytest.mark.parametrize("start", ["OFF\n4 2 0\n", "OFF4 2 0\n", "OFF 4 2 0\n", "COFF # c\n4 2\n"])
def test_off_takes_the_counts_wherever_writers_put_them(tmp_path, start):
    body = "0 0 0\n1 0 0\n\n1 1 0 255 0 0\n0 1 0\n3 0 1 2 255 255 255\n4 0 1 2 3\n"
    mesh = read_mesh(put(tmp_path, "a.off", start + body))
    assert mesh.faces.tolist() == [[0, 1, 2], [0, 1, 2], [0, 2, 3]]


PLY = (
    "ply\nformat {}\ncomment TextureFile gone.png\nelement camera 1\nproperty float f\n"
    "element vertex 4\nproperty double y\nproperty float x\nproperty uchar red\nproperty int z\n"
    "element face 3\nproperty list uchar float texcoord\nproperty list uint ushort vertex_index\n"
    "end_header\n"
)


def mixed_ply(order: str) -> bytes:
    """Vertices in odd types and order, another element before them, polygons of 3, 4 and 2."""
    name = {"<": "binary_little_endian", ">": "binary_big_endian", "": "ascii"}[order] + " 1.0"
    points = [(0, 0, 9, 5), (0, 1, 9, 5), (1, 1, 9, 5), (1, 0, 9, 5)]
    faces = [[0, 1, 2], [0, 1, 2, 3], [0, 1]]
    if not order:
        rows = ["1.5", *(" ".join(map(str, point)) for point in points)]
        rows += [f"1 0.5 {len(face)} {' '.join(map(str, face))}" for face in faces]
        return (PLY.format(name) + "\n".join(rows) + "\n").encode()
    body = struct.pack(order + "f", 1.5)
    body += b"".join(struct.pack(order + "dfBi", *point) for point in points)
    for face in faces:
        body += struct.pack(f"{order}BfI{len(face)}H", 1, 0.5, len(face), *face)
    return PLY.format(name).encode() + body


@pytest.mark.parametrize("order", ["", "<", ">"])
def test_ply_of_mixed_polygons_and_types_is_read_in_all_three_forms(tmp_path, order):
    mesh = read_mesh(put(tmp_path, "a.ply", mixed_ply(order)))
    assert mesh.faces.tolist() == [[0, 1, 2], [0, 1, 2], [0, 2, 3]]
    assert mesh.vertices.tolist() == [[0, 0, 5], [1, 0, 5], [1, 1, 5], [0, 1, 5]]


def test_strips_and_fans_keep_the_winding(tmp_path):
    about, binary = document(Mesh(CUBE[[0, 4, 6, 2]], np.array([[0, 1, 3], [2, 0, 0]])))
    about["accessors"][1]["count"] = 4
    for mode, faces in ((5, [[0, 1, 3], [2, 3, 1]]), (6, [[0, 1, 3], [0, 3, 2]])):
        about["meshes"][0]["primitives"][0]["mode"] = mode
        assert read_mesh(put(tmp_path, "a.glb", glb(about, binary))).faces.tolist() == faces


def test_a_mirrored_node_keeps_its_winding(tmp_path):
    about, binary = document(Mesh(CUBE, SIDES))
    about["nodes"] = [{"mesh": 0, "scale": [-1, 1, 1]}]
    mesh = read_mesh(put(tmp_path, "a.glb", glb(about, binary)))
    a, b, c = np.moveaxis(corners(mesh), 1, 0)
    volume = (a * np.cross(b, c)).sum() / 6
    a, b, c = np.moveaxis(CUBE[SIDES], 1, 0)
    assert volume == pytest.approx((a * np.cross(b, c)).sum() / 6)


def test_nodes_are_placed_under_their_parents(tmp_path):
    about, binary = document(Mesh(CUBE, SIDES))
    half = 0.5**0.5
    about["nodes"] = [
        {"children": [1], "rotation": [0, 0, half, half], "translation": [10, 0, 0]},
        {"mesh": 0, "matrix": [2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0, 1, 0, 0, 1]},
    ]
    mesh = read_mesh(put(tmp_path, "a.glb", glb(about, binary)))
    twice = CUBE * 2 + [1, 0, 0]
    placed = np.stack([10 - twice[:, 1], twice[:, 0], twice[:, 2]], axis=1)
    np.testing.assert_allclose(mesh.vertices, placed, atol=1e-6)


def test_one_pool_of_vertices_behind_many_primitives_is_not_copied_for_each(tmp_path):
    about, binary = document(ring())
    about["accessors"][1]["count"] = 3
    about["meshes"][0]["primitives"] *= 5
    mesh = read_mesh(put(tmp_path, "a.glb", glb(about, binary)))
    assert mesh.vertices.shape == (15, 3)
    same_shape(mesh, (ring().vertices, np.repeat(ring().faces[:1], 5, axis=0)))


# -- what we write --------------------------------------------------------------------------

some_points = some.arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.just(3)),
    elements=st.floats(-1e6, 1e6, width=32),
)


@settings(max_examples=60, deadline=None)
@given(points=some_points, width=st.sampled_from([3, 4]), data=st.data())
def test_a_mesh_round_trips(tmp_path_factory, points, width, data):
    index = st.integers(0, len(points) - 1)
    shape = st.tuples(st.integers(1, 9), st.just(width))
    faces = data.draw(some.arrays(np.int64, shape, elements=index))
    folder = tmp_path_factory.getbasetemp()
    triangles = [row[[0, at, at + 1]] for row in faces for at in range(1, width - 1)]
    for suffix in WRITABLE:
        path = folder / f"written{suffix}"
        write_mesh(path, points, faces)
        first = path.read_bytes()
        mesh = read_mesh(path, upright=True)
        same_shape(mesh, (points, triangles), 1e-5 * max(1, np.abs(points).max()))
        write_mesh(path, points.astype(np.float64), faces.astype(np.int32))
        assert path.read_bytes() == first
        if suffix == ".ply":
            np.testing.assert_array_equal(mesh.vertices, points)
            np.testing.assert_array_equal(mesh.faces, triangles)
        if suffix == ".stl":
            corners = mesh.vertices[mesh.faces]
            np.testing.assert_array_equal(corners, points[np.array(triangles)])


def test_the_normals_of_stl_point_outwards_and_its_header_is_not_that_of_text(tmp_path):
    write_mesh(tmp_path / "a.stl", CUBE, QUADS)
    content = (tmp_path / "a.stl").read_bytes()
    assert len(content) == 84 + 50 * 12
    assert not content.startswith(b"solid")
    rows = np.frombuffer(
        content[84:], [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("", "V2")]
    )
    outwards = rows["corners"].mean(axis=1) - 0.5
    assert ((rows["normal"] * outwards).sum(axis=1) > 0).all()
    np.testing.assert_array_equal(np.abs(rows["normal"]).sum(axis=1), 1)


@pytest.mark.parametrize("suffix", WRITABLE)
def test_another_program_opens_what_is_written(tmp_path, suffix):
    import trimesh

    write_mesh(tmp_path / f"a{suffix}", *ring())
    merge = suffix == ".stl"  # which has no shared vertices
    theirs = trimesh.load(tmp_path / f"a{suffix}", process=merge, force="mesh")
    assert theirs.is_watertight
    same_shape((theirs.vertices, theirs.faces), read_mesh(tmp_path / f"a{suffix}"))


@pytest.mark.parametrize(("suffix", "up"), [(".obj", 1), (".glb", 1), (".ply", 2), (".stl", 2)])
def test_each_format_has_the_vertical_where_blender_expects_it(tmp_path, suffix, up):
    tall = CUBE * [1, 2, 10]
    write_mesh(tmp_path / f"a{suffix}", tall, SIDES)
    sides = np.ptp(read_mesh(tmp_path / f"a{suffix}").vertices, axis=0)
    assert sides[up] == 10
    same_shape(read_mesh(tmp_path / f"a{suffix}", upright=True), (tall, SIDES))


def test_obj_has_six_significant_digits_and_no_minus_zero(tmp_path):
    write_mesh(
        tmp_path / "a.obj", [[1 / 3, 0, -0.0], [1e-9, 123456.789, 2], [1, 1, 1]], [[0, 1, 2]]
    )
    lines = (tmp_path / "a.obj").read_text().splitlines()
    assert lines[1:] == ["v 0.333333 0 0", "v 1e-09 2 -123457", "v 1 1 -1", "f 1 2 3"]


@pytest.mark.parametrize("suffix", WRITABLE)
def test_an_empty_mesh_round_trips(tmp_path, suffix):
    write_mesh(tmp_path / f"a{suffix}", np.zeros((0, 3)), np.zeros((0, 3), np.int64))
    refused(tmp_path / f"a{suffix}", "no faces")


@pytest.mark.parametrize(
    ("vertices", "faces", "match"),
    [
        (CUBE, [[0, 1, 8]], "name vertices 0..8 of 8"),
        (CUBE, [[0, 1, 2], [-1, -1, -1]], "remove padding faces"),
        (CUBE * np.nan, SIDES, "NaN"),
        (CUBE[:, :2], SIDES, r"give \(v, 3\)"),
        (CUBE, SIDES[:, :2], r"give \(f, 3\)"),
    ],
)
def test_an_invalid_mesh_is_not_written(tmp_path, vertices, faces, match):
    with pytest.raises(ValueError, match=match):
        write_mesh(tmp_path / "a.glb", vertices, faces)
    with pytest.raises(ValueError, match=r"written as \.obj, \.glb, \.ply, \.stl"):
        write_mesh(tmp_path / "a.off", CUBE, SIDES)
    assert list(tmp_path.iterdir()) == []


# -- what is refused ------------------------------------------------------------------------

NUMBERS = "v 0 0 0\nv 1 0 0\nv {} 1 0\n"
OFF = "OFF\n3 1 0\n0 0 0\n1 0 0\n{} 1 0\n3 0 1 {}\n"
STL = "solid a\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex {} 1 0\n{}"
END = "endloop\nendfacet\nendsolid a\n"
POINTS = "ply\nformat ascii 1.0\nelement vertex {}\nproperty float x\nproperty float y\n"
POINTS += "property float z\n"
FACES = "element face {}\nproperty list uchar int vertex_indices\nend_header\n"
ROWS = "0 0 0\n1 0 0\n{} 1 0\n"


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.obj", "", r"empty \(0 bytes\)"),
        ("a.obj", NUMBERS.format("nan") + "f 1 2 3\n", "not finite"),
        ("a.obj", NUMBERS.format("-inf") + "f 1 2 3\n", "not finite"),
        ("a.obj", NUMBERS.format("1e200") + "f 1 2 3\n", "coordinate of 1e"),
        ("a.obj", NUMBERS.format("1"), "no faces"),
        ("a.obj", NUMBERS.format("1") + "l 1 2 3\np 1\n", "no faces"),
        ("a.obj", NUMBERS.format("1") + "f 1 2 4\n", "vertex 3 of 3"),
        ("a.obj", NUMBERS.format("1") + "f 1 2 -4\n", "vertex -1 of 3"),
        ("a.obj", NUMBERS.format("1") + "f 0 1 2\n", "counts from 1"),
        ("a.obj", NUMBERS.format("1") + "f 1 2\n", "2 corners"),
        ("a.obj", NUMBERS.format("1") + "f 1 2 99999999999999999999\n", "damaged"),
        ("a.obj", "v 1 2\n", "2 coordinates"),
        ("a.obj", "f " + "1 " * 600_000, "a line of 1,200,002 bytes"),
        ("a.off", OFF.format("nan", 2), "not finite"),
        ("a.off", OFF.format("1", 3), "vertex 3 of 3"),
        ("a.off", OFF.format("1", -1), "vertex -1 of 3"),
        ("a.off", OFF.format("1", "")[:-2], "fewer corners than it announces"),
        ("a.off", "OFF\n-3 -1 0\n0 0 0\n", "announces -3 vertices and -1 faces"),
        ("a.off", "OFF\n2999999 999999 0\n0 0 0\n", "truncated"),
        ("a.off", "OFF BINARY\n1 1 1\n", "binary OFF"),
        ("a.off", "4OFF\n3 1 0\n", "does not begin with OFF"),
        ("a.off", "OFF\n", "no line with the numbers"),
        ("a.stl", "solid a\n", "truncated"),
        ("a.stl", "solid a\nendsolid a\n", "no faces"),
        ("a.stl", STL.format("nan", END), "not finite"),
        ("a.stl", STL.format("1", ""), "does not end with endsolid"),
        ("a.stl", STL.format("1", "vertex 4 4 4\n" + END), "exactly three"),
        ("a.stl", b"\0" * 80 + b"\1\0\0\0" + b"\0" * 49, "announces 1 faces, 134 bytes, but"),
        ("a.stl", b"\0" * 84, "no faces"),
        ("a.stl", b"\0" * 30, "too short"),
        ("a.ply", (POINTS + "end_header\n" + ROWS).format(3, 1), "points but no faces"),
        ("a.ply", (POINTS + FACES + ROWS).format(3, 0, 1), "points but no faces"),
        ("a.ply", (POINTS + FACES + ROWS).format(3, 1, "nan") + "3 0 1 2\n", "not finite"),
        ("a.ply", (POINTS + FACES + ROWS).format(3, 1, 1) + "3 0 1 3\n", "vertex 3 of 3"),
        ("a.ply", (POINTS + FACES + ROWS).format(3, 1, 1) + "3 0 1\n", "fewer corners"),
        ("a.ply", (POINTS + FACES + ROWS).format(3, 1, 1), "more than its|truncated"),
        ("a.ply", (POINTS + FACES + ROWS).format(-3, 1, 1), "negative"),
        ("a.ply", (POINTS + POINTS[21:] + FACES).format(3, 3, 1), "twice"),
        ("a.ply", (POINTS + FACES).replace("face", "tristrips").format(3, 1), "strips"),
        ("a.ply", "ply\nformat ascii 1.0\nelement vertex 3\n", "does not begin with the header"),
        ("a.ply", b"PK\3\4" + b"\0" * 200, "does not begin with the header"),
        ("a.ply", (POINTS + FACES).replace("ascii", "zipped").format(3, 1), "unknown header line"),
        ("a.ply", (POINTS + FACES).replace("uchar", "float").format(3, 1), "whole number"),
        ("a.glb", b"glTF" + struct.pack("<II", 1, 20) + b"\0" * 20, "version 1"),
        ("a.glb", b"PK\3\4" + b"\0" * 200, "does not begin with the header"),
        ("a.gltf", "[" * 100_000, "damaged"),
        ("a.gltf", "[1]", "no glTF document"),
        ("a.gltf", '{"asset": {}}', "no faces"),
        ("a.gltf", "\xff\xfe{", "damaged"),
        ("a.gltf", '{"asset": 1' + "1" * 9000 + "}", "damaged"),
        ("a.zip", "PK", "no supported mesh format; use one of .obj"),
    ],
)
def test_files_that_are_not_meshes_are_refused_with_a_reason(tmp_path, name, content, match):
    refused(put(tmp_path, name, content), match)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_files_folders_and_pipes_are_refused(tmp_path, suffix):
    refused(tmp_path / f"gone{suffix}", "cannot be read")
    (tmp_path / f"folder{suffix}").mkdir()
    refused(tmp_path / f"folder{suffix}", "not a regular file")
    os.mkfifo(tmp_path / f"pipe{suffix}")
    refused(tmp_path / f"pipe{suffix}", "not a regular file")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bytes_and_faces_are_limited(tmp_path, suffix):
    path = put(tmp_path, f"a{suffix}", by_trimesh(suffix))
    size, count = path.stat().st_size, len(ring().faces)
    assert len(read_mesh(path, max_bytes=size, max_faces=count).faces) == count
    with pytest.raises(BadFile, match=f"more than max_bytes = {size - 1:,}"):
        read_mesh(path, max_bytes=size - 1)
    with pytest.raises(BadFile, match=f"over max_file_faces = {count - 1}; simplify it, or raise"):
        read_mesh(path, max_faces=count - 1)


@pytest.mark.parametrize("suffix", [".stl", ".ply", ".glb", ".gltf"])
def test_a_file_truncated_anywhere_is_refused(tmp_path, suffix):
    whole = by_trimesh(suffix)
    for end in {*range(1, len(whole), max(1, len(whole) // 60)), len(whole) - 4}:
        refused(put(tmp_path, f"a{suffix}", whole[:end]))


def spoilt(change) -> bytes:
    about, binary = document(ring())
    change(about)
    return glb(about, binary)


def swap(kind: str, index: int, **values: object):
    return lambda about: about[kind][index].update(values)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (swap("buffers", 0, byteLength=10**15), "announces a buffer of 1,000,000,000,000,000"),
        (swap("bufferViews", 0, byteLength=10**12), "outside its buffer"),
        (swap("bufferViews", 0, byteOffset=-4), "no usable `byteOffset`"),
        (swap("bufferViews", 0, byteStride=1), "outside its bufferView"),
        (swap("bufferViews", 0, extensions={"EXT_meshopt_compression": {}}), "meshopt"),
        (swap("accessors", 0, count=10**9), "1,000,000,000 values outside its bufferView"),
        (swap("accessors", 1, count=2_999_997), "outside its bufferView"),
        (swap("accessors", 1, count=10**12), "outside its bufferView"),
        (swap("accessors", 1, count=True), "no usable `count`"),
        (swap("accessors", 1, componentType=5126), "outside its bufferView|not unsigned"),
        (swap("accessors", 0, type="VEC4"), "another type than VEC3"),
        (swap("accessors", 0, sparse={}), "sparse"),
        (lambda about: about["accessors"][0].pop("bufferView"), "Draco"),
        (swap("accessors", 0, count=1), "vertex .* of 1"),
        (swap("buffers", 0, uri="elsewhere.bin"), "another file, which is not opened"),
        (swap("buffers", 0, uri="data:text/plain,abc"), "not base64"),
        (swap("nodes", 0, children=[0]), "twice"),
        (swap("nodes", 0, children=[7]), r"nodes\[7\] of 1"),
        (swap("nodes", 0, mesh=-1), "no usable `mesh`"),
        (swap("nodes", 0, matrix=[1, 2]), "not 16 numbers"),
        (swap("nodes", 0, translation=[float("nan"), 0, 0]), "not finite"),
        (swap("scenes", 0, nodes=[0, 0]), "twice"),
        (swap("scenes", 0, nodes=[]), "no faces"),
        (lambda about: about["meshes"][0]["primitives"][0].update(mode=0), "no faces"),
        (lambda about: about["meshes"][0]["primitives"][0].update(mode=9), "unknown mode 9"),
        (lambda about: about.update(accessors={}), "not a list"),
        (lambda about: about["meshes"][0]["primitives"][0].update(attributes=1), "another kind"),
        (lambda about: about["meshes"][0].update(primitives=[1]), "another kind than glTF's"),
    ],
)
def test_gltf_that_contradicts_itself_is_refused(tmp_path, change, match):
    refused(put(tmp_path, "a.glb", spoilt(change)), match)


# -- what would hurt ------------------------------------------------------------------------

STARVED = """
import resource, sys
from quintet.media.errors import BadFile
from quintet.media.meshes.files import read_mesh
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 600_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    try:
        read_mesh(path)
        print("read")
    except BadFile as error:
        print(error.reason)
"""


def absurd(folder: Path) -> dict[Path, str]:
    """Files that announce, repeat or hold far too much, and why each is refused."""
    found: dict[Path, str] = {}

    def add(name: str, content: bytes | str, reason: str, size: int = 0) -> None:
        path = put(folder, name, content)
        if size:
            os.truncate(path, size)  # sparse: read as zeros, held by no disk
        found[path] = reason

    million = 1_000_000
    ascii_ply = POINTS + FACES
    binary = ascii_ply.replace("ascii", "binary_little_endian")
    add("a.stl", b"\0" * 80 + struct.pack("<I", 2 * million), "max_file_faces", 84 + 100 * million)
    add("b.stl", b"\0" * 80 + b"\xff" * 4, "announces 4,294,967,295 faces", 134)
    add("c.stl", "solid\n" + "endloop\n" * 2 * million, "max_file_faces")
    add("a.ply", binary.format(million, 2 * million), "max_file_faces", 40 * million)
    add("b.ply", ascii_ply.format(10**18, 1), "bytes can hold")
    add("c.ply", ascii_ply.format(3, 10**30), "more than its")
    add("d.ply", ascii_ply.format(2 * million, 1), "more than its")
    add("e.ply", binary.replace("uchar", "uint").format(0, 1) + "\xff" * 8, "is truncated")
    padded = "element face 1\nproperty list uint uchar vertex_indices\nend_header\n"
    header = POINTS.replace("ascii", "binary_little_endian").format(0) + padded
    add("f.ply", header.encode() + struct.pack("<I", 99 * million), "max_file_faces", 100 * million)
    none = "element nothing 99999999999999\nelement vertex"
    add("g.ply", ascii_ply.replace("element vertex", none).format(3, 1), "more than its|truncated")
    add("a.obj", "v 0 0 0\n" + "f 1 1 1\n" * 2 * million, "max_file_faces")
    add("b.obj", "v 0 0 0\n" * 3_000_002, "vertices or more")
    add("c.obj", "f " + "1 " * 10 * million, "a line of")
    add("d.obj", "v 0 0 0\n" + ("f" + " 1" * 400_000 + "\n") * 5, "max_file_faces")
    add("a.off", f"OFF\n{10**15} {10**15} 0\n", "but is truncated")
    add("b.off", f"OFF\n3 {2 * million} 0\n", "but is truncated")
    about, content = document(Mesh(CUBE, SIDES))
    about["scenes"] = [{"nodes": list(range(99_999))}]
    add("a.glb", glb(about | {"nodes": [{"mesh": 0}] * 99_999}, content), "max_file_faces")
    about["scenes"] = [{"nodes": list(range(million))}]
    add("b.glb", glb(about | {"nodes": [{"mesh": 0}] * million}, content), "JSON values")
    add("c.glb", glb(about | {"nodes": [{"mesh": 0}] * 100_001, "scenes": []}, content), "nodes")
    about, content = document(ring())
    about["meshes"][0]["primitives"] *= 50_000
    add("d.glb", glb(about, content), "max_file_faces")
    add("e.glb", struct.pack("<4sIIII", b"glTF", 2, 20, 2**32 - 1, 0x4E4F534A), "a chunk of")
    add("f.glb", struct.pack("<4sIIII", b"glTF", 2, 2**32 - 1, 4, 0x4E4F534A), "announces 4,2")
    add("a.gltf", '{"asset": [' + "{}," * 5 * million + "{}]}", "JSON values")
    add("h.ply", b"ply\n", "header", 50 * million)
    add("e.obj", b"", "a line of", 50 * million)
    add("big.obj", b"v", "max_bytes", 10**12)
    return found


def test_absurd_files_are_refused_within_little_memory(tmp_path):
    files = absurd(tmp_path)
    command = [sys.executable, "-c", STARVED, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    reasons = done.stdout.splitlines()
    assert len(reasons) == len(files)
    for (path, expected), reason in zip(files.items(), reasons):
        assert any(part in reason for part in expected.split("|")), f"{path.name}: {reason}"


WATCHED = """
import os, sys
from quintet.media.errors import BadFile
from quintet.media.meshes.files import read_mesh
seen = []
sys.addaudithook(lambda event, found: seen.append((event, found)) if WATCH else None)
WATCH = True
for path in sys.argv[1:]:
    try:
        read_mesh(path)
    except BadFile:
        pass
WATCH = False
for event, found in seen:
    if event == "open":
        print(os.path.basename(str(found[0])))
    elif event.startswith(("socket", "subprocess", "os.exec", "ctypes")):
        print(event)
assert "trimesh" not in sys.modules and "PIL" not in sys.modules
"""


def test_nothing_but_the_one_file_is_opened(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    put(tmp_path, "secret.mtl", "newmtl a\nmap_Kd secret.png\n")
    _, binary = document(ring())
    put(tmp_path, "secret.bin", binary)
    obj = NUMBERS.format(1) + "usemtl a\nf 1 2 3\n"
    texture = "comment TextureFile ../secret.mtl\nelement vertex"
    ply = (POINTS + FACES + ROWS).replace("element vertex", texture).format(3, 1, 1) + "3 0 1 2\n"
    files = [
        put(data, "a.obj", f"mtllib ../secret.mtl\nmtllib {tmp_path}/secret.mtl\n" + obj),
        put(data, "b.ply", ply),
    ]
    for at, uri in enumerate(["../secret.bin", f"file://{tmp_path}/secret.bin", "http://a.b/c"]):
        about, _ = document(ring(), uri, images=[{"uri": "../secret.mtl"}])
        files.append(put(data, f"c{at}.gltf", json.dumps(about)))
        files.append(put(data, f"d{at}.glb", glb(about, b"")))
        refused(files[-1], "in another file, which is not opened")
    command = [sys.executable, "-c", WATCHED, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [path.name for path in files]


# -- noise ----------------------------------------------------------------------------------

STARTS = {
    ".obj": b"v 0 0 0\nf 1 1 1\n",
    ".ply": (POINTS + FACES).format(3, 1).encode().replace(b"ascii", b"binary_big_endian"),
    ".stl": b"solid a\nfacet\n",
    ".glb": b"glTF\2\0\0\0\x40\0\0\0\x10\0\0\0JSON",
    ".gltf": b'{"asset": {}, "nodes": [',
    ".off": b"OFF\n3 1 0\n",
}


def sound_or_refused(path: Path) -> None:
    """Whatever the bytes: a mesh that keeps its promises, or BadFile."""
    try:
        mesh = read_mesh(path)
    except BadFile:
        return
    assert mesh.vertices.dtype == np.float64
    assert mesh.faces.dtype == np.int64
    assert mesh.vertices.shape[1:] == mesh.faces.shape[1:] == (3,)
    assert np.isfinite(mesh.vertices).all()
    assert mesh.faces.min() >= 0
    assert mesh.faces.max() < len(mesh.vertices)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=60, deadline=None)
@given(noise=st.binary(min_size=1, max_size=300), begun=st.booleans())
def test_noise_is_refused(tmp_path_factory, suffix, noise, begun):
    content = STARTS[suffix] + noise if begun else noise
    sound_or_refused(put(tmp_path_factory.getbasetemp(), f"noise{suffix}", content))


STRANGE = [b"-1", b"1e400", b"nan", b"99999999", b"9" * 30, b"", b"[", b'"a"', b"{}"]


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed, cut, repeated, or a number replaced by a strange one."""
    out = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, max(1, len(out))))
        many = int(rng.integers(1, 9))
        match rng.integers(0, 6):
            case 0:
                out[at : at + 1] = bytes(rng.integers(0, 256, 1, np.uint8))
            case 1:
                del out[at : at + many]
            case 2:
                out[at:at] = out[at : at + many]
            case 3:
                out[at : at + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**31, 2**32 - 1])))
            case 4:
                del out[at:]
            case _:
                digits = [i for i, c in enumerate(out) if 48 <= c < 58]
                where = int(rng.choice(digits)) if digits else 0
                strange = [
                    b"-1",
                    b"1e400",
                    b"nan",
                    b"99999999",
                    b"9" * 30,
                    b"",
                    b"[",
                    b'"a"',
                    b"{}",
                ]
                out[where : where + 1] = strange[rng.integers(0, len(strange))]
    return bytes(out)


SMALL = Mesh(CUBE, SIDES)
SAMPLES = {
    "a.obj": lambda: b"v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nf 1/1/1 2/2/2 3/3/3 4/4/4\nf -1 -2 -3\n",
    "a.off": lambda: b"OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n4 0 1 2 3\n",
    "text.stl": lambda: STL.format(1, END).encode(),
    "binary.stl": lambda: by_trimesh(".stl")[:80] + b"\1\0\0\0" + by_trimesh(".stl")[84:134],
    "text.ply": lambda: mixed_ply(""),
    "little.ply": lambda: mixed_ply("<"),
    "big.ply": lambda: mixed_ply(">"),
    "even.ply": lambda: by_trimesh(".ply"),
    "a.glb": lambda: glb(*document(SMALL)),
    "a.gltf": lambda: embedded(SMALL),
}


@pytest.mark.by_default("even.ply", "a.gltf", "a.obj", "a.off", "text.stl", "a.glb")
@pytest.mark.parametrize("name", SAMPLES)
def test_mutations_of_valid_files_are_read_or_refused(tmp_path, name):
    content = SAMPLES[name]()
    read_mesh(put(tmp_path, name, content))
    rng = np.random.default_rng(len(name) + sum(name.encode()))
    for _ in range(300):
        sound_or_refused(put(tmp_path, name, mutated(content, rng)))


# -- simplifying ----------------------------------------------------------------------------


def fine_ring(turns: int, tilts: int) -> Mesh:
    turn, tilt = np.meshgrid(
        np.arange(turns) * 2 * np.pi / turns, np.arange(tilts) * 2 * np.pi / tilts, indexing="ij"
    )
    width = 1 + 0.4 * np.cos(tilt)
    points = np.stack([width * np.cos(turn), width * np.sin(turn), 0.4 * np.sin(tilt)], axis=-1)
    i, j = np.meshgrid(np.arange(turns), np.arange(tilts), indexing="ij")
    at = lambda i, j: (i % turns) * tilts + j % tilts
    a, b, c, d = at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)
    faces = np.stack([a, b, c, a, c, d], axis=-1).reshape(-1, 3)
    return Mesh(points.reshape(-1, 3), faces)


@pytest.mark.parametrize("most", [2000, 800, 200])
def test_simplifying_keeps_the_shape_within_the_limit(most):
    mesh = fine_ring(80, 40)
    small = simplify(*mesh, most)
    assert most / 2 < len(small.faces) <= most
    sides = np.ptp(small.vertices, axis=0), np.ptp(mesh.vertices, axis=0)
    np.testing.assert_allclose(*sides, rtol=0.2)
    assert len(np.unique(small.faces)) == len(small.vertices)
    assert (np.diff(np.sort(small.faces, axis=1), axis=1) > 0).all()
    radius = np.hypot(*small.vertices[:, :2].T) - 1
    from_core = np.hypot(radius, small.vertices[:, 2])
    assert (np.abs(from_core - 0.4) < 0.2).all()


def test_simplifying_returns_a_small_mesh_unchanged_and_fails_with_an_error():
    mesh = fine_ring(8, 6)
    same_shape(simplify(*mesh, len(mesh.faces)), mesh, 0)
    with pytest.raises(ValueError, match="96 faces cannot be merged into 1 or fewer"):
        simplify(*mesh, 1)


def test_simplifying_accepts_any_triangles():
    vertices = np.concatenate([CUBE, CUBE, [[9.0, 9, 9]]])
    faces = np.concatenate([SIDES, SIDES + 8, SIDES[:3], [[0, 0, 1]]])
    small = simplify(vertices, faces, 12)
    assert len(small.faces) == 12
    np.testing.assert_allclose(np.unique(small.vertices, axis=0), np.unique(CUBE, axis=0))


def test_a_picture_with_the_suffix_of_a_mesh_is_refused(tmp_path):
    from PIL import Image

    content = BytesIO()
    Image.new("RGB", (4, 4)).save(content, "PNG")
    for suffix in SUFFIXES:
        refused(put(tmp_path, f"a{suffix}", content.getvalue()))
