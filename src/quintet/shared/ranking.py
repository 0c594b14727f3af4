"""Retrieval for `quintet sample`: samples by texts, captions by samples. No torch at the top."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError
from quintet.shared.sampling import go_on

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 16_000_000
TEXT_ROWS = {"cpu": 1}
"""Texts embedded together: on a CPU each by itself, where more at once take as long; elsewhere
`CUDA_TEXT_ROWS`. Always as many, of as many tokens, because other sizes may round otherwise."""
CUDA_TEXT_ROWS = 32
LEAST_TOKENS = 16
"""Tokens of a padded text at least; longer ones double."""


def read_captions(path: Path) -> list[str]:
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise RunError(f"{path} is not a file of at most {MAX_BYTES:,} bytes; give a text file")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    captions = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not captions:
        raise RunError(f"{path} is empty; write one caption per line")
    return captions


def embed_texts(model: Any, texts: Sequence[str]) -> "Tensor":
    """(n, l): the embedding of a text does not depend on the others."""
    import torch

    from quintet.shared.captions import say_cut

    device = next(model.parameters()).device
    rows = TEXT_ROWS.get(device.type, CUDA_TEXT_ROWS)
    say_cut(model.text_sizes, texts)
    groups: dict[int, list[int]] = {}
    for number, length in enumerate(_lengths(model, texts) if rows > 1 else [0] * len(texts)):
        groups.setdefault(length, []).append(number)
    embeds: dict[int, Tensor] = {}
    for length, numbers in groups.items():
        for first in range(0, len(numbers), rows):
            go_on()
            part = numbers[first : first + rows]
            filled = [texts[number] for number in [*part, *part[-1:] * (rows - len(part))]]
            with torch.no_grad():
                embeds |= zip(part, model.text(*_inputs(model, filled, length, device)))
    return torch.stack([embeds[number] for number in range(len(texts))])


def _lengths(model: Any, texts: Sequence[str]) -> list[int]:
    """Tokens of each text with padding; 0 where the tokenizer pads all alike."""
    if not hasattr(model, "tokenizer"):
        return [0] * len(texts)
    sizes = model.text_sizes(texts)
    least = [max(LEAST_TOKENS, min(size, sizes.most)) for size in sizes.sizes]
    return [min(1 << (size - 1).bit_length(), sizes.most) for size in least]


def _inputs(model: Any, texts: Sequence[str], length: int, device: Any) -> "list[Tensor | None]":
    """Of the text tower, with `length` tokens unless it is 0."""
    from torch.nn.functional import pad

    inputs, mask = model.tokenize(texts)
    if length:
        extra = (0, length - inputs.shape[1])
        inputs = pad(inputs, extra, value=model.tokenizer.pad_token_id or 0)
        mask = pad(mask, extra)
    return [None if each is None else each.to(device) for each in (inputs, mask)]


def rank(
    queries: Sequence[str], query_embeds: "Tensor", names: Sequence[str], embeds: "Tensor"
) -> list[dict[str, Any]]:
    """For each query all names with their similarity, the most similar first."""
    similarity = (query_embeds.float() @ embeds.float().T).cpu()
    values, order = similarity.sort(dim=1, descending=True, stable=True)
    return [
        {
            "of": query,
            "best": [{"name": names[i], "similarity": round(v, 4)} for v, i in zip(row, indices)],
        }
        for query, row, indices in zip(queries, values.tolist(), order.tolist())
    ]


def formatted(ranking: Sequence[dict[str, Any]], top: int) -> Iterator[str]:
    from quintet.media.errors import printable

    for entry in ranking:
        yield printable(entry["of"])
        for rank, match in enumerate(entry["best"][:top], 1):
            yield f"  {rank}. {match['similarity']:+.3f}  {printable(match['name'])}"


def written(ranking: Sequence[dict[str, Any]], out: Path) -> Path:
    path = out / "ranking.json"
    path.write_text(json.dumps(ranking, indent=1, ensure_ascii=False), encoding="utf-8")
    return path
