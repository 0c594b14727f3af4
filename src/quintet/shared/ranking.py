"""Retrieval for `quintet sample`: samples by texts, captions by samples. No torch at the top."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet.engine.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 16_000_000


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
    import torch

    chunks = (list(texts[i : i + 256]) for i in range(0, len(texts), 256))
    return torch.cat([model.embed_text(chunk) for chunk in chunks])


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
