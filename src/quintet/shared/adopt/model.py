"""An autoencoder of diffusers as a tokenizer of images or clips.

    pixels in 0..1 -> -1..1 -> network.encode -> bottleneck -> network.decode -> 0..1

Classes of clips take an image as a clip of one frame, and classes of images a clip as a batch of
frames. What a class does with an input of some shape is found by a pass over tensors without values
(passes.py).
"""

import inspect
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quintet.engine.errors import RunError
from quintet.engine.models.pretrained import weights_of
from quintet.engine.part import load_strictly
from quintet.engine.runs.folder import at_step
from quintet.nn.precision import full_precision
from quintet.shared.adopt import folder, passes
from quintet.shared.adopt.bottlenecks import AdoptedGaussian, as_tensor, bottleneck_of
from quintet.shared.adopt.config import CODECS, AdoptedConfig, Trained
from quintet.shared.adopt.low_rank import PREFIX, LowRank, adaptable
from quintet.shared.adopt.passes import Shape
from quintet.shared.tokenizer.model import (
    TokenizerModel,
    check_divisible,
    check_floats,
)

SIDE, FRAMES = 256, 17
"""Size of an input that every class takes; its latents tell the factors."""


class AdoptedTokenizer(folder.Adopted, TokenizerModel):
    Config = AdoptedConfig
    refusal = "cannot be adopted for"
    axes: ClassVar[int]
    """Number of axes of a batch of pixels."""
    with_values: ClassVar[bool] = False
    """Whether passes need tensors with values."""

    def __init__(self, config: AdoptedConfig, network: nn.Module | None = None) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.network: Any = folder.build(config) if network is None else network
        self.whole_frames()
        self.takes_clips = takes_clips(self.network)
        self.encoder_learns = True
        self.low_rank: LowRank | None = None
        self._resting: list[nn.Module] = []
        self._latents: dict[Shape, Shape] = {}
        self.find_latents()

    def find_latents(self) -> None:
        """The bottleneck, and how much smaller than samples latents are."""
        if self.config.class_name in CODECS:
            raise RunError(
                f"a {self.config.class_name} is a codec of sounds, not of {self.what}; adopt it"
                " with music/adopt"
            )
        shape = self.example()
        encoded = self._try(lambda: passes.encode(self, shape))
        self.quantiser = bottleneck_of(
            self.network, encoded.gaussian, encoded.shape[1], self.config.kl_weight
        )
        self._latents[shape] = self._latent_shape(shape, encoded)
        positions = self._latents[shape][1:]
        self.factor = shape[-1] // positions[-1]

    def example(self) -> Shape:
        """The shape of a sample that every class takes."""
        return (self.config.channels, *((FRAMES,) if self.axes == 5 else ()), SIDE, SIDE)

    def whole_frames(self) -> None:
        """Without tiles, whose borders are blended, and without slices."""
        framewise = ("use_framewise_encoding", "use_framewise_decoding")
        for name in ("use_tiling", "use_slicing", *framewise):
            if hasattr(self.network, name):
                setattr(self.network, name, False)

    def _try(self, call: Any) -> Any:
        try:
            return call()
        except (NotImplementedError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise RunError(
                f"a {self.config.class_name} cannot be adopted for {self.what}: {error}"
            ) from error

    @classmethod
    def label(cls) -> str:
        """One for all rooms: each can take what another has kept of an original."""
        return "shared/adopt"

    # -- encoding and decoding --------------------------------------------------------------------

    def to_network(self, pixels: Tensor) -> Tensor:
        """Images or clips, or their latents, as the network takes them."""
        raise NotImplementedError

    def from_network(self, values: Tensor, frames: int) -> Tensor:
        raise NotImplementedError

    def encoded(self, pixels: Tensor) -> Any:
        """What the network makes of images or clips: a distribution, or latents."""
        result = self.network.encode(self.to_network(pixels * 2 - 1))[0]
        self.clear()
        return result

    def encode(self, pixels: Tensor) -> Tensor:
        """Means and log-variances of Gaussian latents, or latents."""
        self.check(pixels)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.encoder_learns):
            values = as_tensor(self.encoded(pixels))
        return self.from_network(values, self._frames(pixels))

    def decode(self, values: Tensor) -> Tensor:
        """Images or clips, not clamped."""
        output = full_precision(self.output(values))
        return self.from_network(output, self._frames(values)) * 0.5 + 0.5

    def output(self, values: Tensor) -> Tensor:
        """What the decoder returns, with the changes of a LoRA."""
        if self.low_rank is None:
            output = self.decoded(values)
        else:
            output = self.low_rank.applied(self.network, lambda: self.decoded(values))
        self.clear()
        return output

    def decoded(self, values: Tensor) -> Tensor:
        latents = self.to_network(values)
        if self.quantiser.discrete:  # `decode` of the class would quantise again
            spatial = latents if self.config.values.get("norm_type") == "spatial" else None
            return self.network.decoder(self.network.post_quant_conv(latents), spatial)
        return self.network.decode(latents, **self._arguments(values))[0]

    def _frames(self, values: Tensor) -> int:
        return values.shape[2] if self.axes == 5 else 1

    def _arguments(self, values: Tensor) -> dict[str, Any]:
        """What `decode` of some classes takes beside latents."""
        names = inspect.signature(self.network.decode).parameters
        more: dict[str, Any] = {}
        if "num_frames" in names:
            more["num_frames"] = self._frames(values)
        if "temb" in names and self.config.values.get("timestep_conditioning"):
            more["temb"] = values.new_zeros(len(values))  # no noise is left
        return more

    def clear(self) -> None:
        """Some classes keep features of the last frames between calls."""
        if hasattr(self.network, "clear_cache"):
            self.network.clear_cache()

    def latent_shape(self, shape: Shape) -> Shape:
        """Channels and positions of the latents of pixels of a shape, both without the batch."""
        if shape not in self._latents:
            self._latents[shape] = self._latent_shape(shape, passes.encode(self, shape))
        return self._latents[shape]

    def _latent_shape(self, shape: Shape, encoded: passes.Encoded) -> Shape:
        values = torch.empty(encoded.shape, device="meta")
        latents = self.from_network(values, shape[1] if self.axes == 5 else 1)
        channels = getattr(self.quantiser, "channels", latents.shape[1])
        return (channels, *latents.shape[2:])

    def grid(self, pixels: Tensor) -> tuple[int, ...]:
        return self.latent_shape(tuple(pixels.shape[1:]))[1:]

    def noise_shape(self, pixels: Tensor) -> tuple[int, ...] | None:
        if isinstance(self.quantiser, AdoptedGaussian):
            return self.latent_shape(tuple(pixels.shape[1:]))
        return None

    def check(self, pixels: Tensor) -> None:
        channels = self.config.channels
        if pixels.ndim != self.axes or pixels.shape[1] != channels:
            axes = "h, w" if self.axes == 4 else "t, h, w"
            raise ValueError(
                f"expected {self.what} (b, {channels}, {axes}), not {tuple(pixels.shape)}"
            )
        check_floats(pixels, self.what)
        check_divisible(pixels.shape[-2], pixels.shape[-1], self.factor, self.what)

    def measured(self, metrics: Mapping[str, float]) -> None:
        """The configuration stays that of the original."""

    # -- training ---------------------------------------------------------------------------------

    def train_only(self, part: Trained, shape: Shape, rank: int = 0) -> list[str]:
        """Freeze what is not trained, found by a pass over pixels of this shape; returns the names
        of parameters that nothing depends on. `rank` is that of a LoRA."""
        self.merge()
        halves = self._try(lambda: passes.both(self, shape))
        self.check_output(shape, halves.output)
        chosen = {
            # What both halves share must not change where one of them stays.
            "decoder": halves.decoder - halves.encoder,
            "encoder": halves.encoder - halves.decoder,
            "all": halves.encoder | halves.decoder,
        }["decoder" if part == "lora" else part]
        if not chosen:
            raise RunError(f"train is {part!r}, which has no parameters in this autoencoder")
        self.encoder_learns = bool(chosen & halves.encoder)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in chosen)
        used = halves.encoder | halves.decoder
        unused = [name for name, _ in self.named_parameters() if name not in used]
        if part == "lora":
            self._adapt(chosen, rank)
        self._resting = [module for module in self.network.modules() if _rests(module)]
        return unused

    def _adapt(self, chosen: Collection[str], rank: int) -> None:
        self.network.requires_grad_(False)
        shapes = adaptable(self.network, {name.removeprefix("network.") for name in chosen})
        if not shapes:
            raise RunError("train is 'lora', but the decoder has no linear or convolutional layers")
        self.low_rank = LowRank(shapes, rank)

    def check_output(self, shape: Shape, output: Shape) -> None:
        """Refuse a class that makes something of another shape."""
        if output == shape:
            return
        if self.axes == 5 and output[1] != shape[1]:
            fitting = (n for n in range(shape[1] + 1, shape[1] + 17) if self._keeps(shape, n))
            others = ", ".join(map(str, fitting)) or "another number"
            raise RunError(
                f"a {self.config.class_name} makes {output[1]} frames of {shape[1]};"
                f" set --videos.frames to {others}"
            )
        raise RunError(
            f"a {self.config.class_name} makes {output} of pixels of shape {shape}; choose sizes"
            f" divisible by {self.factor}"
        )

    def _keeps(self, shape: Shape, frames: int) -> bool:
        other = (shape[0], frames, *shape[2:])
        try:
            return passes.both(self, other).output == other
        except (RuntimeError, ValueError):
            return False

    def train(self, mode: bool = True) -> Self:
        """Frozen halves stay in eval, and so do batch norms: statistics of one micro-batch would
        make a step depend on how its batch is divided."""
        super().train(mode)
        norms = (module for module in self.network.modules() if isinstance(module, _BatchNorm))
        for module in (*self._resting, *norms):
            module.eval()
        return self

    # -- files ------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, source: str | Path, **how: Any) -> Self:
        """From a folder of diffusers, a run, or what a run keeps of its original."""
        if not folder.is_foreign(Path(source)):
            return super().from_pretrained(source, **how)
        return cls(*folder.load(Path(source))).eval()

    @classmethod
    def _from_run(cls, path: Path, step: int | str | None, about: Mapping[str, Any]) -> Self:
        weights = weights_of(at_step(path, step), about["main"]["part"])
        if not all(name.startswith(PREFIX) for name in weights):
            return super()._from_run(path, step, about)
        model = cls.from_pretrained(path / "frozen" / "autoencoder")
        model.low_rank = LowRank.like(weights, model.network)
        load_strictly(model, weights, str(path))
        return model.eval()

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        """A LoRA's factors alone: a run keeps the original once, not in each checkpoint."""
        state = super().state_dict(*args, **keywords)
        if self.low_rank is None:
            return state
        return {name: value for name, value in state.items() if name.startswith(PREFIX)}

    def merge(self) -> None:
        """Add the changes of a LoRA to the weights."""
        if self.low_rank is not None:
            with torch.no_grad():
                weights = dict(self.network.named_parameters())
                for name, value in self.low_rank.merged(weights).items():
                    weights[name].copy_(value)
            self.low_rank = None

    def stored(self) -> dict[str, Tensor]:
        state = self.network.state_dict()
        if self.low_rank is not None:
            state |= self.low_rank.merged(state)
        return folder.in_type_of(self.config, state)

    def save_stage(self, path: Path) -> None:
        self.merge()
        super().save_stage(path)

    def loading(self, path: str) -> str:
        return f"{self.config.library}.{self.config.class_name}.from_pretrained({json.dumps(path)})"


def takes_clips(network: Any) -> bool:
    """Whether it convolves over time; decoders of some classes of images do."""
    encoder = getattr(network, "encoder", network)
    return any(isinstance(module, nn.Conv3d) for module in encoder.modules())


def _rests(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)
