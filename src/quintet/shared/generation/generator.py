"""Generator: a network around its frozen tokenizer, which makes pictures or clips from captions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from quintet.engine.keys import fold
from quintet.engine.models.pretrained import Pretrained, read_about
from quintet.nn.attention import Context
from quintet.shared.adopt.folder import is_foreign
from quintet.shared.conditioning import CaptionConditioned, in_blocks
from quintet.shared.generation.module import LatentModule, LatentModuleConfig, require_same

BLOCK = {"cpu": 256}
"""Positions generated together, at least one sample; on other devices `CUDA_BLOCK`. Always as many:
products of another size may round otherwise, and a sample would depend on its batch."""
CUDA_BLOCK = 64 * 256


def rows_of(tokens: int, device: torch.device) -> int:
    """Samples of so many positions in a block."""
    return max(1, BLOCK.get(device.type, CUDA_BLOCK) // tokens)


Seed = int | Sequence[tuple[int, int]]
"""One for all samples, or a seed and a number for each."""


def sample_keys(seed: Seed, numbers: Sequence[int], name: str) -> Tensor:
    """Keys of the draws of samples, by the seed and their numbers alone."""
    pairs = [(seed, n) for n in numbers] if isinstance(seed, int) else seed
    return torch.tensor([fold(own, name, n) for own, n in pairs], dtype=torch.int64)


class Generator(CaptionConditioned, Pretrained):
    """What generators over the codes of a tokenizer share."""

    generate: Callable[..., Tensor]
    """New pictures or clips."""
    key_name: ClassVar[str]
    """Name that the keys of samples are folded with."""
    kept_module: LatentModuleConfig | None = None
    """The module of Python that it was trained with and waits for, if it was loaded without."""

    # -- what a family says ---------------------------------------------------------------------

    @classmethod
    def tokenizer_classes(cls) -> Sequence[type[Any]]:
        """Models whose codes it generates; the first is the usual one."""
        raise NotImplementedError

    @classmethod
    def grid_of(cls, tokenizer: Any, size: Any, frames: int | None) -> tuple[int, ...]:
        """The grid of codes of pictures or clips of a size in pixels."""
        raise NotImplementedError

    @classmethod
    def check_tokenizer(cls, tokenizer: Any) -> None:
        """Raise TypeError or ValueError for a tokenizer of other codes."""
        if not isinstance(tokenizer, tuple(cls.tokenizer_classes())):
            names = " or ".join(kind.__name__ for kind in cls.tokenizer_classes())
            name = type(tokenizer).__name__
            raise TypeError(f"the tokenizer is a {name}; this generator takes a {names}")

    # -- the tokenizer --------------------------------------------------------------------------

    @classmethod
    def load_tokenizer(cls, path: str | Path, held: Any = None) -> Any:
        """The tokenizer in a run, an exported folder, or a folder of an adopted class; of a module
        of Python, whose code is in no folder, the one that is `held`."""
        kinds = cls.tokenizer_classes()
        if len(kinds) > 1 and Path(path).is_dir():
            if is_foreign(Path(path)):
                kinds = [kind for kind in kinds if kind.label().endswith("/adopt")]
            else:
                about = read_about(Path(path))
                label = about.get("model") or (about.get("main") or {}).get("model")
                kinds = [kind for kind in kinds if kind.label() == label] or kinds
                kept = None if held is None else LatentModule.kept_in(Path(path))
                if kept is not None:
                    return require_same(kept, held)
        return kinds[0].from_pretrained(path)

    def set_tokenizer(self, tokenizer: nn.Module | None) -> None:
        """Attach the frozen tokenizer, in a tuple so that it is not registered as a submodule."""
        if tokenizer is not None and self.kept_module is not None:
            require_same(self.kept_module, tokenizer)
        self._tokenizer: tuple[Any] = (tokenizer,)
        if tokenizer is not None:
            tokenizer.eval().requires_grad_(False)

    @property
    def held_tokenizer(self) -> Any:
        """The tokenizer, or None without one."""
        return self._tokenizer[0]

    @property
    def tokenizer(self) -> Any:
        if self._tokenizer[0] is None:
            raise ValueError(
                f"this needs the tokenizer: use {type(self).__name__}(tokenizer=…) or"
                " set_tokenizer(…)"
            )
        return self._tokenizer[0].to(self.weight.device)

    def write_stages(self, path: Path) -> None:
        if self._tokenizer[0] is not None:
            self._tokenizer[0].save_stage(path / "tokenizer")

    def read_stages(self, path: Path) -> None:
        if (path / "tokenizer").is_dir():
            self.kept_module = LatentModule.kept_in(path / "tokenizer")
            if self.kept_module is None:
                self.set_tokenizer(self.load_tokenizer(path / "tokenizer"))

    # -- generation -----------------------------------------------------------------------------

    def block_rows(self, grid: Sequence[int]) -> int:
        """Samples that the tokenizer takes at once."""
        tokens = torch.Size(grid).numel()
        return rows_of(tokens, self.weight.device) if self.weight.is_cuda else 1

    def codes_of(self, pixels: Tensor) -> Tensor:
        """Codes of pictures or clips in 0..1."""
        return in_blocks(self.tokenizer.to_codes, self.block_rows(pixels.shape[2:]), pixels)

    def check_captions(self, texts: Sequence[str]) -> None:
        """Captions of a user."""
        if not all(text.strip() for text in texts):
            raise ValueError("a caption is empty: describe what to generate, or give no texts")

    def prepared(
        self, texts: Sequence[str] | str | None, count: int | None, seed: Seed, first: int
    ) -> tuple[Context | None, int, Tensor]:
        """Context, number and keys of what to generate: one for each text, or `count`."""
        texts = [texts] if isinstance(texts, str) else texts
        if texts is not None:
            if not texts:
                raise ValueError("texts is empty: give captions, or None and a count")
            self.check_captions(texts)
            if count not in (None, len(texts)):
                if len(texts) != 1:
                    raise ValueError(f"{len(texts)} texts do not match the count {count}")
                texts = [*texts] * (count or 1)
        number = count or (1 if texts is None else len(texts))
        context = self.encode_text(number) if texts is None else self.encode_captions(texts)
        return context, number, sample_keys(seed, range(first, first + number), self.key_name)


class CastWeights:
    """Weights in the dtype of generation, always in the same memory, and what was captured with
    them last."""

    def __init__(self) -> None:
        self.model: Any = None
        self.about: tuple[Any, ...] = ()
        self.key: tuple[Any, ...] = ()
        self.latest: Any = None

    def of(self, model: Generator, dtype: torch.dtype) -> Any:
        """A copy of the model with its weights as they are now."""
        own, about = model.state_dict(), (dtype, model.weight.device)
        if self.model is None or self.about != about:
            self.about, self.latest = about, None
            self.model = model.cast_copy(dtype)
            # Weights that are in this dtype already must not be shared with the model.
            apart = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.model.load_state_dict(apart, assign=True)
        else:
            copies = self.model.state_dict()
            torch._foreach_copy_([*copies.values()], [own[name] for name in copies])
        return self.model

    def kept(self, key: tuple[Any, ...], build: Callable[[], Any]) -> Any:
        """What was built last, if its key is this one."""
        if self.latest is None or self.key != key:
            self.latest = None  # its memory is free for the next one's
            self.key, self.latest = key, build()
        return self.latest


CASTS: WeakKeyDictionary[Generator, CastWeights] = WeakKeyDictionary()


def generating(model: Generator) -> tuple[Any, CastWeights | None]:
    """The model to generate with, and on CUDA its cache: there weights are cast to bf16."""
    dtype = model.weight.dtype
    if model.weight.is_cuda:
        cache = CASTS.setdefault(model, CastWeights())
        return cache.of(model, torch.bfloat16 if dtype == torch.float32 else dtype), cache
    drops = model.training and model.config.dropout
    return (model.cast_copy(dtype) if drops else model), None
