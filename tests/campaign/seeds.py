"""Small sound files of every kind that is read, for mutations to begin with."""

import csv
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

SIDE, RATE = 24, 16_000


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def images(folder: Path) -> None:
    from PIL import Image

    for index, (name, mode) in enumerate(
        (
            ("a.png", "RGB"),
            ("b.png", "RGBA"),
            ("c.png", "P"),
            ("d.jpg", "RGB"),
            ("e.jpg", "CMYK"),
            ("f.webp", "RGB"),
            ("g.bmp", "RGB"),
            ("h.gif", "P"),
            ("i.png", "I;16"),
        )
    ):
        pixels = noise(index, SIDE + 8, SIDE + 4, 3)
        if mode == "I;16":
            Image.fromarray(noise(index, SIDE, SIDE, 2).view("<u2")[:, :, 0]).save(folder / name)
        else:
            Image.fromarray(pixels).convert(mode).save(folder / name)


def clips(folder: Path) -> None:
    import av

    from quintet.media.clips.writer import write_gif

    kinds = {
        "mp4": "libx264",
        "mov": "mpeg4",
        "mkv": "libx264",
        "webm": "libvpx-vp9",
        "avi": "mpeg4",
    }
    for kind, codec in kinds.items():
        with av.open(str(folder / f"a.{kind}"), "w") as container:
            stream = container.add_stream(codec, rate=12)
            stream.height, stream.width, stream.pix_fmt = 32, 32, "yuv420p"
            stream.time_base = Fraction(1, 12)
            for index in range(14):
                frame = av.VideoFrame.from_ndarray(noise(index, 32, 32, 3), "rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    write_gif(folder / "a.gif", noise(1, 6, 16, 16, 3), 8)


def tone(seconds: float) -> np.ndarray:
    time = np.arange(round(seconds * RATE)) / RATE
    return (0.4 * np.sin(2 * np.pi * 330 * time)).astype(np.float32)


def sounds(folder: Path) -> None:
    import soundfile

    samples = tone(1.2)
    for name, how in (
        ("a.wav", {"subtype": "PCM_16"}),
        ("b.wav", {"subtype": "FLOAT"}),
        ("c.flac", {}),
        ("d.ogg", {}),
        ("e.mp3", {}),
    ):
        soundfile.write(folder / name, samples, RATE, **how)
    soundfile.write(folder / "f.wav", np.stack([samples, samples], 1), RATE)


def meshes(folder: Path) -> None:
    from quintet.media.meshes.files import write_mesh

    points = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], np.float64)
    quads = np.array(
        [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
    )
    faces = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    for name in ("a.obj", "b.ply", "c.glb"):
        write_mesh(folder / name, points, faces)
    corners = "".join(f"{x} {y} {z}\n" for x, y, z in points)
    triangles = "".join(f"3 {a} {b} {c}\n" for a, b, c in faces)
    (folder / "d.off").write_text(f"OFF\n8 12 0\n{corners}{triangles}")
    head = "ply\nformat ascii 1.0\nelement vertex 8\nproperty float x\nproperty float y\n"
    head += (
        "property float z\nelement face 12\nproperty list uchar int vertex_indices\nend_header\n"
    )
    (folder / "e.ply").write_text(head + corners + triangles)
    facets = np.zeros(12, np.dtype([("n", "<f4", 3), ("v", "<f4", (3, 3)), ("a", "<u2")]))
    facets["v"] = points[faces]
    (folder / "f.stl").write_bytes(bytes(80) + (12).to_bytes(4, "little") + facets.tobytes())
    text = "".join(
        "facet normal 0 0 0\nouter loop\n"
        + "".join(f"vertex {x} {y} {z}\n" for x, y, z in points[face])
        + "endloop\nendfacet\n"
        for face in faces
    )
    (folder / "g.stl").write_text(f"solid s\n{text}endsolid s\n")


def metadata(folder: Path) -> None:
    """Two of the forms; each folder keeps the one whose turn it is."""
    rows = [{"file_name": f"{n}.png", "text": f"picture {n}", "speaker": n} for n in "abc"]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metadata.jsonl").write_text(lines, encoding="utf-8")
    with open(folder / "metadata.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["file_name", "text", "speaker"])
        writer.writeheader()
        writer.writerows(rows)


def shards(folder: Path) -> None:
    """A packed folder of pictures: the archive and its index."""
    from quintet.media.shards.pack import pack

    source = folder.with_name(f"{folder.name}-source")
    source.mkdir()
    images(source)
    found = sorted(source.iterdir())
    folder.rmdir()
    pack(source, found, folder, lambda name: {"text": f"picture {name}"}, 1_000_000)


MAKERS: dict[str, Callable[[Path], None]] = {
    "images": images,
    "clips": clips,
    "sounds": sounds,
    "speech": sounds,
    "meshes": meshes,
    "metadata": metadata,
    "shards": shards,
}
