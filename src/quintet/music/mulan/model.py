"""MuLaN: a joint embedding of music and text (MuLan, arXiv 2208.12415).

Shapes: b samples, n audio samples, t bytes or tokens, l = `dim_latent`.

    wavs (b, n) -> audio tower -> (b, l) ┐
                                         ├ contrastive loss
    text (b, t) -> text tower  -> (b, l) ┘

A residual quantiser (arXiv 2107.03312) turns embeddings of both modalities into a few codes, to
condition a generator. Its codebooks are moving averages: it has no loss and no gradient.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.compat.calls import MULAN_CALL, call_keywords
from quintet.compat.models import MULAN, model_keywords
from quintet.engine.models.pretrained import Pretrained
from quintet.engine.settings import updated
from quintet.music.config import MusicLossConfig
from quintet.music.mulan.config import MuLaNConfig
from quintet.music.mulan.towers import AudioTower, Draws, TextTower
from quintet.nn.contrastive import Pairs, clamp_temperature, contrastive_loss, similarities
from quintet.nn.quantisers.base import check_ids
from quintet.nn.quantisers.residual import ResidualQuantiser
from quintet.nn.quantisers.vq import VectorQuantiser
from quintet.nn.statistics import CommitContext
from quintet.nn.text import PAD, ByteTokenizer, FrozenText, TextSizes, text_sizes
from quintet.shared.captions import say_cut

SIGMOID_BIAS = -10.0
"""Initial bias of the sigmoid loss: nearly all pairs are negatives (arXiv 2303.15343)."""


class MuLaNOutput(NamedTuple):
    """Embeddings of a batch and the learned scalars of the loss."""

    audio: Tensor
    """(b, l), of unit length, in full precision."""
    text: Tensor
    """(b, l)."""
    log_temperature: Tensor
    """0-dim."""
    bias: Tensor | None
    """0-dim, for the sigmoid loss."""
    quantiser_error: Tensor
    """0-dim: mean squared error of the quantised embeddings; 0 without a quantiser."""

    @property
    def pairs(self) -> Pairs:
        return Pairs(self.audio, self.text, self.log_temperature, self.bias)


class Codebook(VectorQuantiser):
    """Codebook of embeddings (b, l), without learned projections."""

    def __init__(self, dim: int, codes: int) -> None:
        super().__init__(dim, codes, code_dim=dim, commitment_weight=0.0)
        self.project_in, self.project_out = nn.Identity(), nn.Identity()
        self.codebook.mul_(dim**-0.5)


class Embeds:
    """Embeddings of sounds and texts without gradients."""

    get_audio_latents: Callable[..., Tensor]
    get_text_latents: Callable[..., Tensor]

    @torch.no_grad()
    def embed_audio(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b, l) embeddings of audio (b, n), or (l,) of one clip (n,)."""
        if wavs.ndim == 1:
            return self.get_audio_latents(wavs[None])[0]
        return self.get_audio_latents(wavs, lengths)

    @torch.no_grad()
    def embed_text(self, texts: str | Sequence[str]) -> Tensor:
        """(b, l) embeddings of texts, or (l,) of one text."""
        if isinstance(texts, str):
            return self.get_text_latents(raw_texts=[texts])[0]
        return self.get_text_latents(raw_texts=texts)

    @torch.no_grad()
    def similarity(
        self, wavs: Tensor, raw_texts: Sequence[str], lengths: Tensor | None = None
    ) -> Tensor:
        """(clips, texts): cosine similarities."""
        return similarities(self.embed_audio(wavs, lengths), self.embed_text(raw_texts))


