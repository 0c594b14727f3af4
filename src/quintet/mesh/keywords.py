"""Configurations of the mesh room from keywords: their fields, or the names of older packages."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from quintet.mesh.config import MeshAutoencoderConfig, MeshTransformerConfig

OLD_NAMES = {
    "attn_depth": "layers",
    "attn_heads": "heads",
    "attn_dim_head": "head_dim",
    "fine_attn_depth": "fine_layers",
    "fine_attn_heads": "fine_heads",
    "fine_attn_dim_head": "fine_head_dim",
}


def autoencoder_config(**keywords: Any) -> MeshAutoencoderConfig:
    """A configuration from its fields, or from names of older packages."""
    older = {"num_discrete_coors": "bins", "num_quantizers": "depth"}
    return MeshAutoencoderConfig(**{older.get(name, name): v for name, v in keywords.items()})


def transformer_config(
    config: MeshTransformerConfig | None, autoencoder: Any, keywords: Mapping[str, Any]
) -> MeshTransformerConfig:
    """A configuration from its fields, or from the names of older packages.

    What the autoencoder decides (codes, corners, depth, digits) is taken from it.
    """
    given = dict(keywords)
    names = {field.name for field in fields(MeshTransformerConfig)}
    for old, new in OLD_NAMES.items():
        if old in given:
            given[new] = given.pop(old)
    if "condition_on_text" in given:
        given.setdefault("text", "bytes" if given["condition_on_text"] else "none")
        del given["condition_on_text"]
    given = fields_of(autoencoder) | given
    if "max_seq_len" in given:
        corners, depth = given.get("corners", 3), given.get("depth", 2)
        given["max_faces"] = given.pop("max_seq_len") // (corners * depth)
    unknown = sorted(set(given) - names)
    if unknown:
        raise TypeError(
            f"MeshTransformer does not know {', '.join(unknown)}; it knows"
            f" {', '.join(sorted(names))}"
        )
    return MeshTransformerConfig(**given) if config is None else replace(config, **given)


def fields_of(autoencoder: Any) -> dict[str, Any]:
    if autoencoder is None:
        return {}
    found = autoencoder.config
    levels = tuple(found.levels) if found.quantiser == "fsq" else ()
    return {
        "corners": found.corners,
        "depth": found.depth,
        "codes": found.codebook_size,
        "levels": levels,
    }
