"""Settings of recipes that adopt a model of diffusers or transformers. Imports no torch."""

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from quintet.engine.config import Recipe, require, require_at_least, require_choices, setting
from quintet.shared.tokenizer.config import TokenizerRecipe

Trained = Literal["decoder", "encoder", "all", "lora"]
CODECS = ("AutoencoderOobleck", "DacModel", "EncodecModel", "MimiModel")
"""Classes of sounds."""
CONTRASTIVE = ("ClapModel", "CLIPModel")
"""Classes of joint embeddings with text, of sounds and of images."""
FOLDER = "a folder with config.json and safetensors, as diffusers or transformers writes it"

CLIP_FOLDER = (
    "a folder of a transformers CLIPModel: config.json, safetensors, and its processor's files"
)


@dataclass(frozen=True, kw_only=True)
class OriginalConfig:
    """What rebuilds an adopted model: its class and its own configuration."""

    library: Literal["diffusers", "transformers"] = "diffusers"
    """The library that has its class."""
    class_name: str = "AutoencoderKL"
    """The class."""
    settings: str = "{}"
    """Text of its config.json, kept to the byte."""
    dtype: str = "float32"
    """Type of the weights in its files; training is in fp32."""
    dtypes: str = "{}"
    """Where files mix several: types by the names of tensors, as JSON."""

    def __post_init__(self) -> None:
        require_choices(self)

    @property
    def values(self) -> dict[str, Any]:
        return json.loads(self.settings)


@dataclass(frozen=True, kw_only=True)
class PairConfig(OriginalConfig):
    """What rebuilds an adopted joint embedding with text, but for its tokenizer."""

    processor: str = ""
    """Digest of the files of its tokenizer and feature extractor."""

    loss: ClassVar[Literal["softmax"]] = "softmax"
    text: ClassVar[str] = "tokens"

    @property
    def vocab_size(self) -> int:
        raise NotImplementedError

    @property
    def text_length(self) -> int:
        """The most tokens that have positions."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AdoptedConfig(OriginalConfig):
    """What rebuilds an adopted autoencoder."""

    kl_weight: float = 1e-6
    """Weight of the divergence from a standard normal, in nats per element of the latents."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kl_weight >= 0, "kl_weight", self.kl_weight, "0 or more")

    @property
    def channels(self) -> int:
        """Channels of images and frames; some classes count those of patches, always RGB."""
        channels = self.values.get("in_channels", 3)
        return channels if channels in (1, 3, 4) else 3

    @property
    def quantiser(self) -> str:
        """Its name among the bottlenecks of Quintet."""
        return "vq" if self.class_name == "VQModel" else "kl"


@dataclass(frozen=True, kw_only=True)
class AdoptSettings(Recipe):
    """What every recipe that adopts a model has."""

    stages: ClassVar[Mapping[str, str]] = types.MappingProxyType({"autoencoder": FOLDER})
    """The original; the run keeps a copy."""
    autoencoder: str | None = setting(path=True)
    """Folder of the autoencoder (config.json and safetensors), or a run of this recipe; on the
    command line also --from."""
    train: Trained = "decoder"
    """What is trained. decoder and lora (low-rank changes of the decoder's linear and
    convolutional layers) keep the latents unchanged, so models trained on them keep working."""
    lora_rank: int = 16
    """lora: rank of the changes; an export holds their sum with the original weights."""
    kl_weight: float = 1e-6
    """Gaussian latents: weight of their divergence from a standard normal, in nats per element."""
    warm_discriminator: int = 0
    """Initial steps that train only the discriminators, against the frozen autoencoder. 0:
    discriminators start at losses.adversarial_from. A shorter run warms them for its first half."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lora_rank >= 1, "lora_rank", self.lora_rank, "1 or more")
        require_at_least(0, self, "warm_discriminator")

    @property
    def warm_steps(self) -> int:
        planned = self.planned_steps or self.steps
        return self.warm_discriminator if self.warm_discriminator < planned else planned // 2


@dataclass(frozen=True, kw_only=True)
class AdoptRecipe(AdoptSettings, TokenizerRecipe):
    """A recipe that adopts an autoencoder of images or clips, with discriminators."""

    @property
    def tokenizer_start(self) -> int:
        return 0 if self.losses.adversarial == "none" else self.warm_steps

    @property
    def adversarial_start(self) -> int:
        return 0 if self.warm_steps else super().adversarial_start