class MuLaN(Embeds, Pretrained, nn.Module):
    """Audio and text tower, built from a configuration or from its fields as keywords.

    `mulan(wavs, texts)`, of strings or ids, returns the loss of a batch, for custom training loops.
    """

    Config = MuLaNConfig

    def __init__(self, config: MuLaNConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        config = config or MuLaNConfig()
        self.config = config = updated(config, model_keywords(MULAN, keywords, config))
        self.audio = AudioTower(config)
        self.text = TextTower(config)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.temperature)))
        sigmoid = config.loss == "sigmoid"
        self.bias = nn.Parameter(torch.tensor(SIGMOID_BIAS)) if sigmoid else None
        dim, codes = config.dim_latent, 2**config.quantiser_bits
        codebooks = [Codebook(dim, codes) for _ in range(config.quantiser_depth)]
        self.quantiser = ResidualQuantiser(codebooks) if codebooks else None
        self._frozen: FrozenText | None = None

    def regions(self) -> list[nn.Module]:
        """Modules that are compiled separately: the blocks of each tower."""
        text_blocks = [] if self.text.encoder is None else self.text.encoder.blocks
        return [*self.audio.blocks, *text_blocks]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if len(args) == 2:  # (wavs, texts), by position
            args, texts = args[:1], args[1]
            keywords["texts" if isinstance(texts, Tensor) else "raw_texts"] = texts
        if "raw_texts" in keywords or "texts" in keywords:
            return self.loss(*args, **call_keywords(MULAN_CALL, keywords))
        return super().__call__(*args, **keywords)

    def forward(
        self,
        wavs: Tensor,
        lengths: Tensor | None,
        text: Tensor,
        mask: Tensor | None = None,
        draws: Draws | None = None,
    ) -> MuLaNOutput:
        """`text` holds ids, or embeddings of a frozen encoder with their `mask`; `draws` are those
        of the augmentation."""
        audio_embeds, text_embeds = self.audio(wavs, lengths, draws), self.text(text, mask)
        log_temperature = clamp_temperature(self.log_temperature)
        bias = None if self.bias is None else self.bias * 1
        error = self._update_quantiser(audio_embeds, text_embeds)
        return MuLaNOutput(audio_embeds, text_embeds, log_temperature, bias, error)

    def _update_quantiser(self, audio: Tensor, text: Tensor) -> Tensor:
        """Collect codebook statistics in training; returns the quantisation error."""
        # Without gradients this is the first of two passes over the micro-batch.
        if self.quantiser is None or not (self.training and torch.is_grad_enabled()):
            return audio.new_zeros(())
        embeds = torch.cat((audio, text)).detach()
        return (self.quantiser(embeds).values - embeds).square().sum(1).mean().detach()

    def commit(self, context: CommitContext) -> None:
        """Apply the codebook statistics, and clamp the temperature to where it has a gradient."""
        if self.quantiser is not None:
            self.quantiser.commit(context)
        with torch.no_grad():
            self.log_temperature.copy_(clamp_temperature(self.log_temperature))

    # -- custom training loops ------------------------------------------------------------------

    def loss(
        self,
        wavs: Tensor,
        raw_texts: Sequence[str] | None = None,
        texts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Contrastive loss of a batch; texts as strings or as ids."""
        self.check(wavs)
        text, mask = self.tokenize(raw_texts, texts)
        draws = None
        if self.training:
            keys = torch.randint(2**62, (len(wavs),), device=wavs.device)
            draws = self.audio.draws(keys, wavs.shape[1], MusicLossConfig())
        output: MuLaNOutput = super().__call__(self._to_device(wavs), lengths, text, mask, draws)
        return contrastive_loss(self.config.loss, output.pairs)

    def tokenize(
        self, raw_texts: Sequence[str] | None = None, texts: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Input of the text tower: ids, or embeddings of the frozen encoder and their mask."""
        device = self.log_temperature.device
        if (raw_texts is None) == (texts is None):
            raise ValueError("give either raw_texts (strings) or texts (ids)")
        if texts is not None:
            check_ids(texts, self.config.vocab_size, "build MuLaN with the vocab_size of your ids")
            return pad_ids(texts.to(device), self.config.text_length), None
        assert raw_texts is not None
        if self.config.text == "bytes":
            return ByteTokenizer(self.config.text_length).encode(raw_texts).to(device), None
        return self.frozen(raw_texts, device)

    def text_sizes(self, texts: Sequence[str]) -> TextSizes:
        return text_sizes(self.config, texts)

    @property
    def frozen(self) -> FrozenText:
        """The frozen encoder at `text_path`, loaded on first use."""
        if self._frozen is None:
            if self.config.text_path is None:
                raise ValueError("text is 'frozen'; set text_path to the folder of the encoder")
            self._frozen = FrozenText(self.config.text_path, length=self.config.text_length)
        return self._frozen

    # -- embeddings -----------------------------------------------------------------------------

    def get_audio_latents(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b, l) embeddings of audio; `lengths` in samples, for padded clips."""
        self.check(wavs)
        lengths = None if lengths is None else lengths.to(self.log_temperature.device)
        return self.audio(self._to_device(wavs), lengths, None)

    def get_text_latents(
        self, texts: Tensor | None = None, raw_texts: Sequence[str] | None = None
    ) -> Tensor:
        """(b, l) embeddings of ids or of strings."""
        say_cut(self.text_sizes, raw_texts or ())
        return self.text(*self.tokenize(raw_texts, texts))

    @torch.no_grad()
    def quantize_latents(self, latents: Tensor) -> Tensor:
        """(b, l) embeddings -> (b, depth) integers below 2 ** quantiser_bits."""
        if self.quantiser is None:
            raise ValueError("this model has no quantiser; set quantiser_depth to 1 or more")
        return self.quantiser.to_ids(latents)

    def _to_device(self, wavs: Tensor) -> Tensor:
        return wavs.to(self.log_temperature.device, self.log_temperature.dtype)

    @staticmethod
    def check(wavs: Tensor) -> None:
        if wavs.ndim != 2 or not wavs.is_floating_point() or not wavs.shape[1]:
            raise ValueError(
                f"expected mono audio (b, n) of a floating dtype, not"
                f" {tuple(wavs.shape)} of {str(wavs.dtype).removeprefix('torch.')}"
            )


def pad_ids(ids: Tensor, length: int) -> Tensor:
    """(b, t) ids, truncated or padded to the fixed length of the text tower."""
    if ids.ndim != 2 or ids.is_floating_point():
        raise ValueError(f"expected integer ids (b, t), not {tuple(ids.shape)} of {ids.dtype}")
    return F.pad(ids[:, :length], (0, max(0, length - ids.shape[1])), value=PAD).long()


Model = MuLaN
