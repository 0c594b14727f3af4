"""An adopted CLIP (arXiv 2103.00020): a joint embedding of images and text, a CLIPModel of
transformers with its own tokenizer, normalisation and temperature.

Shapes: b samples, (b, 3, h, w) images in 0..1, t tokens, l dimensions of the embedding.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from quintet.engine.errors import RunError
from quintet.engine.runs.folder import read_json
from quintet.nn.contrastive import similarities
from quintet.shared.adopt import folder
from quintet.shared.adopt.config import CLIP_FOLDER as FOLDER
from quintet.shared.adopt.config import PairConfig
from quintet.shared.adopt.pairs import AdoptedPair, processor_digest, projected
from quintet.shared.contrastive import Embedded
from quintet.shared.tokenizer.model import check_floats, check_range

TOWERS: dict[str, tuple[str, ...]] = {
    "all": ("vision_model", "visual_projection", "text_model", "text_projection"),
    "projections": ("visual_projection", "text_projection"),
    "image": ("vision_model", "visual_projection"),
    "text": ("text_model", "text_projection"),
}
PREPROCESSORS = {"preprocessor_config.json": (), "processor_config.json": ("image_processor",)}
"""Files with the normalisation of pixels, and where in them."""


@dataclass(frozen=True, kw_only=True)
class ClipConfig(PairConfig):
    """What rebuilds an adopted CLIP, but for its tokenizer."""

    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Mean of each colour channel in 0..1, subtracted from pixels."""
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    """Deviation of each channel, by which they are divided."""

    @property
    def image_size(self) -> int:
        return self._of("vision_config", "image_size", 224)

    @property
    def vocab_size(self) -> int:
        return self._of("text_config", "vocab_size", 49_408)

    @property
    def text_length(self) -> int:
        return self._of("text_config", "max_position_embeddings", 77)

    def _of(self, tower: str, name: str, default: int) -> int:
        """config.json may leave out what is the default of the class."""
        return (self.values.get(tower) or {}).get(name, default)


class AdoptedClip(AdoptedPair):
    """`embed_image(images)` and `embed_text(texts)` are the embeddings of the original."""

    Config = ClipConfig
    stage, what, original, towers = "clip", "images", FOLDER, TOWERS
    scale = "logit_scale"
    config: ClipConfig
    mean: Tensor
    std: Tensor

    def __init__(self, config: ClipConfig, network: nn.Module | None = None) -> None:
        if config.class_name != "CLIPModel":
            raise RunError(
                f"a {config.class_name} is not a joint embedding of images; give {FOLDER}"
            )
        super().__init__(config, network)
        for name in ("mean", "std"):
            value = torch.tensor(getattr(config, name), dtype=torch.float64)
            self.register_buffer(name, value[:, None, None], persistent=False)

    @classmethod
    def label(cls) -> str:
        """The family of its runs; outside judges read them too."""
        return "image/clip"

    def forward(self, images: Tensor, text: Tensor) -> Embedded:
        """Images as bytes, or in 0..1."""
        return Embedded(self.image(images), self.text(text), self.log_temperature)

    def image(self, images: Tensor) -> Tensor:
        """(b, 3, h, w) -> (b, l)."""
        dtype = getattr(self.network, self.scale).dtype
        pixels = images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
        pixels = (pixels - self.mean.to(dtype)) / self.std.to(dtype)
        pooled = self.network.vision_model(pixel_values=pixels).pooler_output
        return projected(self.network.visual_projection, pooled)

    def text(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """(b, t) -> (b, l); attention is causal and padding comes last, so it needs no mask."""
        return super().text(ids)

    @torch.no_grad()
    def embed_image(self, images: Tensor) -> Tensor:
        """(b, l) embeddings of images (b, 3, h, w) in 0..1, h and w the size of the model."""
        size = self.config.image_size
        if images.ndim != 4 or tuple(images.shape[1:]) != (3, size, size):
            raise ValueError(f"expected images (b, 3, {size}, {size}), not {tuple(images.shape)}")
        check_floats(images, "images")
        check_range(images, "images")
        return self.image(images.to(self.device))

    @torch.no_grad()
    def embed_text(self, texts: str | Sequence[str]) -> Tensor:
        """(b, l) embeddings of texts, or (l,) of one text."""
        if isinstance(texts, str):
            return self.get_text_latents([texts])[0]
        return self.get_text_latents(texts)

    def similarity(self, images: Tensor, texts: Sequence[str]) -> Tensor:
        """(images, texts): cosine similarities."""
        return similarities(self.embed_image(images), self.embed_text(texts))

    def regions(self) -> list[nn.Module]:
        """Blocks of both towers, which are recomputed or sharded one by one."""
        return [
            *self.network.vision_model.encoder.layers,
            *self.network.text_model.encoder.layers,
        ]

    @classmethod
    def from_pretrained(cls, source: str | Path, **how: Any) -> Self:
        """From a folder of transformers, a run, or what a run keeps of its original."""
        path = Path(source)
        if not folder.is_foreign(path):
            return super().from_pretrained(source, **how)
        config, network = folder.load(path, ClipConfig)
        mean, std = read_pixels(path)
        config = replace(config, mean=mean, std=std, processor=processor_digest(path))
        model = cls(config, network)
        model.read_processor(path)
        return model.eval()

    def loading(self, path: str) -> str:
        return f"transformers.CLIPModel.from_pretrained({json.dumps(path)})"


def read_pixels(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of pixels, wherever this version of transformers has written them."""
    for name, inside in PREPROCESSORS.items():
        if not (path / name).is_file():
            continue
        values = read_json(path / name)
        for field in inside:
            values = values.get(field) or {}
        if not values.get("do_normalize", True):
            return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        if {"image_mean", "image_std"} <= values.keys():
            return tuple(values["image_mean"]), tuple(values["image_std"])
    named = " or ".join(PREPROCESSORS)
    raise RunError(f"{path} has no image_mean and image_std in {named}; give {FOLDER}")
