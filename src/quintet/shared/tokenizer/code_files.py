"""Files of ids or latents, which `quintet sample` writes beside a reconstruction and decodes."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.models.pretrained import read_weights
from quintet.engine.runs.checkpoint import write_safetensors
from quintet.shared.tokenizer.model import TokenizerModel

DIGEST = "model_sha256"


def weights_digest(model: TokenizerModel) -> Tensor:
    """SHA-256 of all weights, uint8 (32,): equal for a checkpoint and its export."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(memoryview(flat.numpy()))  # pyright: ignore[reportArgumentType]
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def write_codes(
    path: Path, model: TokenizerModel, codes: Tensor, digest: Tensor, **more: Tensor
) -> None:
    named = {model.quantiser.code_name: codes.cpu().contiguous()}
    write_safetensors(path, {**named, DIGEST: digest, **more})


def read_codes(
    path: Path, model: TokenizerModel, digest: Tensor | None
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Codes of a file, checked, and its other tensors; a `digest` refuses codes that another model
    made. Files without one, such as codes of a generator, are accepted."""
    tensors, name = read_weights(path), model.quantiser.code_name
    codes = tensors.pop(name, None)
    if codes is None or not codes.numel():
        described = model.quantiser.describe(model.positions)
        raise RunError(f"{path} must contain a tensor {name!r} of shape {described}")
    try:
        model.quantiser.check(codes, model.positions)
    except ValueError as error:
        raise RunError(f"{path}: tensor {name!r}: {error}") from None
    own = tensors.get(DIGEST)
    if digest is not None and own is not None and not own.equal(digest):
        raise RunError(
            f"{path} has {name} of another model, or of another checkpoint of this run; decode them"
            " with the model that wrote them, or add --any-model"
        )
    return (codes if codes.is_floating_point() else codes.long()), tensors
