"""Files of ids, as `quintet sample` writes them beside a reconstruction and decodes them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.models.pretrained import read_weights
from quintet.engine.runs.checkpoint import write_safetensors
from quintet.shared.tokenizer.model import TokenizerModel, check_ids

DIGEST = "model_sha256"


def weights_digest(model: TokenizerModel) -> Tensor:
    """SHA-256 of all weights, uint8 (32,): equal for a checkpoint and its export."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(memoryview(flat.numpy()))  # pyright: ignore[reportArgumentType]
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def write_ids(path: Path, ids: Tensor, digest: Tensor, **more: Tensor) -> None:
    write_safetensors(path, {"ids": ids.cpu(), DIGEST: digest, **more})


def read_ids(
    path: Path, model: TokenizerModel, axes: str, digest: Tensor | None
) -> Mapping[str, Tensor]:
    """Tensors of a file, its ids checked; a `digest` refuses ids that another model made. Files
    without one, such as ids of a generator, are accepted."""
    tensors = read_weights(path)
    ids = tensors.get("ids")
    if ids is None or not ids.numel():
        raise RunError(f"{path} must contain an integer tensor 'ids' of shape ({axes})")
    try:
        check_ids(ids, axes, model.codebook_size)
    except ValueError as error:
        raise RunError(f"{path}: tensor 'ids': {error}") from None
    own = tensors.get(DIGEST)
    if digest is not None and own is not None and not own.equal(digest):
        raise RunError(
            f"{path} has ids of another model, or of another checkpoint of this run; decode them "
            "with the model that wrote them, or add --any-model"
        )
    return tensors
