"""MaskedGenerator: a masked transformer around its frozen tokenizer, for pictures and clips."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from quintet.compat.calls import MASKGIT_CALL, MASKGIT_GENERATE, call_keywords
from quintet.compat.models import MASKGIT, arguments, model_keywords
from quintet.engine.keys import uniform
from quintet.engine.settings import updated
from quintet.nn.attention import Context
from quintet.nn.precision import without_autocast
from quintet.nn.quantisers.base import check_ids
from quintet.nn.quantisers.digits import digits_of
from quintet.shared.conditioning import in_blocks
from quintet.shared.generation.generator import Generator, generating, sample_keys
from quintet.shared.maskgit.config import MaskedConfig
from quintet.shared.maskgit.decoding import Decoding, generate_ids
from quintet.shared.maskgit.model import MaskedTransformer, random_mask

WITH_IDS = ("fsq", "lfq", "bsq", "vq")


class MaskedGenerator(MaskedTransformer, Generator):
    """Built from a configuration, its fields as keywords, or a tokenizer."""

    Config: ClassVar[type[MaskedConfig]]
    key_name = "maskgit"

    def __init__(self, config: Any = None, *, tokenizer: Any = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        tokenizer = keywords.pop("vae", tokenizer)
        if isinstance(config, nn.Module):
            config, tokenizer = None, config
        base: MaskedConfig = config or self.Config()
        size, frames = keywords.pop("image_size", None), keywords.pop("frames", None)
        if tokenizer is not None:
            self.check_tokenizer(tokenizer)
            base = replace(base, digits=digits_of(tokenizer.config))
        if size is not None or frames is not None:
            base = replace(base, grid=self.grid_of(tokenizer, size, frames))
        self.config = updated(base, model_keywords(MASKGIT, keywords, base))
        self.set_tokenizer(tokenizer)
        self.build(self.config)

    # -- what a room says -----------------------------------------------------------------------

    @classmethod
    def check_tokenizer(cls, tokenizer: Any) -> None:
        super().check_tokenizer(tokenizer)
        quantiser = tokenizer.config.quantiser
        if quantiser not in WITH_IDS:
            raise ValueError(
                f"the tokenizer has no ids (its quantiser is {quantiser}): train one with"
                f" {', '.join(WITH_IDS[:-1])} or {WITH_IDS[-1]}"
            )

    @property
    def rows(self) -> int:
        """Samples that the tokenizer takes at once."""
        return self.block_rows(self.config.grid)

    def decode_block(self, ids: Tensor) -> Tensor:
        """Pictures or clips in 0..1 from ids (b, *grid)."""
        raise NotImplementedError

    def tokenize_pixels(self, pixels: Tensor) -> Tensor:
        """Ids (b, n) of pictures or clips in 0..1."""
        return in_blocks(self.tokenizer.tokenize, self.rows, pixels).flatten(1)

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Pictures or clips in 0..1 from ids (b, n)."""
        return in_blocks(self.decode_block, self.rows, ids.unflatten(1, self.config.grid))

    # -- generation -----------------------------------------------------------------------------

    @torch.no_grad()
    def complete(
        self, ids: Tensor, keys: Tensor, context: Context | None, decoding: Decoding
    ) -> Tensor:
        """Generate the masked ones (-1) of ids (b, n). On CUDA weights are cast to bf16, and the
        graph of a step is kept for the next call."""
        model, cache = generating(self)
        if context is not None:
            context = Context(context.values.to(model.weight.dtype), context.mask)
        with without_autocast(self.weight):
            return generate_ids(model, ids, keys.to(ids.device), context, decoding, cache)

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
        keys = sample_keys(seed, range(len(flat)), self.key_name).to(flat.device)
        text, mask = (None, None) if texts is None else self.tokenize_captions(texts)
        drop = None if text is None else uniform(keys, "text", ()) < 0.1
        losses = self(flat, random_mask(keys, self.config.grid), text, mask, drop)
        return losses.loss_sum.sum() / losses.masked.sum()
