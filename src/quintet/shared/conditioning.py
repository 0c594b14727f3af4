"""Generators conditioned on a caption by cross-attention, with classifier-free guidance."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from quintet.nn.attention import Block, Context, linear
from quintet.nn.norms import RMSNorm
from quintet.nn.text import (
    TOKENIZERS,
    FrozenText,
    TextEncoder,
    TextSizes,
    text_sizes,
    tokenizer_of,
    vocab_size,
)
from quintet.shared.captions import say_cut

CONTEXT_ROWS = 32
"""Embeddings of captions or points that are projected together on CUDA."""
CAPTION_ROWS = 128
"""Captions encoded together on CUDA, where launches take longer than the work; on a CPU each is
encoded alone."""


def pad_rows(x: Tensor, rows: int) -> Tensor:
    """Repeat the last row."""
    return x[torch.arange(rows, device=x.device).clamp_max(len(x) - 1)]


def in_blocks(function: Callable[..., Any], rows: int, *inputs: Tensor) -> Any:
    """A function of rows, applied to `rows` of them at a time: of always as many, because products
    of another size may round otherwise, and a sample would depend on its batch."""
    count = len(inputs[0])
    if count == 0:
        return function(*inputs)
    numbers = torch.arange(count, device=inputs[0].device)
    parts = [pad_rows(part, rows) for part in numbers.split(rows)]
    blocks = [function(*(each[part] for each in inputs)) for part in parts]
    if isinstance(blocks[0], Tensor):
        return torch.cat(blocks)[:count]
    return type(blocks[0])(*(torch.cat(each)[:count] for each in zip(*blocks)))


def with_null_text(context: Context) -> Context:
    """The batch twice: with captions, and with the null embedding only."""
    uncond = context.mask.clone()
    uncond[:, 1:] = False
    return Context(context.values.repeat(2, 1, 1), torch.cat((context.mask, uncond)))


class CaptionConditioned(nn.Module):
    """The text side of a generator. Its configuration is a `CaptionConfig` with a `dim`."""

    config: Any
    null_text: nn.Parameter
    """Stands for the caption where there is none."""

    def block(self, index: int) -> Block:
        """A transformer block; every second one, from the first on, attends to the caption."""
        config = self.config
        cross = config.text != "none" and not index & 1
        return Block(config.dim, config.heads, config.head_dim, cross=cross, dropout=config.dropout)

    def init_text(self, config: Any) -> None:
        dim = config.dim
        if config.text != "none":
            self.null_text = nn.Parameter(torch.randn(dim))
        if config.text in TOKENIZERS:
            size, heads = vocab_size(config), max(1, dim // 64)
            self.text_encoder = TextEncoder(
                dim, config.text_layers, heads, dropout=config.dropout, vocab_size=size
            )
        if config.text == "frozen":
            self.text_proj = nn.Sequential(linear(config.text_dim, dim), RMSNorm(dim))

    @property
    def weight(self) -> Tensor:
        """Any parameter, for its device and dtype."""
        return next(self.parameters())

    def encode_text(
        self,
        count: int,
        text: Tensor | None = None,
        mask: Tensor | None = None,
        drop: Tensor | None = None,
    ) -> Context | None:
        """Cross-attention context: the null embedding, and the caption unless dropped.

        The null embedding is always visible, so that attention is defined without a caption.
        """
        if self.config.text == "none":
            if text is not None:
                raise ValueError("this model has no text encoder (text is 'none'): drop the text")
            return None
        null = self.null_text.expand(count, 1, -1)
        null_mask = torch.ones(count, 1, dtype=torch.bool, device=null.device)
        if text is None:
            return Context(null, null_mask)
        features = self.text_features(text, mask)
        visible = features.mask if drop is None else features.mask & ~drop[:, None]
        return Context(torch.cat((null, features.values), 1), torch.cat((null_mask, visible), 1))

    def text_features(self, text: Tensor, mask: Tensor | None) -> Context:
        if self.config.text in TOKENIZERS:
            return self.text_encoder(text)
        if mask is None:
            mask = torch.ones(text.shape[:2], dtype=torch.bool, device=text.device)
        return Context(self.text_proj(text.to(self.null_text.dtype)), mask)

    def cast_copy(self, dtype: torch.dtype) -> Self:
        """Copy of the model in another dtype, in eval mode."""
        with torch.device("meta"):
            model = type(self)(self.config)
        state = {name: value.to(dtype) for name, value in self.state_dict().items()}
        model.load_state_dict(state, assign=True)
        return model.eval().requires_grad_(False)

    def tokenize_captions(self, captions: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Inputs of the text encoder: ids, or frozen embeddings and their mask."""
        device, length = self.weight.device, self.config.text_length
        if self.config.text == "none":
            raise ValueError("this model was trained without captions: drop texts")
        if self.config.text in TOKENIZERS:
            return tokenizer_of(self.config).encode(captions).to(device), None
        if self.config.text_path is None:
            raise ValueError("to generate from texts, set text_path to the encoder's folder")
        return FrozenText(self.config.text_path, length=length)(captions, device)

    def text_sizes(self, captions: Sequence[str]) -> TextSizes:
        return text_sizes(self.config, captions)

    @torch.no_grad()
    def encode_captions(self, captions: Sequence[str]) -> Context:
        """`encode_text` of strings, in eval mode."""
        text, mask = self.tokenize_captions(captions)
        say_cut(self.text_sizes, captions)
        return self.encode_inputs(text, mask)

    @torch.no_grad()
    def encode_inputs(self, text: Tensor, mask: Tensor | None = None) -> Context:
        """`encode_text` of the inputs of `tokenize_captions`, in eval mode."""
        drops = self.training and self.config.dropout > 0
        model = self.cast_copy(self.weight.dtype) if drops else self
        most = CAPTION_ROWS if self.config.text in TOKENIZERS else CONTEXT_ROWS
        rows = most if self.weight.is_cuda else 1
        inputs = (text,) if mask is None else (text, mask)
        return in_blocks(lambda *part: model.encode_text(len(part[0]), *part), rows, *inputs)
