"""`quintet sample` for an image tokenizer: reconstruct images, or decode ids or latents."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    IDS,
    Device,
    Input,
    Trained,
    check_positive,
    check_size,
    each_input,
    find_inputs,
    has_validation,
    readable,
    with_input,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.image.vqgan.model import VQGanVAE

EXAMPLE = "photo.jpg --out out"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Takes images to reconstruct, folders of them, or .safetensors files of ids or latents from an
    earlier call; without any, validation images."""

    count: int = 8
    """Without inputs: number of validation images."""
    size: tuple[int, int] | None = None
    """Resize and crop images to this height and width; default: crop to the next valid size."""
    any_model: bool = False
    """Decode ids or latents even if they come from another model or checkpoint."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    from quintet.media.pixels import SUFFIXES

    words = ["--out", "out"]
    return words if has_validation(run) else with_input(recipe, run, SUFFIXES, *words)


def sample(trained: Trained, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path]:
    """Write NAME.reconstruction.png, NAME.comparison.png and NAME.ids.safetensors
    (NAME.latents.safetensors of a continuous bottleneck); for such a file, NAME.decoded.png."""
    from quintet.media.pixels import SUFFIXES
    from quintet.shared.tokenizer.code_files import weights_digest

    check_positive(flags, "count")
    model: Any = trained.model(flags.device)
    files = find_inputs(inputs, (SUFFIXES, IDS), "images, or ids or latents as .safetensors")
    check_size(flags.size, model.factor)
    digest = weights_digest(model)
    out.mkdir(parents=True, exist_ok=True)

    def work(item: Input) -> list[Path]:
        if item.path.suffix in IDS:
            return _decode(model, item, out, None if flags.any_model else digest)
        return _reconstruct(model, item, out, flags, digest)

    return each_input(files or validation_images(trained, out, flags.count), work)


def validation_images(trained: Trained, out: Path, count: int) -> list[Input]:
    from quintet.image.data import open_data
    from quintet.media.pixels import write_png

    recipe = trained.recipe_with_data("images")
    dataset = open_data(recipe.data, recipe.images, "valid", recipe.seed)
    files: list[Input] = []
    for index, item in readable(dataset, count):
        path = out / f"validation-{index:03d}.png"
        write_png(path, item["image"].permute(1, 2, 0).numpy())
        files.append(Input(path, path.stem, named=True))
    if not files:
        raise RunError(f"{trained.path} has no readable validation image; give images")
    return files


def _reconstruct(
    model: "VQGanVAE", item: Input, out: Path, flags: Flags, digest: "Tensor"
) -> list[Path]:
    import torch

    from quintet.media.pixels import middle, read_image, resize_crop, write_png
    from quintet.media.sheets import grid
    from quintet.shared.tokenizer.code_files import write_codes
    from quintet.shared.tokenizer.pixels import displayed, in_channels, to_bytes

    channels = model.config.channels
    array = read_image(item.path, alpha=channels == 4)
    size = flags.size or tuple(side // model.factor * model.factor for side in array.shape[:2])
    if min(size) < model.factor:
        raise RunError(f"{item.path} is smaller than the factor {model.factor}; give --size")
    array = resize_crop(array, size) if flags.size else middle(array, size)  # type: ignore[arg-type]
    array = in_channels(array, channels)
    image = torch.from_numpy(array.copy()).permute(2, 0, 1)[None].float() / 255
    codes = model.to_codes(image.to(next(model.parameters()).device))
    reconstruction = to_bytes(model.decode_from_codes(codes)[0])
    picture = item.target(out, ".reconstruction.png")
    sheet = item.target(out, ".comparison.png")
    code_file = item.target(out, f".{model.quantiser.code_name}.safetensors")
    write_png(picture, reconstruction)
    pair = [displayed(array), displayed(reconstruction)]
    write_png(sheet, grid([pair], ["original", "reconstruction"]))
    write_codes(code_file, model, codes, digest)
    return [picture, sheet, code_file]


def _decode(model: "VQGanVAE", item: Input, out: Path, digest: "Tensor | None") -> list[Path]:
    from quintet.media.pixels import write_png
    from quintet.shared.tokenizer.code_files import read_codes
    from quintet.shared.tokenizer.pixels import to_bytes

    codes, _ = read_codes(item.path, model, digest)
    paths = item.targets(out, ".decoded", ".png", len(codes))
    images = model.decode_from_codes(codes.to(next(model.parameters()).device))
    for png, image in zip(paths, images):
        write_png(png, to_bytes(image))
    return paths
