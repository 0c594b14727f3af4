"""MaskedGenerator: a masked transformer around its frozen tokenizer, for pictures and clips."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from quintet.compat.calls import MASKGIT_CALL, MASKGIT_GENERATE, call_keywords
from quintet.compat.models import MASKGIT, arguments, model_keywords
from quintet.engine.keys import uniform
from quintet.engine.models.pretrained import Pretrained
from quintet.engine.settings import updated
from quintet.nn.attention import Context
from quintet.nn.precision import without_autocast
from quintet.nn.quantisers.base import check_ids
from quintet.nn.quantisers.digits import digits_of
from quintet.shared.conditioning import in_blocks
from quintet.shared.maskgit.config import MaskedConfig
from quintet.shared.maskgit.decoding import (
    CACHES,
    Decoding,
    GenerationCache,
    generate_ids,
    rows_of,
    sample_keys,
)
from quintet.shared.maskgit.model import MaskedTransformer, random_mask

WITH_IDS = ("fsq", "lfq", "bsq", "vq")


def check_tokenizer(tokenizer: Any, kind: type[Any]) -> None:
    if not isinstance(tokenizer, kind):
        name = type(tokenizer).__name__
        raise TypeError(f"the tokenizer is a {name}; this generator takes a {kind.__name__}")
    quantiser = tokenizer.config.quantiser
    if quantiser not in WITH_IDS:
        raise ValueError(
            f"the tokenizer has no ids (its quantiser is {quantiser}): train one with"
            f" {', '.join(WITH_IDS[:-1])} or {WITH_IDS[-1]}"
        )


class MaskedGenerator(MaskedTransformer, Pretrained):
    """Built from a configuration, its fields as keywords, or a tokenizer."""

    Config: ClassVar[type[MaskedConfig]]
    generate: Callable[..., Tensor]
    """New pictures or clips; further keywords are for `decoding_of`."""

    def __init__(self, config: Any = None, *, tokenizer: Any = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        tokenizer = keywords.pop("vae", tokenizer)
        if isinstance(config, nn.Module):
            config, tokenizer = None, config
        base: MaskedConfig = config or self.Config()
        size, frames = keywords.pop("image_size", None), keywords.pop("frames", None)
        if tokenizer is not None:
            check_tokenizer(tokenizer, self.tokenizer_class())
            base = replace(base, digits=digits_of(tokenizer.config))
        if size is not None or frames is not None:
            base = replace(base, grid=self.grid_of(tokenizer, size, frames))
        self.config = updated(base, model_keywords(MASKGIT, keywords, base))
        self.set_tokenizer(tokenizer)
        self.build(self.config)

    # -- what a room says -----------------------------------------------------------------------

    @classmethod
    def tokenizer_class(cls) -> type[Any]:
        raise NotImplementedError

    @classmethod
    def grid_of(cls, tokenizer: Any, size: Any, frames: int | None) -> tuple[int, ...]:
        """The grid of ids of pictures or clips of a size in pixels."""
        raise NotImplementedError

    def decode_block(self, ids: Tensor) -> Tensor:
        """Pictures or clips in 0..1 from ids (b, *grid)."""
        raise NotImplementedError

    # -- the tokenizer --------------------------------------------------------------------------

    def set_tokenizer(self, tokenizer: nn.Module | None) -> None:
        """Attach the frozen tokenizer, in a tuple so that it is not registered as a submodule."""
        self._tokenizer: tuple[Any] = (tokenizer,)
        if tokenizer is not None:
            tokenizer.eval().requires_grad_(False)

    @property
    def tokenizer(self) -> Any:
        if self._tokenizer[0] is None:
            raise ValueError(
                f"this needs the tokenizer: use {type(self).__name__}(tokenizer=…) or"
                " set_tokenizer(…)"
            )
        return self._tokenizer[0].to(self.weight.device)

    def tokenize_pixels(self, pixels: Tensor) -> Tensor:
        """Ids (b, n) of pictures or clips in 0..1."""
        return in_blocks(self.tokenizer.tokenize, self.block_rows, pixels).flatten(1)

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Pictures or clips in 0..1 from ids (b, n)."""
        return in_blocks(self.decode_block, self.block_rows, ids.unflatten(1, self.config.grid))

    @property
    def block_rows(self) -> int:
        """Samples that the tokenizer takes at once."""
        return rows_of(self.config.tokens, self.weight.device) if self.weight.is_cuda else 1

    def write_stages(self, path: Path) -> None:
        if self._tokenizer[0] is not None:
            self._tokenizer[0].save_pretrained(path / "tokenizer")

    def read_stages(self, path: Path) -> None:
        if (path / "tokenizer").is_dir():
            self.set_tokenizer(self.tokenizer_class().from_pretrained(path / "tokenizer"))

    # -- generation -----------------------------------------------------------------------------

    @torch.no_grad()
    def complete(
        self, ids: Tensor, keys: Tensor, context: Context | None, decoding: Decoding
    ) -> Tensor:
        """Generate the masked ones (-1) of ids (b, n). On CUDA weights are cast to bf16, and the
        graph of a step is kept for the next call."""
        dtype, keys = self.weight.dtype, keys.to(ids.device)
        cache = CACHES.setdefault(self, GenerationCache()) if self.weight.is_cuda else None
        if cache is not None:
            dtype = torch.bfloat16 if dtype == torch.float32 else dtype
            model = cache.weights(self, dtype)
        else:
            drops = self.training and self.config.dropout
            model = self.cast_copy(dtype) if drops else self
        if context is not None:
            context = Context(context.values.to(dtype), context.mask)
        with without_autocast(self.weight):
            return generate_ids(model, ids, keys, context, decoding, cache)

    def check_captions(self, texts: Sequence[str]) -> None:
        """Captions of a user."""
        if not all(text.strip() for text in texts):
            raise ValueError("a caption is empty: describe what to generate, or give no texts")

    def prepared(
        self, texts: Sequence[str] | str | None, count: int | None, seed: int, first: int
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
        return context, number, sample_keys(seed, range(first, first + number))

    def decoding_of(self, texts: Any, settings: dict[str, Any]) -> Decoding:
        """`settings` are fields of `Decoding`, or arguments of muse-maskgit-pytorch."""
        known, function = set(Decoding.__dataclass_fields__), self.generate
        decoding = Decoding(**arguments(MASKGIT_GENERATE, settings, known, self.config, function))
        return decoding if texts is not None else replace(decoding, cond_scale=1.0)

    def blank_ids(self, count: int) -> Tensor:
        shape = (count, self.config.tokens)
        return torch.full(shape, -1, dtype=torch.int64, device=self.weight.device)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """`maskgit(images_or_ids, texts=…)`: the loss of a batch, for a custom training loop."""
        if len(args) > 1 or "masked" in keywords:
            return super().__call__(*args, **keywords)
        seed = int(torch.randint(2**62, ()))
        return self.loss(*args, **{"seed": seed, **call_keywords(MASKGIT_CALL, keywords)})

    def loss(self, ids: Tensor, texts: Sequence[str] | None = None, seed: int = 0) -> Tensor:
        """Loss per masked id of pixels in 0..1, or of their ids (b, …), for custom training loops;
        a `seed` for each step."""
        if ids.is_floating_point():
            ids = self.tokenize_pixels(ids.to(self.weight.device))
        else:
            check_ids(ids, self.config.codebook_size, "give ids of this model's tokenizer")
        flat = ids.flatten(1).to(self.weight.device)
        keys = sample_keys(seed, range(len(flat))).to(flat.device)
        text, mask = (None, None) if texts is None else self.tokenize_captions(texts)
        drop = None if text is None else uniform(keys, "text", ()) < 0.1
        losses = self(flat, random_mask(keys, self.config.grid), text, mask, drop)
        return losses.loss_sum.sum() / losses.masked.sum()
