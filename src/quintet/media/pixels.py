"""Reading and writing of images, uint8 (h, w, 3); headers are checked before decoding.

Pillow is imported on first use.
"""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from quintet.files import atomic_write
from quintet.media.errors import BadFile, OutOfRange, check_file, decoding
from quintet.media.shards.member import as_path

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
UNREAD = (".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".tga", ".exr")
"""Image formats that are not read; their files are counted."""
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 64_000_000
MAX_BYTES = 256_000_000
OVERSAMPLING = 1.25
"""Minimum size of a crop of a JPEG decoded at reduced size, relative to its final size. The last
step is then still a reduction, without aliasing; decoding at 1/2 averages blocks before it."""
LEAST = 64
"""Pixels per byte that only blank images exceed; photographs have fewer than 20."""


class Extent(NamedTuple):
    width: int
    height: int


Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a rectangle in pixels."""


def _check_extent(path: Path, extent: Extent, max_pixels: int) -> None:
    width, height = extent
    if width < 1 or height < 1:
        raise BadFile(path, f"is {width} x {height} pixels", "remove it from the data")
    if width * height > max_pixels:
        reason, limit = f"is {width} x {height} pixels", f"more than max_pixels = {max_pixels:,}"
        remedy = "shrink the image or raise max_pixels"
        raise OutOfRange(path, reason, limit, remedy, width * height)


class BoundedReader(BufferedReader):
    """Reader that limits every read to the size of the file: Pillow would allocate the gigabytes
    that a damaged header announces before it reads the first byte."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("rb", buffering=0))
        self.max_bytes = path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(-1 if size is None else min(size, self.max_bytes))


@contextmanager
def opened(
    path: Path, max_pixels: int, max_bytes: int, whole: bool = False
) -> "Generator[Image, None, None]":
    """Open an image and check its header; decoder errors inside the context become BadFile. With
    `whole` the file is read at once, which is faster if all of it is needed."""
    from PIL import Image, UnidentifiedImageError

    check_file(path, max_bytes, "shrink the image")
    bombs = (Image.DecompressionBombWarning, Image.DecompressionBombError)
    pillow_limit = Image.MAX_IMAGE_PIXELS or max_pixels
    with decoding(path, "pillow"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # unusual metadata; only the pixels matter
                # Pillow's own limit counts unless the settings allow larger images.
                if max_pixels <= pillow_limit:
                    warnings.simplefilter("error", Image.DecompressionBombWarning)
                content = BytesIO(path.read_bytes()) if whole else BoundedReader(path)
                with content as file, Image.open(file, formats=FORMATS) as image:
                    _check_extent(path, Extent(*image.size), max_pixels)
                    yield image
        except bombs as error:
            reason = f"could exhaust the memory ({error})"
            raise BadFile(path, reason, "shrink the image") from error
        except UnidentifiedImageError as error:
            reason = f"is not one of {', '.join(FORMATS)}, or its header is damaged"
            raise BadFile(path, reason, "remove it or save it again as PNG") from error


def probe(path: Path | str, max_pixels: int = MAX_PIXELS, max_bytes: int = MAX_BYTES) -> Extent:
    """Width and height as stored, from the header."""
    with opened(as_path(path), max_pixels, max_bytes) as image:
        return Extent(*image.size)


def upright_extent(path: Path, max_pixels: int, max_bytes: int) -> Extent:
    """Width and height as shown: many cameras store a turn of the picture beside it."""
    with opened(path, max_pixels, max_bytes) as image:
        turned = _orientation(image) in (5, 6, 7, 8)
        return Extent(*(image.size[::-1] if turned else image.size))


def check_size(path: Path, max_pixels: int, max_bytes: int) -> None:
    """Check bytes and pixels. Files too small for so many pixels are not opened, which spares
    nearly all of a large folder."""
    check_file(path, max_bytes, "shrink the image")
    if path.stat().st_size > max_pixels // LEAST:
        probe(path, max_pixels, max_bytes)


def read_image(
    path: Path | str,
    *,
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = MAX_BYTES,
    at_least: int | None = None,
    alpha: bool = False,
) -> Pixels:
    """The image (the first frame of a GIF) as RGB on white, with its EXIF orientation applied.
    With `alpha` it is RGBA (h, w, 4).

    With `at_least` a large JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, several times
    faster, as long as its shorter side has at least so many pixels.
    """
    with opened(as_path(path), max_pixels, max_bytes, whole=True) as image:
        return _to_pixels(_decoded(image, at_least), alpha)


def read_crop(
    path: Path | str,
    size: tuple[int, int],
    *,
    scale: float = 1.0,
    top: float = 0.5,
    left: float = 0.5,
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = MAX_BYTES,
    alpha: bool = False,
) -> Pixels:
    """`resize_crop` of `read_image`; a JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the
    crop still has `OVERSAMPLING` times the pixels of `size` along each side."""
    from PIL import Image

    crop = {"scale": scale, "top": top, "left": left}
    with opened(as_path(path), max_pixels, max_bytes, whole=True) as image:
        upright = _decoded(image, ceil(OVERSAMPLING * max(size) / scale))
        if alpha or upright.mode != "RGB" or upright.has_transparency_data:
            return resize_crop(_to_pixels(upright, alpha), size, **crop)
        box = crop_box(Extent(*upright.size), size, **crop)
        return np.array(upright.resize((size[1], size[0]), Image.Resampling.LANCZOS, box=box))


def _decoded(image: "Image", at_least: int | None) -> "Image":
    if at_least is not None and image.format == "JPEG":
        _draft(image, at_least)
    image.load()
    return _upright(image)


def _to_pixels(image: "Image", alpha: bool) -> Pixels:
    if alpha and image.has_transparency_data:
        return np.array(image.convert("RGBA"))
    rgb = to_rgb(image)
    return np.dstack([rgb, np.full_like(rgb[..., :1], 255)]) if alpha else rgb


def _draft(image: "Image", at_least: int) -> None:
    width, height = image.size
    share = min(1.0, at_least / min(width, height))
    image.draft(None, (ceil(width * share), ceil(height * share)))  # type: ignore[arg-type]


def _orientation(image: "Image") -> int:
    """How the picture is turned, as EXIF numbers it; 1 for upright."""
    try:
        return image.getexif().get(0x0112, 1)
    except Exception:  # whatever these tags hold, the pixels are intact
        return 1


def _upright(image: "Image") -> "Image":
    """The image with its EXIF orientation applied; unreadable EXIF data is ignored."""
    from PIL.Image import Transpose

    operations = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    orientation = _orientation(image)
    return image.transpose(operations[orientation]) if orientation in operations else image


def to_rgb(image: "Image") -> Pixels:
    """An image of any Pillow mode as uint8 (h, w, 3)."""
    from PIL import Image

    if image.mode.startswith("I"):
        return _deep_grey(np.asarray(image))
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, clear)
    return np.array(image.convert("RGB"))


def _deep_grey(values: npt.NDArray[np.generic]) -> Pixels:
    """16-bit grey to 8 bits, rounded: 65,535 is white."""
    scaled = (np.clip(values.astype(np.int64), 0, 65_535) + 128) // 257
    return np.repeat(scaled.astype(np.uint8)[:, :, None], 3, axis=2)


def crop_box(
    extent: Extent, size: tuple[int, int], *, scale: float, top: float, left: float
) -> Box:
    """A rectangle inside the extent with the aspect ratio of `size` (height, width).

    `scale` is relative to the largest such rectangle; `top` and `left`, 0..1, are its position in
    the remaining space: 0.5 and 0.5 are the centre.
    """
    if not 0 < scale <= 1 or not 0 <= top <= 1 or not 0 <= left <= 1:
        raise ValueError(f"scale {scale}, top {top}, left {left}: give scale in (0, 1], rest 0..1")
    height, width = size
    unit = scale * min(extent.width / width, extent.height / height)
    wide, high = min(width * unit, extent.width), min(height * unit, extent.height)
    x, y = left * (extent.width - wide), top * (extent.height - high)
    return x, y, min(x + wide, extent.width), min(y + high, extent.height)


def resize_crop(
    array: Pixels,
    size: tuple[int, int],
    *,
    scale: float = 1.0,
    top: float = 0.5,
    left: float = 0.5,
) -> Pixels:
    """The crop of `crop_box`, resampled without aliasing to exactly `size` (height, width)."""
    from PIL import Image

    height, width = size
    extent = Extent(array.shape[1], array.shape[0])
    box = crop_box(extent, size, scale=scale, top=top, left=left)
    lanczos = Image.Resampling.LANCZOS
    return np.array(Image.fromarray(array).resize((width, height), lanczos, box=box))


def middle(array: Pixels, size: tuple[int, int]) -> Pixels:
    """The centre crop of an image, not resampled."""
    top, left = ((have - want) // 2 for have, want in zip(array.shape, size))
    return array[top : top + size[0], left : left + size[1]]


def write_png(path: Path | str, array: Pixels) -> None:
    """Write uint8 (h, w) or (h, w, c), c = 1, 3 or 4; the file is complete or absent."""
    from PIL import Image

    content = BytesIO()
    array = array[:, :, 0] if array.shape[2:] == (1,) else array
    Image.fromarray(np.ascontiguousarray(array)).save(content, format="PNG")
    atomic_write(path, content.getvalue())
