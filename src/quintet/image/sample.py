"""`quintet sample` for images: generate from captions, paint into an image, reconstruct images,
decode ids or latents, or rank images by texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quintet.engine.errors import RunError
from quintet.shared.sampling import (
    IDS,
    Device,
    Input,
    check_positive,
    check_texts,
    decoding_of,
    each_input,
    find_inputs,
    has_validation,
    loaded,
    readable,
    recipe_with_data,
    stem_of,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quintet.image.maskgit import MaskGit
    from quintet.image.model import VQGanVAE


EXAMPLE = "photo.jpg --out out"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """A tokenizer takes images to reconstruct, folders of them, or .safetensors files of ids or
    latents from an earlier call. A generator makes images of --text, and paints into --image where
    --mask is white. A CLIP ranks images, or folders of them, by --text."""

    text: tuple[str, ...] = ()
    """Generator: captions to generate images from. CLIP: texts to rank images by."""
    image: Path | None = None
    """Generator: image to paint into; resized and cropped to the size of the model."""
    mask: Path | None = None
    """Generator: image of the same size, white where to paint and black elsewhere."""
    count: int = 8
    """Generator: images per caption. Others without inputs: number of validation images."""
    steps: int | None = None
    """Generator: steps of generation, 8 to 64. This and the next four are by default those of the
    run's evaluations."""
    order: Literal["confidence", "halton"] | None = None
    """Generator: which ids are fixed first, the most likely or those of a Halton sequence."""
    temperature: float | None = None
    """Generator: sampling temperature; 0 is greedy."""
    choice_temperature: float | None = None
    """Generator: noise in the choice of the most likely ids, which falls to 0."""
    cond_scale: float | None = None
    """Generator: classifier-free guidance scale; 1 disables guidance."""
    seed: int = 0
    """Generator: random seed."""
    size: tuple[int, int] | None = None
    """Tokenizer: resize and crop images to this height and width; default: crop to the next valid
    size."""
    any_model: bool = False
    """Tokenizer: decode ids or latents even if another model, or another checkpoint, made them."""
    device: Device = "auto"
    """Device; auto uses a GPU if available."""


def example(recipe: Any, run: Path) -> list[str]:
    from quintet.image.clip.config import ClipRecipe
    from quintet.image.config import MaskGitRecipe

    if isinstance(recipe, ClipRecipe):
        return ["--text", "two red stars on white", "--out", "found"] if has_validation(run) else []
    if isinstance(recipe, MaskGitRecipe):
        one = recipe.images.builtin == "figure"
        text = "a large yellow ring in the middle on purple" if one else "two red stars on white"
        captioned = [] if recipe.model.text == "none" else ["--text", text]
        return [*captioned, "--count", "4", "--out", "out"]
    return ["--out", "out"] if has_validation(run) else []


def sample(run: Path, inputs: Sequence[Path], out: Path, flags: Flags) -> list[Path | str]:
    """Write NAME.reconstruction.png, NAME.comparison.png and NAME.ids.safetensors
    (NAME.latents.safetensors of a continuous bottleneck); for such a file, NAME.decoded.png; for
    captions, CAPTION-000.png and so on, and a sheet of all; for texts to rank by, ranking.json."""
    from quintet.image.clip.model import AdoptedClip
    from quintet.image.maskgit import MaskGit
    from quintet.media.pixels import SUFFIXES
    from quintet.shared.tokenizer.codes import weights_digest

    check_positive(flags, "count")
    model: Any = loaded(run, flags.device)
    if isinstance(model, AdoptedClip):
        from quintet.image.clip.search import search

        out.mkdir(parents=True, exist_ok=True)
        files = find_inputs(inputs, (SUFFIXES,), "images", out)
        return search(model, files or _validation_images(run, out, flags.count), out, flags)
    if isinstance(model, MaskGit):
        if inputs:
            raise RunError(f"{run} is a generator: give --text, or --image and --mask, no files")
        return [*_generate(model, run, out, flags)]
    if flags.text or flags.image or flags.mask:
        raise RunError(f"{run} is a tokenizer: it takes files, not --text, --image or --mask")
    files = find_inputs(inputs, (SUFFIXES, IDS), "images, or ids or latents as .safetensors", out)
    if flags.size and any(side < 1 or side % model.factor for side in flags.size):
        raise RunError(f"size is {flags.size}; it must be divisible by the factor {model.factor}")
    digest = weights_digest(model)
    out.mkdir(parents=True, exist_ok=True)

    def work(item: Input) -> list[Path]:
        if item.path.suffix in IDS:
            return _decode(model, item, out, None if flags.any_model else digest)
        return _reconstruct(model, item, out, flags, digest)

    return [*each_input(files or _validation_images(run, out, flags.count), work)]


