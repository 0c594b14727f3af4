"""An adopted audio codec: AutoencoderOobleck of diffusers, DacModel, EncodecModel or MimiModel of
transformers.

Shapes: b sounds of n samples and c channels, (b, c, n); t frames of `factor` samples.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.errors import RunError
from quintet.music.adopt.bottlenecks import Codebooks, DacCodebooks, MovingCodebooks
from quintet.nn.precision import full_precision
from quintet.shared.adopt.bottlenecks import AdoptedGaussian, as_tensor
from quintet.shared.adopt.config import CODECS, AdoptedConfig
from quintet.shared.adopt.model import AdoptedTokenizer
from quintet.shared.adopt.passes import Shape
from quintet.shared.tokenizer.model import Reconstruction

FRAMES = 4
"""Frames of a sound that shows which parameters an output depends on."""


class AdoptedCodec(AdoptedTokenizer):
    """`codec(sounds)` encodes and decodes; `codec.reconstruct(sounds)` without gradients."""

    what, axes, positions = "sounds", 3, "codebooks, frames"
    compared_on = "sounds"
    with_values: ClassVar[bool] = True  # EnCodec and Mimi compute sizes with tensors

    def __init__(self, config: AdoptedConfig, network: Any = None) -> None:
        if config.class_name not in CODECS:
            known = ", ".join(CODECS)
            raise RunError(f"a {config.class_name} cannot be adopted for sounds; give a {known}")
        super().__init__(config, network)

    # -- what is known of the classes ------------------------------------------------------------

    @property
    def sample_rate(self) -> int:
        return self.network.config.sampling_rate

    @property
    def channels(self) -> int:
        return getattr(self.network.config, "audio_channels", 1)

    @property
    def chunk(self) -> int | None:
        """The most samples that the class encodes at once."""
        return getattr(self.network.config, "chunk_length", None)

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        if self.config.class_name == "MimiModel":
            return self.network.config.frame_size
        if self.config.class_name == "AutoencoderOobleck":
            return self.network.hop_length
        return self.network.config.hop_length

    def example(self) -> Shape:
        return (self.channels, FRAMES * self.hop)

    def find_latents(self) -> None:
        """Without a pass: a model is also built without values, to compare its sizes with files."""
        config, self.factor = self.network.config, self.hop
        if self.config.class_name == "AutoencoderOobleck":
            channels = config.decoder_input_channels
            self.quantiser = AdoptedGaussian(channels, self.config.kl_weight)
            return
        dac = self.config.class_name == "DacModel"
        count = config.n_codebooks if dac else config.num_quantizers
        kind = DacCodebooks if dac else MovingCodebooks
        self.quantiser = kind(self.network.quantizer, config.codebook_size, count)
        if isinstance(self.quantiser, DacCodebooks):
            self.quantiser.weights = (config.commitment_loss_weight, config.codebook_loss_weight)

    def latent_shape(self, shape: Shape) -> Shape:
        channels = getattr(self.quantiser, "channels", 0)
        return (channels, -(-shape[-1] // self.hop))

    def use_codebooks(self, count: int) -> None:
        """Use the first ones only."""
        quantiser = self.quantiser
        if not isinstance(quantiser, Codebooks):
            raise RunError(f"codebooks is {count}, but a {self.config.class_name} has none")
        least = getattr(quantiser.network, "num_semantic_quantizers", 1)
        if not least <= count <= quantiser.count:
            known = f"between {least} and {quantiser.count}"
            raise RunError(f"codebooks is {count}; it must be {known}, or 0 for all")
        quantiser.count = count

    # -- encoding and decoding -------------------------------------------------------------------

    def to_network(self, pixels: Tensor) -> Tensor:
        return pixels

    def from_network(self, values: Tensor, frames: int) -> Tensor:
        return values

    def encoded(self, pixels: Tensor) -> Any:
        sounds = F.pad(pixels, (0, -pixels.shape[-1] % self.hop))
        if self.config.class_name == "AutoencoderOobleck":
            return self.network.encode(sounds)[0]
        latents = self.network.encoder(sounds)
        return latents if isinstance(latents, Tensor) else latents.latents

    def encode(self, pixels: Tensor) -> Tensor:
        """Sounds -> means and log-variances, or what the codebooks quantise."""
        self.check(pixels)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.encoder_learns):
            return as_tensor(self.encoded(pixels))

    def decode(self, values: Tensor) -> Tensor:
        """Sounds of whole frames."""
        return full_precision(self.output(values))

    def decoded(self, values: Tensor) -> Tensor:
        output = self.network.decoder(values)
        return output if isinstance(output, Tensor) else output.audio_values

    def forward(self, pixels: Tensor, noise: Tensor | None = None) -> Reconstruction:
        """Copies of sounds, as long as these."""
        scale = self._scale(pixels)
        result = super().forward(pixels if scale is None else pixels / scale, noise)
        # A little is missing at the end where strides are odd.
        output = F.pad(result.output, (0, pixels.shape[-1] - result.output.shape[-1]))
        return result._replace(output=output if scale is None else output * scale)

    def _scale(self, sounds: Tensor) -> Tensor | None:
        """Loudness, by which some EnCodec models divide."""
        if not getattr(self.network.config, "normalize", False):
            return None
        return sounds.mean(1, keepdim=True).square().mean(-1, keepdim=True).sqrt() + 1e-8

    @torch.no_grad()
    def reconstruct(self, pixels: Tensor) -> Tensor:
        """Copies, chunk by chunk where the class takes no more at once."""
        parts = pixels.split(self.chunk or pixels.shape[-1], dim=-1)
        return torch.cat([self(part).output for part in parts], -1)

    def check(self, pixels: Tensor) -> None:
        if pixels.ndim != 3 or pixels.shape[1] != self.channels:
            raise ValueError(f"expected sounds (b, {self.channels}, n), not {tuple(pixels.shape)}")

    @torch.no_grad()
    def to_codes(self, pixels: Tensor) -> Tensor:
        """Ids (b, codebooks, frames), or latents; of Gaussian ones, the means."""
        return self.quantiser.to_codes(self.encode(pixels))

    @torch.no_grad()
    def decode_from_codes(self, codes: Tensor) -> Tensor:
        """Sounds of whole frames."""
        return self.decode(self.quantiser.codes_to_values(codes))

    # -- training --------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> "AdoptedCodec":
        """Codebooks stay in eval: some leave out a share of the codebooks for a share of a
        micro-batch."""
        super().train(mode)
        if hasattr(self.network, "quantizer"):
            self.network.quantizer.eval()
        return self

    def check_output(self, shape: Shape, output: Shape) -> None:
        if output[0] != shape[0] or not 0 <= shape[1] - output[1] < self.hop:
            raise RunError(f"a {self.config.class_name} makes {output} of a sound of shape {shape}")

    def clear(self) -> None:
        """Mimi keeps its codebooks as they were computed first: not on another device."""
        for module in self.network.modules():
            if getattr(module, "_embed", None) is not None:
                module._embed = None


Model = AdoptedCodec
