"""CLIPScore (arXiv 2104.08718): the similarity of a picture and its caption in a CLIP."""

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.judges import weights
from quintet.judges.base import Array, PairJudge
from quintet.judges.networks import batches, eight_bit, exact
from quintet.media.pixels import middle
from quintet.media.sidecars import REMEDY
from quintet.shared.adopt.clip import AdoptedClip
from quintet.shared.ranking import embed_texts
from quintet.shared.sampling import on_device

WEIGHT = 100
FOLDER = (
    "a folder of a transformers CLIPModel (config.json, model.safetensors and its processor's"
    " files), or a run or an export of image/clip,"
)


def fitted(picture: Tensor, side: int) -> Tensor:
    """(3, h, w) in 0..1 -> (3, side, side) in whole 8-bit levels: as CLIP was trained, the shorter
    side by a bicubic filter, then the square in the centre."""
    from PIL import Image

    image = Image.fromarray(eight_bit(picture).byte().permute(1, 2, 0).numpy())
    width, height = (length * side // min(image.size) for length in image.size)
    resized = np.array(image.resize((width, height), Image.Resampling.BICUBIC))
    return torch.from_numpy(middle(resized, (side, side))).permute(2, 0, 1) / 255


class ClipScore(PairJudge):
    name, medium, better = "clip_score", "image", "higher"
    about = "CLIPScore: similarity of each picture and its caption in a CLIP, averaged."
    reads_captions = True
    needs = "weights clip, a folder, and quintet[adopt]"

    def problem(self) -> str | None:
        if find_spec("transformers") is None:
            return "needs transformers: pip install 'quintet[adopt]'"
        path = weights.folder() / "clip"
        return None if path.is_dir() else f"needs {FOLDER} as {path}"

    @cached_property
    def model(self) -> Any:
        if problem := self.problem():
            raise RunError(f"the judge {self.name} {problem}")
        path = weights.folder() / "clip"
        try:
            return AdoptedClip.from_pretrained(path).to(on_device("auto"))
        except RunError as error:
            raise RunError(f"the judge {self.name} needs {FOLDER} as {path}: {error}") from None

    def facts(self) -> dict[str, str]:
        config = self.model.config
        side = config.image_size
        return {
            "score": f"{WEIGHT} x max(cosine, 0) (arXiv 2104.08718: 2.5), mean over pictures",
            "prompt": "the caption alone (arXiv 2104.08718: after 'A photo depicts')",
            "caption": f"the first {config.text_length} tokens",
            "resize": f"shorter side to {side}, bicubic with antialiasing (Pillow), centre crop",
            "weights": weights.digest_of_tensors(self.model.network.state_dict()),
            "processor": config.processor[:16],
        }

    def rows(self, references: Sequence[str], outputs: Sequence[Tensor]) -> Array:
        if missing := sum(not caption.strip() for caption in references):
            raise RunError(
                f"{self.name} compares pictures with captions, and {missing} of {len(references)}"
                f" have none; {REMEDY}, or name other judges"
            )
        model, side = self.model, self.model.config.image_size
        with exact():
            pictures = batches([fitted(picture, side) for picture in outputs])
            images = torch.cat([model.embed_image(x) for x in pictures])
            cosines = (images.double() * embed_texts(model, references)).sum(1)
        return (WEIGHT * cosines.clamp_min(0)).cpu().numpy()
