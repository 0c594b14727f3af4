"""An autoencoder of images that is any module of Python: frozen for the generators, and its decoder
fine-tuned.

    pixels in 0..1 -> those of the module -> encode (or encoder) -> latents
    latents -> decode (or decoder) -> pixels of the module -> 0..1

A run keeps its weights, and not its code: whoever loads the generator gives the module again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self, cast

import torch
from torch import Tensor, nn

from quintet.engine.config import require_choices
from quintet.engine.errors import RunError
from quintet.engine.models.pretrained import read_about
from quintet.nn.precision import full_precision
from quintet.shared.adopt.bottlenecks import AdoptedLatents
from quintet.shared.tokenizer.code_files import weights_digest
from quintet.shared.tokenizer.model import TokenizerModel, check_divisible, check_floats

SIDE = 256
"""Side of the picture that shows how much smaller latents are."""


@dataclass(frozen=True, kw_only=True)
class LatentModuleConfig:
    """What is known of a module."""

    name: str = "Module"
    """Its class."""
    weights: str = ""
    """Digest of its weights."""
    pixels: Literal["0..1", "-1..1"] = "0..1"
    """Range of the pixels that it takes and makes."""
    channels: int = 3
    """Channels of pictures."""
    latent_channels: int = 4
    """Channels of latents."""
    factor: int = 8
    """Pixels per latent along each side."""

    def __post_init__(self) -> None:
        require_choices(self)


class LatentModule(TokenizerModel):
    """A module with `encode(pixels) -> latents` and `decode(latents) -> pixels`, or modules
    `encoder` and `decoder`: `ImageFlow(LatentModule(module, pixels="-1..1"), image_size=256)`.

    Pictures are (b, c, h, w), and latents too; a picture must always have the same latents. Their
    channels and size are found by encoding one picture.
    """

    Config = LatentModuleConfig
    what, positions = "images", "h, w"
    config: LatentModuleConfig
    remedy: ClassVar[str] = (
        "load the generator by its class, MODEL.from_pretrained(FOLDER), and give it the module:"
        " model.set_tokenizer(LatentModule(module, pixels=…)); to resume a run, build the trainer"
        " as before and call trainer.train(resume=True)"
    )

    def __init__(
        self, network: nn.Module, *, pixels: Literal["0..1", "-1..1"], channels: int = 3
    ) -> None:
        nn.Module.__init__(self)
        self.network = network
        self.config = LatentModuleConfig(pixels=pixels, channels=channels)
        first = next(self.parameters(), None)
        if first is None:
            raise TypeError(f"{self.name} has no parameters; give the module with its weights")
        self.decoder_learns = False
        self.eval()
        latents = self.probed(first)
        self.factor, self.quantiser = SIDE // latents.shape[-1], AdoptedLatents(latents.shape[1])
        self.config = LatentModuleConfig(
            name=self.name,
            weights=bytes(weights_digest(self).tolist()).hex(),
            pixels=pixels,
            channels=channels,
            latent_channels=latents.shape[1],
            factor=self.factor,
        )

    @property
    def name(self) -> str:
        return type(self.network).__name__

    @torch.no_grad()
    def probed(self, like: Tensor) -> Tensor:
        """The latents of a grey picture, checked."""
        pixels = like.new_full((1, self.config.channels, SIDE, SIDE), 0.5)
        latents = self.called("encode", pixels)
        shape = tuple(latents.shape)
        if latents.ndim != 4 or shape[2] != shape[3] or not shape[3] or SIDE % shape[3]:
            raise ValueError(
                f"{self.name} makes latents {shape} of a picture {tuple(pixels.shape)}; it must"
                f" make (1, c, n, n) with n a divisor of {SIDE}"
            )
        if not self.called("encode", pixels).equal(latents):
            raise ValueError(
                f"{self.name} makes other latents of the same picture each time: let encode return"
                " the mean instead of a draw"
            )
        output = self.called("decode", latents)
        if output.shape != pixels.shape:
            raise ValueError(
                f"{self.name} makes {tuple(output.shape)} of the latents of a picture"
                f" {tuple(pixels.shape)}; it must make the same shape"
            )
        return latents

    def called(self, name: Literal["encode", "decode"], values: Tensor) -> Tensor:
        half: Callable[[Tensor], Any] | None = getattr(
            self.network, name, getattr(self.network, f"{name}r", None)
        )
        if half is None:
            raise TypeError(
                f"{self.name} has neither {name} nor {name}r: give a module with"
                " encode(pixels) -> latents and decode(latents) -> pixels"
            )
        made = half(values.to(next(self.parameters()).dtype))
        if not isinstance(made, Tensor):
            raise TypeError(
                f"{name} of {self.name} returns {type(made).__name__}; it must return a tensor"
            )
        return made

    def encode(self, pixels: Tensor) -> Tensor:
        self.check(pixels)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.decoder_learns):
            return self.called("encode", pixels * 2 - 1 if self.signed else pixels)

    def decode(self, values: Tensor) -> Tensor:
        output = full_precision(self.called("decode", values))
        return output * 0.5 + 0.5 if self.signed else output

    def noise_shape(self, pixels: Tensor) -> None:
        """Its latents are not drawn."""

    def train_decoder(self) -> list[str]:
        """Freeze what encoding depends on; returns the names of parameters that nothing uses."""
        self.requires_grad_(True)
        first = next(self.parameters())
        pixels = first.new_full((1, self.config.channels, SIDE, SIDE), 0.5)
        latents = self.called("encode", pixels)
        encoder = self.depends(latents)
        decoder = self.depends(self.called("decode", latents.detach()))
        if not decoder - encoder:
            raise RunError(f"decode of {self.name} has no parameters of its own to train")
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in decoder - encoder)
        self.decoder_learns = True
        return [name for name, _ in self.named_parameters() if name not in encoder | decoder]

    def depends(self, values: Tensor) -> set[str]:
        """Names of the parameters that values were computed with."""
        if not values.requires_grad:
            return set()
        names, parameters = zip(*self.named_parameters())
        found = torch.autograd.grad(values.sum(), parameters, allow_unused=True)
        grads = cast("tuple[Tensor | None, ...]", found)
        return {name for name, grad in zip(names, grads) if grad is not None}

    def train(self, mode: bool = True) -> Self:
        """The module stays in eval mode: its dropout and batch statistics are not for training a
        decoder, whose latents are those of eval."""
        return super().train(False)

    @property
    def signed(self) -> bool:
        return self.config.pixels == "-1..1"

    def grid(self, pixels: Tensor) -> tuple[int, ...]:
        return pixels.shape[-2] // self.factor, pixels.shape[-1] // self.factor

    def check(self, pixels: Tensor) -> None:
        channels = self.config.channels
        if pixels.ndim != 4 or pixels.shape[1] != channels:
            raise ValueError(f"expected images (b, {channels}, h, w), not {tuple(pixels.shape)}")
        check_floats(pixels, self.what)
        check_divisible(pixels.shape[-2], pixels.shape[-1], self.factor, self.what)

    # -- files ----------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, source: str | Path, **_: Any) -> NoReturn:
        raise RunError(
            f"{source} holds the weights of a module of Python, whose code is not kept:"
            f" {cls.remedy}"
        )

    @classmethod
    def kept_in(cls, path: Path) -> LatentModuleConfig | None:
        """What a folder says of the module whose weights it holds; None if it holds another
        model."""
        return cls._about(path) if read_about(path).get("model") == cls.label() else None


def require_same(kept: LatentModuleConfig, given: Any) -> Any:
    """The autoencoder that is given, if its latents are those of the module that was kept."""
    if given.config != kept:
        now = given.config if isinstance(given, LatentModule) else None
        about = f"a {type(given).__name__}" if now is None else described(now)
        raise RunError(
            f"the latents are those of {described(kept)}, and not of {about}: give the module and"
            " the weights of the start; folder tokenizer of the run holds these weights"
        )
    return given


def described(config: LatentModuleConfig) -> str:
    return f"{config.name} (pixels {config.pixels}, weights {config.weights[:12]})"
