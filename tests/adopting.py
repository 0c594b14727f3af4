"""Folders of tiny autoencoders of diffusers, with random weights, as tests adopt them."""

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from quintet import rooms
from quintet.engine.config import Recipe

TWO_BLOCKS: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
WAN: dict[str, Any] = {
    "base_dim": 4,
    "z_dim": 4,
    "dim_mult": [1, 1, 1],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True],
}
IMAGES: dict[str, dict[str, Any]] = {
    "AutoencoderKL": TWO_BLOCKS | {"block_out_channels": (8, 16), "norm_num_groups": 4},
    "AsymmetricAutoencoderKL": TWO_BLOCKS
    | {
        "down_block_out_channels": (8, 16),
        "up_block_out_channels": (8, 16),
        "norm_num_groups": 4,
    },
    "VQModel": TWO_BLOCKS
    | {"block_out_channels": (8, 16), "norm_num_groups": 4, "num_vq_embeddings": 32},
    "AutoencoderTiny": {
        "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8),
        "num_encoder_blocks": (1, 2),
        "num_decoder_blocks": (2, 1),
    },
    "AutoencoderDC": {
        "in_channels": 3,
        "latent_channels": 4,
        "attention_head_dim": 2,
        "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8),
        "encoder_qkv_multiscales": ((), (5,)),
        "decoder_qkv_multiscales": ((), (5,)),
        "encoder_layers_per_block": (1, 1),
        "decoder_layers_per_block": (1, 1),
        "downsample_block_type": "conv",
        "upsample_block_type": "interpolate",
    },
    "AutoencoderKLFlux2": TWO_BLOCKS
    | {"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4},
    "AutoencoderKLHunyuanImage": {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 4,
        "block_out_channels": (32, 32),
        "layers_per_block": 1,
        "spatial_compression_ratio": 2,
        "sample_size": 16,
    },
    "AutoencoderKLQwenImage": WAN,
}
CLIPS: dict[str, dict[str, Any]] = {
    "AutoencoderKLWan": WAN,
    "AutoencoderKLCosmos": {
        "encoder_block_out_channels": (8, 8, 8, 8),
        "decode_block_out_channels": (8, 8, 8, 8),
        "latent_channels": 4,
        "resolution": 16,
        "num_layers": 1,
        "attention_resolutions": (8,),
        "patch_size": 2,
        "spatial_compression_ratio": 4,
        "temporal_compression_ratio": 4,
    },
    "AutoencoderKLCogVideoX": {
        "block_out_channels": (8, 8, 8),
        "down_block_types": ("CogVideoXDownBlock3D",) * 3,
        "up_block_types": ("CogVideoXUpBlock3D",) * 3,
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "temporal_compression_ratio": 4,
    },
    "AutoencoderKLLTXVideo": {
        "latent_channels": 8,
        "block_out_channels": (8, 8, 8, 8),
        "decoder_block_out_channels": (8, 8, 8, 8),
        "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1, 1),
        "spatio_temporal_scaling": (True, True, False, False),
        "decoder_spatio_temporal_scaling": (True, True, False, False),
        "patch_size": 1,
    },
    "AutoencoderKLHunyuanVideo": {
        "latent_channels": 4,
        "block_out_channels": (8, 8, 8, 8),
        "layers_per_block": 1,
        "norm_num_groups": 4,
    },
    "AutoencoderKLMochi": {
        "latent_channels": 4,
        "encoder_block_out_channels": (32, 32, 32, 32),
        "decoder_block_out_channels": (32, 32, 32, 32),
        "layers_per_block": (1, 1, 1, 1, 1),
    },
    "AutoencoderKLMagvit": {
        "block_out_channels": (8, 8, 8),
        "down_block_types": ["SpatialDownBlock3D", *["SpatialTemporalDownBlock3D"] * 2],
        "up_block_types": ["SpatialUpBlock3D", *["SpatialTemporalUpBlock3D"] * 2],
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 2,
    },
    "AutoencoderKLTemporalDecoder": {
        "block_out_channels": (32, 32),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "latent_channels": 4,
        "layers_per_block": 1,
    },
}
ADOPTED = {"image": "AutoencoderKL", "video": "AutoencoderKLWan"}
"""What tests of all recipes adopt."""


def network(name: str, **changes: Any) -> Any:
    import diffusers

    torch.manual_seed(0)
    return getattr(diffusers, name)(**{**IMAGES, **CLIPS}[name] | changes)


@lru_cache
def folder(name: str) -> Path:
    """As diffusers writes it; do not change what is in it."""
    path = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, path)
    network(name).save_pretrained(path)
    return path


def adopts(recipe: Recipe) -> bool:
    """Whether it needs a model that no recipe trains."""
    return bool(set(recipe.stages.values()) - set(rooms.names()))
