"""Folders of open_clip: open_clip_config.json and open_clip_model.safetensors.

Their model is built as a CLIPModel of transformers, which is the same network under other names, so
that open_clip itself is never imported (it needs torchvision). Linear projections are stored
transposed, and queries, keys and values of an attention as one matrix; both are exact both ways.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.models.pretrained import MAX_NUMBER, numbers
from quintet.shared.adopt.config import OPEN_CLIP

MAX_LAYERS = 1000
WEIGHTS = "open_clip_model.safetensors"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Of pixels, where a configuration names none."""
SINGLE = {
    "logit_scale": "logit_scale",
    "text_projection": "text_projection.weight",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.proj": "visual_projection.weight",
}
NORMS = {
    "ln_final": "text_model.final_layer_norm",
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
}
LAYERS = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
TOWERS = (
    ("vision_config", "visual.transformer.resblocks", "vision_model.encoder.layers"),
    ("text_config", "transformer.resblocks", "text_model.encoder.layers"),
)
TRANSPOSED = ("text_projection", "visual.proj")
HEADS = ("q_proj", "k_proj", "v_proj")
READ = {
    "": ("embed_dim", "vision_cfg", "text_cfg", "quick_gelu"),
    "vision_cfg": ("layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size"),
    "text_cfg": ("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"),
}
"""Fields of model_cfg that are understood."""
WITHOUT_EFFECT = (
    *("hf_tokenizer_name", "tokenizer_kwargs", "tokenizer_mode", "output_tokens"),
    *("pad_id", "eos_id", "init_logit_scale", "patch_dropout"),
)
"""On embeddings, or used at other settings alone. There are no dropped patches in training."""
PLAIN = {
    "vision_cfg": {"pool_type": "tok", "pos_embed_type": "learnable", "block_type": "default"},
    "text_cfg": {"pool_type": "argmax", "proj_type": "linear", "block_type": "default"},
}
"""Values of further fields that a CLIPModel has as well; so it does 0, false and null."""


def settings_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """The CLIPConfig of an open_clip_config.json; RunError if a CLIPModel is not the same."""
    model = about.get("model_cfg")
    if not isinstance(model, Mapping) or not isinstance(model.get("embed_dim"), int):
        raise RunError(
            f"{OPEN_CLIP} has no model_cfg with embed_dim; give a folder that open_clip has saved"
        )
    towers: list[Mapping[str, Any]] = [model.get(name) or {} for name in ("vision_cfg", "text_cfg")]
    for name, values in zip(("", "vision_cfg", "text_cfg"), (model, *towers)):
        _check(name, values)
    for name, value in numbers(model, "model_cfg"):
        most = MAX_LAYERS if name.endswith(".layers") else MAX_NUMBER
        if not 0 <= value <= most:
            raise RunError(f"{OPEN_CLIP}: {name} is {value:g}; it must be between 0 and {most}")
    vision, text = towers
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    width, text_width = vision.get("width", 768), text.get("width", 512)
    return {
        "projection_dim": model["embed_dim"],
        "vision_config": {
            "hidden_size": width,
            "intermediate_size": int(width * vision.get("mlp_ratio", 4.0)),
            "num_hidden_layers": vision.get("layers", 12),
            "num_attention_heads": width // vision.get("head_width", 64),
            "image_size": _side(vision.get("image_size", 224)),
            "patch_size": vision.get("patch_size", 16),
            "hidden_act": activation,
        },
        "text_config": {
            "hidden_size": text_width,
            "intermediate_size": int(text_width * text.get("mlp_ratio", 4.0)),
            "num_hidden_layers": text.get("layers", 12),
            "num_attention_heads": text.get("heads", 8),
            "max_position_embeddings": text.get("context_length", 77),
            "vocab_size": text.get("vocab_size", 49408),
            "hidden_act": activation,
            "eos_token_id": 2,  # by which transformers knows: pooled at the largest id
        },
    }


def _check(tower: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        known = name in READ[tower] or name in WITHOUT_EFFECT
        if not known and value and value != PLAIN.get(tower, {}).get(name):
            where = f"{tower}.{name}" if tower else name
            _refuse(f"its model_cfg has {where} {value!r}")
    if isinstance(values.get("layers"), (list, tuple)):
        _refuse("its image tower is a ResNet")


def _side(size: Any) -> int:
    sides = set(size) if isinstance(size, (list, tuple)) else {size}
    if len(sides) > 1:
        _refuse(f"its images are not square: vision_cfg.image_size is {size}")
    return sides.pop()


def _refuse(why: str) -> None:
    raise RunError(
        f"this model of open_clip cannot be adopted: {why}; models with two plain transformers"
        " (ViT-B-32, ViT-L-14, ViT-H-14, …) can"
    )


def pixels_of(about: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of pixels."""
    chosen = about.get("preprocess_cfg") or {}
    return tuple(chosen.get("mean") or MEAN), tuple(chosen.get("std") or STD)


# -- weights ------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A tensor of a file, and those of a CLIPModel that it holds."""

    name: str
    own: tuple[str, ...]
    """Several are stacked."""
    transposed: bool = False


def entries(settings: Mapping[str, Any]) -> Iterator[Entry]:
    """For the result of `settings_of`."""
    for name, own in SINGLE.items():
        yield Entry(name, (own,), name in TRANSPOSED)
    both = dict(NORMS)
    for tower, block, layer in TOWERS:
        for number in range(settings[tower]["num_hidden_layers"]):
            at, own = f"{block}.{number}", f"{layer}.{number}"
            both |= {f"{at}.{name}": f"{own}.{other}" for name, other in LAYERS.items()}
            for kind in ("weight", "bias"):
                heads = tuple(f"{own}.self_attn.{head}.{kind}" for head in HEADS)
                yield Entry(f"{at}.attn.in_proj_{kind}", heads)
    for name, own in both.items():
        for kind in ("weight", "bias"):
            yield Entry(f"{name}.{kind}", (f"{own}.{kind}",))


def to_transformers(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of a file, by the names of transformers."""
    known = {entry.name: entry for entry in entries(settings)}
    for name in sorted(state.keys() ^ known.keys()):
        _refuse(f"{WEIGHTS} {'lacks' if name in known else 'also holds'} {name}")
    found: dict[str, Tensor] = {}
    for name, entry in known.items():
        value = state[name].T if entry.transposed else state[name]
        parts = value.chunk(len(entry.own)) if len(entry.own) > 1 else (value,)
        found |= {own: part.contiguous() for own, part in zip(entry.own, parts)}
    return found


def from_transformers(
    state: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Back to the names of a file."""
    found: dict[str, Tensor] = {}
    for name, own, transposed in entries(settings):
        value = state[own[0]] if len(own) == 1 else torch.cat([state[part] for part in own])
        found[name] = (value.T if transposed else value).contiguous()
    return found
