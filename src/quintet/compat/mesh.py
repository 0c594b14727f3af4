"""Model arguments of older mesh packages, as fields of the configurations."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

AUTOENCODER = {"num_discrete_coors": "bins", "num_quantizers": "depth"}
TRANSFORMER = {
    "attn_depth": "layers",
    "attn_heads": "heads",
    "attn_dim_head": "head_dim",
    "fine_attn_depth": "fine_layers",
    "fine_attn_heads": "fine_heads",
    "fine_attn_dim_head": "fine_head_dim",
}


def autoencoder_keywords(keywords: Mapping[str, Any], config: Any) -> dict[str, Any]:
    return known(config, {AUTOENCODER.get(name, name): v for name, v in keywords.items()})


def transformer_keywords(keywords: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """`max_seq_len` counted codes, `max_faces` counts faces of corners x depth codes."""
    translated = {TRANSFORMER.get(name, name): value for name, value in keywords.items()}
    if "condition_on_text" in translated:
        text = "bytes" if translated.pop("condition_on_text") else "none"
        translated.setdefault("text", text)
    if "max_seq_len" in translated:
        corners, depth = (translated.get(n, getattr(config, n)) for n in ("corners", "depth"))
        translated["max_faces"] = translated.pop("max_seq_len") // (corners * depth)
    return known(config, translated)


def known(config: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(config)}
    unknown = sorted(set(keywords) - names)
    if unknown:
        raise TypeError(
            f"unknown arguments: {', '.join(unknown)}; known: {', '.join(sorted(names))}"
        )
    return keywords
