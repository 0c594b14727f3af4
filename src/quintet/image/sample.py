"""`quintet sample` for images: reconstruct images, or decode ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    Device,
    check_inputs,
    check_positive,
    loaded,
    readable,
    recipe_with_data,
)

if TYPE_CHECKING:
    from quintet.image.model import VQGanVAE


EXAMPLE = "photo.jpg --out out"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Inputs: images to reconstruct, or .safetensors files of ids from an earlier call."""

    size: tuple[int, int] | None = None
    """Resize and crop images to this height and width; default: crop to the next valid size."""
    count: int = 8
    """Without inputs: number of validation images to reconstruct."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write NAME.reconstruction.png and NAME.ids.safetensors; for ids, NAME.decoded.png."""
    check_inputs(inputs, "images, or ids as .safetensors")
    check_positive(flags, "count")
    model: VQGanVAE = loaded(run, flags.device)
    if flags.size and any(side < 1 or side % model.factor for side in flags.size):
        raise RunError(f"size is {flags.size}; it must be divisible by the factor {model.factor}")
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for path in inputs or _validation_images(run, out, flags.count):
        if path.suffix == ".safetensors":
            written += _decode(model, path, out)
        else:
            written += _reconstruct(model, path, out, flags)
    return written


def _validation_images(run: Path, out: Path, count: int) -> list[Path]:
    from quintet.image.data import open_data
    from quintet.media.pixels import write_png

    recipe = recipe_with_data(run, "images")
    dataset = open_data(recipe.data, recipe.images, "valid", recipe.seed)
    paths = []
    for index, item in readable(dataset, count):
        paths.append(out / f"validation-{index:03d}.png")
        write_png(paths[-1], item["image"].permute(1, 2, 0).numpy())
    return paths


def _reconstruct(model: "VQGanVAE", path: Path, out: Path, flags: Flags) -> list[Path]:
    import torch

    from quintet.engine.runs.checkpoint import write_safetensors
    from quintet.media.pixels import grid, middle, read_image, resize_crop, write_png
    from quintet.shared.tokenizer.pixels import displayed, in_channels, to_bytes

    channels = model.config.channels
    array = read_image(path, alpha=channels == 4)
    size = flags.size or tuple(side // model.factor * model.factor for side in array.shape[:2])
    if min(size) < model.factor:
        raise RunError(f"{path} is smaller than the factor {model.factor}; give --size")
    array = resize_crop(array, size) if flags.size else middle(array, size)  # type: ignore[arg-type]
    array = in_channels(array, channels)
    image = torch.from_numpy(array.copy()).permute(2, 0, 1)[None].float() / 255
    ids = model.tokenize(image.to(next(model.parameters()).device))
    reconstruction = to_bytes(model.decode_from_ids(ids)[0])
    picture = out / f"{path.stem}.reconstruction.png"
    id_file = out / f"{path.stem}.ids.safetensors"
    pair = [displayed(array), displayed(reconstruction)]
    write_png(picture, grid([pair], ["original", "reconstruction"]))
    write_safetensors(id_file, {"ids": ids.cpu()})
    return [picture, id_file]


def _decode(model: "VQGanVAE", path: Path, out: Path) -> list[Path]:
    from quintet.engine.models.pretrained import read_weights
    from quintet.media.pixels import write_png
    from quintet.shared.tokenizer.pixels import to_bytes

    ids = read_weights(path).get("ids")
    if ids is None or ids.ndim != 3 or ids.is_floating_point() or not ids.numel():
        raise RunError(f"{path} must contain an integer tensor 'ids' of shape (b, h, w)")
    if not 0 <= int(ids.min()) <= int(ids.max()) < model.codebook_size:
        raise RunError(f"{path} has ids outside 0 … {model.codebook_size - 1}")
    stem = path.name.removesuffix(".safetensors").removesuffix(".ids")
    suffixes = [""] if len(ids) == 1 else [f"-{index:03d}" for index in range(len(ids))]
    paths = [out / f"{stem}.decoded{suffix}.png" for suffix in suffixes]
    images = model.decode_from_ids(ids.long().to(next(model.parameters()).device))
    for png, image in zip(paths, images):
        write_png(png, to_bytes(image))
    return paths
