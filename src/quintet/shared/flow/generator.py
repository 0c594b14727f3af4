"""FlowGenerator: a flow transformer around its frozen tokenizer, for pictures and clips."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from quintet.engine.keys import normal
from quintet.engine.settings import updated
from quintet.nn.attention import Context
from quintet.nn.flow import straight_path
from quintet.nn.precision import without_autocast
from quintet.shared.conditioning import in_blocks
from quintet.shared.flow.config import FlowConfig
from quintet.shared.flow.model import FlowTransformer
from quintet.shared.flow.solving import Solver, Start, solve
from quintet.shared.generation.generator import Generator, generating


class FlowGenerator(FlowTransformer, Generator):
    """Built from a configuration, its fields as keywords, or a tokenizer."""

    Config: ClassVar[type[FlowConfig]]
    key_name = "flow"

    def __init__(self, config: Any = None, *, tokenizer: Any = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        if isinstance(config, nn.Module):
            config, tokenizer = None, config
        base: FlowConfig = config or self.Config()
        size, frames = keywords.pop("image_size", None), keywords.pop("frames", None)
        if tokenizer is not None:
            self.check_tokenizer(tokenizer)
            base = replace(base, latent_channels=tokenizer.quantiser.channels)
        if size is not None or frames is not None:
            base = replace(base, grid=self.grid_of(tokenizer, size, frames))
        self.config = updated(base, keywords)
        self.set_tokenizer(tokenizer)
        self.build(self.config)

    # -- the tokenizer --------------------------------------------------------------------------

    @classmethod
    def check_tokenizer(cls, tokenizer: Any) -> None:
        super().check_tokenizer(tokenizer)
        if tokenizer.quantiser.code_name != "latents":
            raise ValueError(
                f"the tokenizer has ids and no latents (its quantiser is"
                f" {tokenizer.config.quantiser}): train one with quantiser kl or bounded"
            )

    def encode(self, pixels: Tensor) -> Tensor:
        """Normalised latents (b, c, *grid) of pictures or clips in 0..1."""
        self.require_latents()
        return self.normalised(self.codes_of(pixels))

    def decode(self, latents: Tensor) -> Tensor:
        """Pictures or clips in 0..1 of normalised latents."""
        self.require_latents()
        rows = self.block_rows(latents.shape[2:])
        return in_blocks(self.tokenizer.decode_from_codes, rows, self.restored(latents))

    def require_latents(self) -> None:
        if not self.measured_latents:
            raise ValueError(
                "the latents of this model are not measured yet: train it, or call"
                " measure_latents(latents)"
            )

    def measure_latents(self, latents: Tensor) -> Self:
        """Take mean and deviation of each channel from latents (b, c, …) of the data."""
        rows = latents.movedim(1, -1).flatten(0, -2).double()
        self.set_statistics(rows.mean(0).float(), rows.std(0).clamp_min(1e-6).float())
        return self

    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        self.latent_mean.copy_(mean)
        self.latent_std.copy_(std)

    def relative(self, latents: Tensor, known: Tensor) -> Tensor:
        """What is generated in place of normalised latents (b, c, *grid), where some are `known`
        (b, 1, *grid); by default the latents themselves."""
        return latents

    def absolute(self, generated: Tensor, known: Tensor) -> Tensor:
        """`relative` undone."""
        return generated

    # -- generation -----------------------------------------------------------------------------

    def start(
        self,
        keys: Tensor,
        grid: Sequence[int],
        latents: Tensor | None = None,
        known: Tensor | None = None,
        strength: float = 1.0,
    ) -> Start:
        """Noise for each key; normalised latents (b, c, *grid) stay where `known` (b, 1, *grid),
        and elsewhere a `strength` below 1 begins as far from them."""
        shape = (self.config.latent_channels, *grid)
        noise, time = normal(keys.to(self.weight.device), "noise", shape), 1 - strength
        if latents is None:
            blank = torch.zeros(len(keys), 1, *grid, dtype=torch.bool, device=noise.device)
            return Start(noise, blank)
        if not 0 < strength <= 1:
            raise ValueError(f"strength is {strength}; it must be above 0 and at most 1")
        known = torch.zeros_like(latents[:, :1], dtype=torch.bool) if known is None else known
        begun = straight_path(noise, latents, noise.new_full((len(keys),), time)).x
        return Start(torch.where(known, latents, begun), known.expand(len(keys), -1, *grid), time)

    @torch.no_grad()
    def solved(self, start: Start, context: Context | None, solver: Solver) -> Tensor:
        """Normalised latents. On CUDA weights are cast to bf16, and the graph of a step is kept for
        the next call."""
        model, cache = generating(self)
        if context is not None:
            rows = model.rows_of_text(Context(context.values.to(model.weight.dtype), context.mask))
            mask = torch.zeros(rows.shape[:2], dtype=torch.bool, device=rows.device)
            mask[:, : context.mask.shape[1]] = context.mask
            context = Context(rows, mask)
        with without_autocast(self.weight):
            return solve(model, start, context, solver, cache)

    def solver_of(self, texts: Any, settings: dict[str, Any]) -> Solver:
        """`settings` are fields of `Solver`. A model of few steps has its guidance in it."""
        if self.config.jumps:
            settings = {"steps": 4, **settings, "cond_scale": 1.0}
        solver = Solver(**settings)
        return solver if texts is not None else replace(solver, cond_scale=1.0)
