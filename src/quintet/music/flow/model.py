"""MusicFlow: music from captions by flow matching (arXiv 2210.02747) over the latents of a codec.

caption -> flow transformer, some steps -> latents (b, c, frames) -> codec -> sounds (b, c, n)

Longer music is made window by window. Each has the length of training and some latents of the
music so far, which stay as they are; so do those around a span, and those of a song that goes on.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.keys import fold
from quintet.music.flow.config import MusicFlowConfig
from quintet.nn.attention import Context
from quintet.shared.conditioning import in_blocks
from quintet.shared.flow.generator import FlowGenerator
from quintet.shared.flow.solving import Solver
from quintet.shared.generation.generator import Seed, sample_keys
from quintet.shared.sampling import go_on

FADE = 0.01
"""Seconds over which a given sound and a generated one change into each other."""
SEAM = 4
"""This fraction of a window is generated again where the end of a loop meets its start."""
MOST_SECONDS = 600.0
"""Seconds of a sound that is given, or generated."""


class MusicFlow(FlowGenerator):
    """Generator of music, built from a configuration, its fields as keywords, or a codec and the
    length of its windows: `MusicFlow(codec, seconds=10, dim=512)`."""

    Config = MusicFlowConfig
    config: MusicFlowConfig

    def __init__(
        self, config: Any = None, *, tokenizer: Any = None, seconds: Any = None, **keywords: Any
    ) -> None:
        if seconds is not None:
            codec = config if isinstance(config, nn.Module) else tokenizer
            keywords["grid"] = self.grid_of(codec, seconds)
        super().__init__(config, tokenizer=tokenizer, **keywords)

    @classmethod
    def tokenizer_classes(cls) -> Sequence[type[Any]]:
        from quintet.music.codec.model import Codec

        return [Codec]

    @classmethod
    def grid_of(cls, tokenizer: Any, size: Any, frames: int | None = None) -> tuple[int, ...]:
        """Frames of the codec in so many seconds."""
        if tokenizer is None or size is None or frames is not None:
            raise ValueError("give seconds beside a codec, or grid; music has no size and frames")
        if not 0 < size <= MOST_SECONDS:
            raise ValueError(f"seconds is {size}; it must be above 0 and at most {MOST_SECONDS:g}")
        return (max(1, round(size * tokenizer.sample_rate / tokenizer.hop)),)

    @property
    def seconds(self) -> float:
        """Length of a window."""
        return self.config.grid[0] * self.tokenizer.hop / self.tokenizer.sample_rate

    def codes_of(self, pixels: Tensor) -> Tensor:
        encode = lambda each: torch.cat([*self.tokenizer.encode_chunks([each])], -1)
        return in_blocks(encode, 1, pixels)

    def decode(self, latents: Tensor) -> Tensor:
        """Sounds (b, c, n) of normalised latents."""
        self.require_latents()
        decode = lambda each: torch.cat([*self.tokenizer.decode_chunks([each])], -1)
        return in_blocks(decode, self.block_rows(latents.shape[2:]), self.restored(latents))

    # -- generation -----------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        texts: Sequence[str] | str | None = None,
        *,
        count: int | None = None,
        seconds: float | None = None,
        sound: Tensor | None = None,
        span: tuple[float, float] | None = None,
        strength: float | None = None,
        loop: bool = False,
        overlap: float | None = None,
        seed: Seed = 0,
        first: int = 0,
        return_latents: bool = False,
        **settings: Any,
    ) -> Tensor:
        """Sounds (b, c, n), one for each text, or `count`; or their normalised latents.

        `seconds`, by default those of training. A `sound` (n,) or (c, n) is continued to `seconds`;
        with a `span` of seconds, that part of it is replaced; with a `strength` of 0 to 1 all of
        it changes so far. A `loop` ends where it begins. Windows of longer music have `overlap`
        seconds of the music before, by default half a window. `settings`: steps, method, cond_scale
        (see `Solver`). Sound number i depends on the seed and on `first` + i, not on the batch.
        """
        solver = self.solver_of(texts, settings)
        sound = None if sound is None else self.checked(sound)
        known, latents = self.planned(sound, seconds, span, strength, loop)
        context, number, _ = self.prepared(texts, count, seed, first)
        numbers = range(first, first + number)
        shape = (number, self.config.latent_channels, len(known))
        begun = self.latent_mean.new_zeros(shape)
        if latents is not None:
            begun[..., : latents.shape[-1]] = latents[..., : len(known)]
        frames = self.checked_overlap(overlap)
        chosen = Windows(self, context, solver, frames, seed, numbers, strength)
        made = chosen.filled(begun, known)
        if loop:
            made = self.closed(made, chosen)
        if return_latents:
            return made
        output = self.decoded_loop(made) if loop else self.decode(made)
        if sound is None:
            return output
        if strength is not None:
            return output[..., : sound.shape[-1]]
        return self.joined(output, sound, known)

    def planned(
        self, sound: Tensor | None, seconds: Any, span: Any, strength: Any, loop: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Which frames are known (frames,), on the host, and the latents of a given sound."""
        if sound is None:
            if span is not None or strength is not None:
                raise ValueError("span and strength belong to a sound: give one, or drop them")
            grid = self.config.grid if seconds is None else self.grid_of(self.tokenizer, seconds)
            return torch.zeros(grid[0], dtype=torch.bool), None
        if loop or (span is not None and strength is not None):
            raise ValueError("of loop, span and strength a sound takes one of the last two: choose")
        latents = self.encode(sound)
        length, rate = sound.shape[-1], self.tokenizer.sample_rate
        own = latents.shape[-1]
        if span is None and strength is None:
            whole = length // self.tokenizer.hop  # the last frame may be a part of one
            asked = length / rate + self.seconds / 2 if seconds is None else seconds
            total = self.grid_of(self.tokenizer, asked)[0]
            if total <= own:
                raise ValueError(
                    f"the sound has {length / rate:g} s already; seconds is {asked:g}: give a"
                    " larger number, a span or a strength"
                )
            return torch.arange(total) < whole, latents
        if seconds is not None:
            raise ValueError("a span or a strength keeps the length of the sound: drop seconds")
        known = torch.zeros(own, dtype=torch.bool)
        if span is not None:
            start, stop = (round(each * rate / self.tokenizer.hop) for each in span)
            if not 0 <= start < stop <= own:
                raise ValueError(
                    f"the span is {span[0]:g} to {span[1]:g} s; it must lie in the"
                    f" {length / rate:g} s of the sound, and last a frame"
                )
            known[:start] = known[stop:] = True
        return known, latents

    def checked(self, sound: Tensor) -> Tensor:
        """(1, c, n), at the device."""
        sound, channels = sound[None] if sound.ndim == 1 else sound, self.tokenizer.channels
        if sound.ndim != 2 or sound.shape[0] != channels or not sound.is_floating_point():
            raise ValueError(
                f"the sound is {sound.dtype} {tuple(sound.shape)}; give floats ({channels}, n) at"
                f" {self.tokenizer.sample_rate} Hz"
            )
        if not 0 < sound.shape[1] <= MOST_SECONDS * self.tokenizer.sample_rate:
            raise ValueError(f"the sound must have samples, of at most {MOST_SECONDS:g} s")
        return sound[None].to(self.weight.device)

    def checked_overlap(self, overlap: float | None) -> int:
        """Frames that a window has in common with the music before."""
        window = self.config.grid[0]
        if overlap is None:
            return window // 2
        frames = round(overlap * self.tokenizer.sample_rate / self.tokenizer.hop)
        if not 0 <= frames < window:
            most = self.seconds
            raise ValueError(f"overlap is {overlap:g}; it must be 0 or more, and below {most:g} s")
        return frames

    def closed(self, latents: Tensor, windows: "Windows") -> Tensor:
        """With a new seam: the end and the start are turned to the middle, and generated again
        from what stands on both sides."""
        length = latents.shape[-1]
        width = max(1, min(self.config.grid[0], length) // SEAM)
        half, place = length // 2, torch.arange(length)
        known = (place < half - width // 2) | (place >= half - width // 2 + width)
        turned = windows.filled(latents.roll(half, -1), known, "seam")
        return turned.roll(-half, -1)

    def decoded_loop(self, latents: Tensor) -> Tensor:
        """Sounds whose last samples know their first ones."""
        margin, length = self.tokenizer.margins[1], latents.shape[-1]
        place = torch.arange(-margin, length + margin, device=latents.device) % length
        samples = self.tokenizer.hop * margin
        return self.decode(latents[..., place])[..., samples:-samples]

    def joined(self, output: Tensor, sound: Tensor, known: Tensor) -> Tensor:
        """The given sound where its frames are known, but for short fades at their edges, where
        the codec's copy of it takes over."""
        length = min(output.shape[-1], sound.shape[-1])
        count = output.shape[-1] if len(known) > -(-length // self.tokenizer.hop) else length
        weight = known.repeat_interleave(self.tokenizer.hop)[:count].float()
        weight[length:] = 0
        width = 2 * round(FADE * self.tokenizer.sample_rate / 2) + 1
        # Least of what is near, then the mean: 0 outside, and 1 from a fade inside on.
        least = -nn.functional.max_pool1d(-weight[None], width, 1, width // 2)
        mean = nn.functional.avg_pool1d(least, width, 1, width // 2, count_include_pad=False)
        weight = mean[0].to(output.device)
        given = nn.functional.pad(sound[..., :length], (0, count - length))
        return torch.where(weight == 1, given, torch.lerp(output[..., :count], given, weight))


class Windows:
    """Solves latents of any length in windows of that of training."""

    def __init__(
        self,
        model: MusicFlow,
        context: Context | None,
        solver: Solver,
        overlap: int,
        seed: Seed,
        numbers: range,
        strength: float | None,
    ) -> None:
        self.model, self.context, self.solver = model, context, solver
        self.overlap, self.seed, self.numbers = overlap, seed, numbers
        self.strength = 1.0 if strength is None else strength
        if not 0 < self.strength <= 1:
            raise ValueError(f"strength is {strength}; it must be above 0 and at most 1")

    def filled(self, latents: Tensor, known: Tensor, name: str = "window") -> Tensor:
        """Latents (b, c, frames) with new ones in place of those that are not `known` (frames,).
        `known` is on the host: nothing waits for the device between windows."""
        length = len(known)
        spare = -length % self.model.config.patch
        latents, known = (nn.functional.pad(each, (0, spare)) for each in (latents, known))
        while not bool(known.all()):
            go_on()
            start, stop = self.place(known)
            part = slice(start, stop)
            keys = self.keys(name, int(known.long().argmin()))
            mask = known[part].to(latents.device).expand(len(latents), 1, -1)
            begun = self.model.start(keys, (stop - start,), latents[..., part], mask, self.strength)
            latents[..., part] = self.model.solved(begun, self.context, self.solver)
            known[part] = True
        return latents[..., :length]

    def place(self, known: Tensor) -> tuple[int, int]:
        """The window that holds the first unknown frames: in the middle, where all of these fit
        with as much before and behind, else with the overlap before."""
        length, window = len(known), self.model.config.grid[0]
        first = int(known.long().argmin())
        run = int((~known[first:]).long().cumprod(0).sum())
        behind = first + run < length
        before = max(self.overlap, (window - run) // 2) if behind else self.overlap
        start = max(0, min(first - before, length - window))
        return start, min(length, start + window)

    def keys(self, name: str, first: int) -> Tensor:
        """By the first frame that is new: music is alike however it came to its length."""
        own = lambda seed: fold(seed, name, first)
        seed = self.seed
        seeds = own(seed) if isinstance(seed, int) else [(own(each), n) for each, n in seed]
        return sample_keys(seeds, self.numbers, self.model.key_name)


Model = MusicFlow
