"""Folders of tiny autoencoders of diffusers and transformers, with random weights, as tests adopt
them."""

import atexit
import importlib
import json
import shutil
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from quintet import rooms
from quintet.engine.config import Recipe
from quintet.shared.adopt.folder import quiet


class Library:
    """Imported at its first use, by the process that runs its tests: each one collects all tests,
    and would take seconds more. Where it is not installed, the file that asks for it is skipped."""

    def __init__(self, name: str) -> None:
        import pytest

        if find_spec(name) is None:
            pytest.skip(f"needs {name}", allow_module_level=True)
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for its own names in whatever a file holds
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


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
SEANET: dict[str, Any] = {
    "upsampling_ratios": [4, 2],
    "num_filters": 4,
    "hidden_size": 8,
    "codebook_size": 16,
    "sampling_rate": 8000,
}
SOUNDS: dict[str, dict[str, Any]] = {
    "AutoencoderOobleck": {
        "encoder_hidden_size": 8,
        "downsampling_ratios": [2, 4],
        "channel_multiples": [1, 2],
        "decoder_channels": 8,
        "decoder_input_channels": 4,
        "sampling_rate": 8000,
    },
    "DacModel": {
        "encoder_hidden_size": 4,
        "downsampling_ratios": [4, 5],
        "decoder_hidden_size": 16,
        "n_codebooks": 3,
        "codebook_size": 16,
        "codebook_dim": 4,
        "sampling_rate": 8000,
    },
    "EncodecModel": SEANET
    | {"audio_channels": 2, "normalize": True, "chunk_length_s": 1.0, "overlap": 0.01}
    | {"target_bandwidths": [4.0, 12.0], "num_lstm_layers": 1},
    "MimiModel": SEANET
    | {
        "num_quantizers": 4,
        "codebook_dim": 4,
        "vector_quantization_hidden_dimension": 4,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "upsample_groups": 8,
    },
}
ADOPTED = {
    "image/adopt_tiny": "AutoencoderKL",
    "image/clip_tiny": "CLIPModel",
    "music/adopt_tiny": "DacModel",
    "music/clap_tiny": "ClapModel",
    "video/adopt_tiny": "AutoencoderKLWan",
}
"""What tests of all recipes adopt."""
CLAP: dict[str, dict[str, Any]] = {
    "text_config": {
        "vocab_size": 260,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 162,
    },
    "audio_config": {
        "window_size": 4,
        "num_mel_bins": 16,
        "spec_size": 64,
        "patch_embeds_hidden_size": 8,
        "depths": [2, 1],
        "num_attention_heads": [1, 2],
        "hidden_size": 16,
        "num_hidden_layers": 2,
    },
}
CLIP: dict[str, dict[str, Any]] = {
    "text_config": {
        "vocab_size": 258,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 257,
    },
    "vision_config": {
        "image_size": 32,
        "patch_size": 8,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
}
CLIP_PIXELS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
CLAP_SOUNDS: dict[str, Any] = {"sampling_rate": 8000, "max_length_s": 1, "hop_length": 80}


def network(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    with quiet():  # of their own use of torch
        return _network(name, changes)


def _network(name: str, changes: dict[str, Any]) -> Any:
    if not name.endswith("Model") or name == "VQModel":
        import diffusers

        return getattr(diffusers, name)(**{**IMAGES, **CLIPS, **SOUNDS}[name] | changes)
    import transformers

    if name == "ClapModel":
        return clap(transformers.ClapConfig(**CLAP, projection_dim=8, **changes))
    if name == "CLIPModel":
        made = transformers.CLIPModel(transformers.CLIPConfig(**CLIP, projection_dim=8, **changes))
        for parameter in made.parameters():  # as after training: no weight that is exactly 0
            parameter.data += torch.randn_like(parameter) * 0.05
        return made
    kind = getattr(transformers, name)
    made = kind(kind.config_class(**SOUNDS[name] | changes))
    for module in made.modules():
        if name == "DacModel" and isinstance(module, _ConvNd):
            module.reset_parameters()  # its own are so small that some gradients vanish
        for buffer in ("embed", "embed_sum"):  # codebooks that are moving averages begin at 0
            if isinstance(module._buffers.get(buffer), Tensor):
                module._buffers[buffer].normal_()
    return made


def clap(config: Any) -> Any:
    import transformers

    made = transformers.ClapModel(config)
    # As after training: statistics of dB, and no weight that is exactly 0.
    made.audio_model.audio_encoder.batch_norm.running_mean.fill_(-30.0)
    made.audio_model.audio_encoder.batch_norm.running_var.fill_(400.0)
    for parameter in made.parameters():
        parameter.data += torch.randn_like(parameter) * 0.05
    return made


def clap_processor() -> Any:
    """Log-mels of a second at 8 kHz, and a token for each byte."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return transformers.ClapProcessor(
        transformers.ClapFeatureExtractor(
            feature_size=16,
            fft_window_size=512,
            frequency_min=50,
            frequency_max=4000,
            truncation="rand_trunc",
            **CLAP_SOUNDS,
        ),
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, unk_token="<unk>", model_max_length=160, **special
        ),
    )


def clip_tokenizer() -> Any:
    """A token for each byte; the last one ends a text, and pads it."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 257), ("<s>", 256))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, **special
    )


def write_clip_processor(path: Path) -> None:
    with quiet():
        clip_tokenizer().save_pretrained(path)
    # Its class in transformers needs torchvision.
    text = json.dumps(CLIP_PIXELS)
    (path / "preprocessor_config.json").write_text(text, encoding="utf-8")


@lru_cache
def folder(name: str) -> Path:
    """As its library writes it; do not change what is in it."""
    path = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, path)
    network(name).save_pretrained(path)
    if name == "CLIPModel":
        write_clip_processor(path)
    if name == "ClapModel":
        with quiet():
            clap_processor().save_pretrained(path)
    return path


def adopts(recipe: Recipe) -> bool:
    """Whether it needs a model that no recipe trains."""
    return bool(set(recipe.stages.values()) - set(rooms.names()))