# -- generation -----------------------------------------------------------------------------------


Draw = Callable[..., "Tensor"]
"""Images of texts, or None, with the keywords of `MaskGit.generate`."""


def _generate(model: "MaskGit", run: Path, out: Path, flags: Flags) -> list[Path]:
    from quintet.image.maskgit_task import PictureSheet
    from quintet.media.pixels import write_png
    from quintet.shared.tokenizer.pixels import to_bytes

    check_texts(model, flags.text)
    settings, draw = decoding_of(run, flags), _painting(model, flags)
    rows: list[Tensor] = []
    paths: list[Path] = []
    texts = [*flags.text] or [""]
    for number, text in enumerate(texts):
        try:
            images = draw(
                [text] if flags.text else None,
                count=flags.count,
                seed=flags.seed + number,
                **settings,
            )
        except ValueError as error:
            raise RunError(str(error)) from None
        out.mkdir(parents=True, exist_ok=True)
        for index, picture in enumerate(images):
            path = out / f"{stem_of(text, number)}-{index:03d}.png"
            write_png(path, to_bytes(picture))
            paths.append(path)
        rows.append(images)
    titles = [f"{index:03d}" for index in range(flags.count)]
    return [*paths, *PictureSheet("sheet", [[*row] for row in rows], titles, texts).write(out)]


def _painting(model: "MaskGit", flags: Flags) -> Draw:
    import torch

    given = _painted(model, flags)
    if given is None:
        return model.generate
    image, mask = (each.to(model.weight.device) for each in given)
    factor = model.tokenizer.factor
    patches = model.patches(mask).repeat_interleave(factor, 0).repeat_interleave(factor, 1)

    def draw(texts: Any, **settings: Any) -> "Tensor":
        return torch.where(
            patches, model.generate(texts, image=image, mask=mask, **settings), image
        )

    return draw


def _painted(model: "MaskGit", flags: Flags) -> "tuple[Tensor, Tensor] | None":
    """The image (c, h, w) in 0..1 to paint into, and where."""
    import torch

    from quintet.media.pixels import read_image, resize_crop
    from quintet.shared.tokenizer.pixels import in_channels

    if flags.image is None and flags.mask is None:
        return None
    if flags.image is None or flags.mask is None:
        raise RunError("painting into an image takes --image and --mask; give both")
    channels = model.tokenizer.config.channels
    image, mask = read_image(flags.image, alpha=channels == 4), read_image(flags.mask)
    if image.shape[:2] != mask.shape[:2]:
        sizes = ["{} x {}".format(*each.shape[:2]) for each in (image, mask)]
        raise RunError(
            f"{flags.mask} has {sizes[1]} pixels, but {flags.image} has {sizes[0]}: give a mask of"
            " the same size"
        )
    if model.image_size != image.shape[:2]:
        image, mask = (resize_crop(each, model.image_size) for each in (image, mask))
    pixels = torch.from_numpy(in_channels(image, channels).copy()).permute(2, 0, 1).float() / 255
    inside = torch.from_numpy(mask.max(-1) > 127)
    if not inside.any():
        raise RunError(f"{flags.mask} is black where it is used: make white what is to be painted")
    return pixels, inside


# -- reconstruction -------------------------------------------------------------------------------


def _validation_images(run: Path, out: Path, count: int) -> list[Input]:
    from quintet.image.data import open_data
    from quintet.media.pixels import write_png

    recipe = recipe_with_data(run, "images")
    dataset = open_data(recipe.data, recipe.images, "valid", recipe.seed)
    files: list[Input] = []
    for index, item in readable(dataset, count):
        path = out / f"validation-{index:03d}.png"
        write_png(path, item["image"].permute(1, 2, 0).numpy())
        files.append(Input(path, path.stem, named=True))
    if not files:
        raise RunError(f"{run} has no readable validation image; give images")
    return files


def _reconstruct(
    model: "VQGanVAE", item: Input, out: Path, flags: Flags, digest: "Tensor"
) -> list[Path]:
    import torch

    from quintet.media.pixels import grid, middle, read_image, resize_crop, write_png
    from quintet.shared.tokenizer.codes import write_codes
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
    from quintet.shared.tokenizer.codes import read_codes
    from quintet.shared.tokenizer.pixels import to_bytes

    codes, _ = read_codes(item.path, model, digest)
    suffixes = [""] if len(codes) == 1 else [f"-{index:03d}" for index in range(len(codes))]
    paths = [item.target(out, f".decoded{suffix}.png") for suffix in suffixes]
    images = model.decode_from_codes(codes.to(next(model.parameters()).device))
    for png, image in zip(paths, images):
        write_png(png, to_bytes(image))
    return paths
