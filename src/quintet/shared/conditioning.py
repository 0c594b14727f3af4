"""Generators conditioned on a caption by cross-attention, with classifier-free guidance."""

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from quintet.nn.attention import Context, linear
from quintet.nn.norms import RMSNorm
from quintet.nn.text import ByteTokenizer, FrozenText, TextEncoder

CONTEXT_ROWS = 32
"""Captions encoded together on CUDA. Always as many: products of another size may round otherwise,
and a sample would depend on its batch."""


def pad_rows(x: Tensor, rows: int) -> Tensor:
    """Repeat the last row."""
    return x[torch.arange(rows, device=x.device).clamp_max(len(x) - 1)]


def with_null_text(context: Context) -> Context:
    """The batch twice: with captions, and with the null embedding only."""
    uncond = context.mask.clone()
    uncond[:, 1:] = False
    return Context(context.values.repeat(2, 1, 1), torch.cat((context.mask, uncond)))


class CaptionConditioned(nn.Module):
    """The text side of a generator. Its configuration has `dim`, `dropout` and the fields `text`
    (bytes, frozen or none), `text_length`, `text_layers`, `text_dim` and `text_path`."""

    config: Any
    null_text: nn.Parameter
    """Stands for the caption where there is none."""

    def init_text(self, config: Any) -> None:
        dim = config.dim
        if config.text != "none":
            self.null_text = nn.Parameter(torch.randn(dim))
        if config.text == "bytes":
            heads = max(1, dim // 64)
            self.text_encoder = TextEncoder(dim, config.text_layers, heads, dropout=config.dropout)
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
        if self.config.text == "bytes":
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
        """Inputs of the text encoder: byte ids, or frozen embeddings and their mask."""
        device, length = self.weight.device, self.config.text_length
        if self.config.text == "none":
            raise ValueError("this model was trained without captions: drop texts")
        if self.config.text == "bytes":
            return ByteTokenizer(length).encode(captions).to(device), None
        if self.config.text_path is None:
            raise ValueError("to generate from texts, set text_path to the encoder's folder")
        return FrozenText(self.config.text_path, length=length)(captions, device)

    @torch.no_grad()
    def encode_captions(self, captions: Sequence[str]) -> Context | None:
        """`encode_text` of strings, in eval mode."""
        text, mask = self.tokenize_captions(captions)
        drops = self.training and self.config.dropout > 0
        model = self.cast_copy(self.weight.dtype) if drops else self
        if not self.weight.is_cuda or not captions:
            return model.encode_text(len(captions), text, mask)
        blocks: list[Context] = []
        for rows in torch.arange(len(captions), device=text.device).split(CONTEXT_ROWS):
            rows = pad_rows(rows, CONTEXT_ROWS)
            part = None if mask is None else mask[rows]
            blocks.append(cast(Context, model.encode_text(CONTEXT_ROWS, text[rows], part)))
        return Context(*(torch.cat(each)[: len(captions)] for each in zip(*blocks)))
