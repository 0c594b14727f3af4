import os
import struct
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from quintet.media.errors import BadFile
from quintet.media.pixels import (
    Extent,
    crop_box,
    probe,
    read_crop,
    read_image,
    resize_crop,
    write_png,
)
from quintet.media.sheets import grid

SMOOTH = np.stack(np.broadcast_arrays(*np.ogrid[0:240:24j, 0:200:32j], 90), -1).astype(np.uint8)


def save(path: Path, array: np.ndarray = SMOOTH, mode: str = "RGB", **options) -> Path:
    Image.fromarray(array).convert(mode).save(path, **options)
    return path


def png(width: int, height: int, body: bytes = b"") -> bytes:
    """A PNG made by hand, whose header can lie."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def test_a_chunk_that_announces_gigabytes_allocates_none(tmp_path):
    content = png(32, 24, bytes(97 * 24))
    at = content.index(b"IDAT")
    path = tmp_path / "promise.png"
    path.write_bytes(content[: at - 4] + struct.pack(">I", 2_400_000_000) + content[at:])
    tracemalloc.start()
    with suppress(BadFile):
        read_image(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "gif"])
def test_every_format_comes_back_in_colour(tmp_path, suffix):
    path = save(tmp_path / f"a.{suffix}")
    image = read_image(path)
    assert probe(path) == (32, 24)
    assert image.dtype == np.uint8
    assert np.abs(image.astype(int) - SMOOTH).mean() < 8


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"])
def test_every_mode_comes_back_as_three_channels(tmp_path, mode):
    suffix = "jpg" if mode in ("CMYK", "YCbCr") else "png"
    image = read_image(save(tmp_path / f"a.{suffix}", mode=mode))
    assert image.shape == (24, 32, 3)
    grey = SMOOTH.mean(-1, keepdims=True) if mode in ("L", "LA") else SMOOTH
    if mode != "1":
        assert np.abs(image.astype(int) - grey).mean() < 25


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    values = np.array([[0, 257 * 100, 257 * 100 + 129, 65_535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png")[0, :, 0].tolist() == [0, 100, 101, 255]


def test_transparency_shows_white(tmp_path):
    clear = np.zeros((2, 3, 4), np.uint8)
    clear[0, 0] = (10, 20, 30, 255)
    clear[0, 1] = (0, 0, 0, 128)
    Image.fromarray(clear).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png")
    assert image[0, 0].tolist() == [10, 20, 30]
    assert image[0, 1].tolist() == [127, 127, 127]
    assert image[1, 1].tolist() == [255, 255, 255]


def test_a_transparent_palette_entry_shows_white(tmp_path):
    indices = Image.fromarray(np.array([[0, 1]], np.uint8)).convert("P")
    indices.putpalette([255, 0, 0, 0, 0, 255])
    for name in ("a.gif", "a.png"):
        indices.save(tmp_path / name, transparency=0)
        pixels = read_image(tmp_path / name)
        assert pixels[0, 0].tolist() == [255, 255, 255]
        assert pixels[0, 1].tolist() != [255, 255, 255]


def test_of_a_gif_the_first_frame_is_taken(tmp_path):
    red, blue = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    red.save(tmp_path / "a.gif", save_all=True, append_images=[blue])
    assert read_image(tmp_path / "a.gif")[4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(tmp_path, orientation):
    turned = {
        1: SMOOTH,
        2: SMOOTH[:, ::-1],
        3: SMOOTH[::-1, ::-1],
        4: SMOOTH[::-1],
        5: SMOOTH.transpose(1, 0, 2),
        6: np.rot90(SMOOTH, 1),
        7: SMOOTH[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(SMOOTH, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(tmp_path / "a.png", np.ascontiguousarray(turned), exif=exif)
    assert np.array_equal(read_image(tmp_path / "a.png"), SMOOTH)


def test_broken_exif_data_is_ignored(tmp_path):
    save(tmp_path / "a.jpg", exif=b"Exif\0\0nonsense that is no TIFF header")
    assert read_image(tmp_path / "a.jpg").shape == (24, 32, 3)


def test_a_bomb_is_refused_by_its_header(tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(png(60_000, 60_000))
    for limit in (1_000_000, 10**10):
        with pytest.raises(BadFile, match="shrink the image"):
            probe(path, max_pixels=limit)
        with pytest.raises(BadFile, match="shrink the image"):
            read_image(path, max_pixels=limit)


def test_pixels_and_bytes_are_capped_with_the_field_to_raise(tmp_path):
    path = save(tmp_path / "a.png")
    with pytest.raises(BadFile, match=r"32 x 24 pixels, more than max_pixels = 700; shrink"):
        probe(path, max_pixels=700)
    with pytest.raises(BadFile, match=r"more than max_bytes = 10; .* raise max_bytes"):
        read_image(path, max_bytes=10)


def test_files_that_are_no_images_are_named_with_the_reason(tmp_path):
    cases = {
        "empty.png": (b"", "is empty"),
        "text.png": (b"hello, I am a letter", "is not one of JPEG, PNG"),
        "header.png": (png(8, 8)[:20], "header is damaged|is damaged"),
    }
    for name, (content, reason) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadFile, match=reason) as caught:
            probe(tmp_path / name)
        assert name in str(caught.value)
        assert caught.value.remedy


def test_other_formats_are_not_decoded_whatever_their_name(tmp_path):
    Image.fromarray(SMOOTH).save(tmp_path / "a.png", format="TIFF")
    (tmp_path / "b.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for name in ("a.png", "b.png"):
        with pytest.raises(BadFile, match="is not one of"):
            read_image(tmp_path / name)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "gif"])
def test_a_truncated_file_is_damaged(tmp_path, suffix):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    path = save(tmp_path / f"a.{suffix}", noise)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadFile, match=r"a\.\w+: is .*damaged"):
        read_image(path)


def test_a_png_with_too_few_rows_is_damaged(tmp_path):
    (tmp_path / "a.png").write_bytes(png(64, 64, bytes(100)))
    with pytest.raises(BadFile, match="is damaged"):
        read_image(tmp_path / "a.png")


def test_a_pipe_or_a_missing_file_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(BadFile, match="not a regular file"):
        probe(tmp_path / "pipe.png")
    with pytest.raises(BadFile, match="cannot be read"):
        probe(tmp_path / "gone.png")


@settings(deadline=None)
@given(st.data())
def test_damaged_bytes_never_raise_anything_else(tmp_path_factory, data):
    path = save(tmp_path_factory.mktemp("fuzz") / f"a.{data.draw(st.sampled_from(['jpg', 'png']))}")
    content = bytearray(path.read_bytes())
    for _ in range(4):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(BadFile):
        assert read_image(path, max_pixels=100_000).shape[2] == 3


def test_a_large_jpeg_is_decoded_smaller_but_not_below_at_least(tmp_path):
    large = np.asarray(Image.fromarray(SMOOTH).resize((1024, 768)))
    path = save(tmp_path / "a.jpg", large)
    assert read_image(path, at_least=100).shape == (192, 256, 3)
    assert read_image(path, at_least=400).shape == (768, 1024, 3)


sides = st.integers(1, 5000)
shares = st.floats(0, 1)


@settings(deadline=None)
@given(sides, sides, sides, sides, st.floats(0.01, 1), shares, shares)
def test_a_crop_lies_inside_and_has_the_requested_aspect_ratio(
    width, height, rows, columns, scale, top, left
):
    box = crop_box(Extent(width, height), (rows, columns), scale=scale, top=top, left=left)
    x, y, right, bottom = box
    assert 0 <= x < right <= width
    assert 0 <= y < bottom <= height
    wide, high = right - x, bottom - y
    assert wide * rows == pytest.approx(high * columns, rel=1e-6)
    full = min(width / columns, height / rows)
    assert wide == pytest.approx(scale * full * columns, rel=1e-6)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.05, 1), shares, shares)
def test_any_crop_of_any_image_can_be_resized(width, height, scale, top, left):
    image = np.full((height, width, 3), 77, np.uint8)
    out = resize_crop(image, (5, 9), scale=scale, top=top, left=left)
    assert out.shape == (5, 9, 3)
    assert (out == 77).all()


def test_a_scale_of_zero_is_refused():
    with pytest.raises(ValueError, match="give scale in"):
        crop_box(Extent(4, 4), (2, 2), scale=0, top=0, left=0)


def test_shrinking_does_not_alias():
    checks = (np.indices((256, 256)).sum(0) % 2 * 255).astype(np.uint8)
    small = resize_crop(np.repeat(checks[:, :, None], 3, 2), (16, 16))
    assert small.std() < 3


def test_corners_of_the_crop_follow_top_and_left():
    image = np.zeros((10, 20, 3), np.uint8)
    image[:, 10:] = 200
    assert resize_crop(image, (4, 4), left=0.0).max() < 20
    assert resize_crop(image, (4, 4), left=1.0).min() > 180


def test_a_png_comes_back_as_it_was_written(tmp_path):
    write_png(tmp_path / "a.png", SMOOTH)
    assert np.array_equal(read_image(tmp_path / "a.png"), SMOOTH)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_a_contact_sheet_has_every_image_under_its_title():
    colours = [np.full((20, 30, 3), value, np.uint8) for value in (10, 90, 170)]
    sheet = grid([colours, colours[:2]], ["original", "reconstruction", "difference"])
    for value, times in ((10, 2), (90, 2), (170, 1)):
        assert (sheet == value).all(-1).sum() == pytest.approx(600 * times, abs=30)
    assert (sheet[:20] < 128).any()
    assert grid([colours]).shape == (28, 106, 3)
    with pytest.raises(ValueError, match="at least one image"):
        grid([])


# -- crops ----------------------------------------------------------------------------------


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    """640 x 480 pixels with detail at all scales, the less the finer."""
    draw = np.random.default_rng(0)
    layers = [draw.normal(0, n, (480 // n, 640 // n, 3)) for n in (4, 8, 16, 40)]
    sized = [
        np.kron(layer, np.ones((480 // len(layer), 640 // layer.shape[1], 1))) for layer in layers
    ]
    path = tmp_path / "a.jpg"
    Image.fromarray((128 + sum(sized)).clip(0, 255).astype(np.uint8)).save(path, quality=95)
    return path


def test_a_crop_of_a_jpeg_decoded_at_half_its_size_looks_the_same(photograph: Path) -> None:
    for scale, top, left in ((0.8, 0.2, 0.9), (1.0, 0.5, 0.5)):
        crop = {"scale": scale, "top": top, "left": left}
        exact = resize_crop(read_image(photograph), (128, 128), **crop)
        fast = read_crop(photograph, (128, 128), **crop)
        error = np.mean((exact.astype(float) - fast) ** 2)
        assert 0 < error < 0.01 * exact.var()


def test_a_crop_is_never_enlarged_by_decoding_a_jpeg_at_half_its_size(photograph: Path) -> None:
    """Half of 480 lines are enough for 128 of 80 %, and too few for 200."""
    exact = resize_crop(read_image(photograph), (200, 200), scale=0.8)
    assert np.array_equal(read_crop(photograph, (200, 200), scale=0.8), exact)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "I;16", "RGB"])
@pytest.mark.parametrize("alpha", [False, True])
def test_a_crop_of_any_kind_of_image_is_that_of_its_pixels(
    tmp_path: Path, mode: str, alpha: bool
) -> None:
    values = np.random.default_rng(1).integers(0, 256, (60, 90, 4), dtype=np.uint8)
    image = Image.fromarray(values)
    image = (
        Image.fromarray(values[..., 0].astype(np.uint16) * 200)
        if mode == "I;16"
        else image.convert(mode)
    )
    image.save(tmp_path / "a.png")
    crop = {"scale": 0.7, "top": 0.1, "left": 0.8}
    exact = resize_crop(read_image(tmp_path / "a.png", alpha=alpha), (24, 32), **crop)
    actual = read_crop(tmp_path / "a.png", (24, 32), alpha=alpha, **crop)
    assert np.array_equal(actual, exact)
