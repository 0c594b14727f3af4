"""MuLaN: sounds and texts as directions in one space (MuLan, arXiv 2208.12415).

Shapes: b samples, n audio samples, t bytes or tokens, l = `dim_latent`.

    wavs (b, n) -> audio tower -> (b, l) ┐
                                         ├ compared: similar where they belong together
    text (b, t) -> text tower  -> (b, l) ┘

A residual quantiser (arXiv 2107.03312) follows along to write embeddings of both kinds in a few
codes, for a generator to be led by. Its codebooks are moving averages: it has no loss, and moves no
embedding.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.pretrained import Pretrained
from quintet.music.config import MuLaNConfig, MusicLossConfig
from quintet.music.towers import AudioTower, Draws, TextTower
from quintet.nn.contrastive import (
    Pairs,
    clamp_temperature,
    contrastive_loss,
    similarities,
)
from quintet.nn.residual import Residual
from quintet.nn.statistics import CommitContext
from quintet.nn.text import PAD, ByteTokenizer, FrozenText
from quintet.nn.vq import VectorQuantiser

SIGMOID_BIAS = -10.0
"""Where the sigmoid loss starts: nearly all pairs are strangers (arXiv 2303.15343)."""


class Embedded(NamedTuple):
    """What the losses need of a batch."""

    audio: Tensor
    """(b, l), of length one, in full precision."""
    text: Tensor
    """(b, l)."""
    log_temperature: Tensor
    """0-dim."""
    bias: Tensor | None
    """0-dim, for the sigmoid loss."""
    rounding: Tensor
    """0-dim: mean squared length of what the quantiser's codes leave out; 0 without one."""

    @property
    def pairs(self) -> Pairs:
        return Pairs(self.audio, self.text, self.log_temperature, self.bias)


class Codebook(VectorQuantiser):
    """Of embeddings (b, l) themselves, without a projection to learn."""

    def __init__(self, dim: int, codes: int) -> None:
        super().__init__(dim, codes, code_dim=dim, commitment_weight=0.0)
        self.project_in, self.project_out = nn.Identity(), nn.Identity()
        self.codebook.mul_(dim**-0.5)


def build_quantiser(config: MuLaNConfig) -> Residual | None:
    if not config.quantiser_depth:
        return None
    codes = 2**config.quantiser_bits
    return Residual([Codebook(config.dim_latent, codes) for _ in range(config.quantiser_depth)])


class MuLaN(Pretrained, nn.Module):
    """Both towers. Build it from a configuration, or from its fields as keywords.

    `mulan(wavs=…, raw_texts=…)` gives the loss of a batch, for a training loop of one's own.
    """

    Config = MuLaNConfig

    def __init__(self, config: MuLaNConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        config = replace(config, **keywords) if config else MuLaNConfig(**keywords)
        self.config = config
        self.audio = AudioTower(config)
        self.text = TextTower(config)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.temperature)))
        sigmoid = config.loss == "sigmoid"
        self.bias = nn.Parameter(torch.tensor(SIGMOID_BIAS)) if sigmoid else None
        self.quantiser = build_quantiser(config)
        self._frozen: FrozenText | None = None

    def regions(self) -> list[nn.Module]:
        """What is compiled by itself: the blocks of each tower, which are alike."""
        said = [] if self.text.encoder is None else self.text.encoder.blocks
        return [*self.audio.blocks, *said]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if "raw_texts" in keywords or "texts" in keywords:
            return self.loss(*args, **keywords)
        return super().__call__(*args, **keywords)

    def forward(
        self,
        wavs: Tensor,
        lengths: Tensor | None,
        text: Tensor,
        mask: Tensor | None = None,
        draws: Draws | None = None,
    ) -> Embedded:
        """`text` holds ids, or with its `mask` what a frozen encoder made of texts; with `draws`
        parts of the sounds are hidden."""
        audio, said = self.audio(wavs, lengths, draws), self.text(text, mask)
        heat = clamp_temperature(self.log_temperature)
        bias = None if self.bias is None else self.bias * 1
        return Embedded(audio, said, heat, bias, self._follow(audio, said))

    def _follow(self, audio: Tensor, text: Tensor) -> Tensor:
        """Have the quantiser collect what it sees in training."""
        # Without gradients it is a first pass over a micro-batch that will come again.
        if self.quantiser is None or not (self.training and torch.is_grad_enabled()):
            return audio.new_zeros(())
        seen = torch.cat((audio, text)).detach()
        return (self.quantiser(seen).values - seen).square().sum(1).mean().detach()

    def commit(self, at: CommitContext) -> None:
        """Apply the quantiser's statistics, and hold the temperature where it has a gradient."""
        if self.quantiser is not None:
            self.quantiser.commit(at)
        with torch.no_grad():
            self.log_temperature.copy_(clamp_temperature(self.log_temperature))

    # -- training loops of one's own ------------------------------------------------------------

    def loss(
        self,
        wavs: Tensor,
        raw_texts: Sequence[str] | None = None,
        texts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """The contrastive loss of a batch; texts as strings, or as ids."""
        self.check(wavs)
        text, mask = self.read(raw_texts, texts)
        draws = None
        if self.training:
            keys = torch.randint(2**62, (len(wavs),), device=wavs.device)
            draws = self.audio.draws(keys, wavs.shape[1], MusicLossConfig())
        found: Embedded = super().__call__(self._place(wavs), lengths, text, mask, draws)
        return contrastive_loss(self.config.loss, found.pairs)

    def read(
        self, raw_texts: Sequence[str] | None = None, texts: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """What the text tower takes: ids, or embeddings of the frozen encoder and their mask."""
        device = self.log_temperature.device
        if (raw_texts is None) == (texts is None):
            raise ValueError("give texts as strings (raw_texts) or as ids (texts), one of them")
        if texts is not None:
            return fit(texts.to(device), self.config.text_length), None
        assert raw_texts is not None
        if self.config.text == "bytes":
            return ByteTokenizer(self.config.text_length).encode(raw_texts).to(device), None
        return self.frozen(raw_texts, device)

    @property
    def frozen(self) -> FrozenText:
        """The encoder that `text_path` names, read when it is first asked for."""
        if self._frozen is None:
            if self.config.text_path is None:
                raise ValueError("text is 'frozen', so text_path must name the encoder's folder")
            self._frozen = FrozenText(self.config.text_path, length=self.config.text_length)
        return self._frozen

    # -- embeddings -----------------------------------------------------------------------------

    def get_audio_latents(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b, l) embeddings of sounds; lengths, in samples, where they are padded."""
        self.check(wavs)
        lengths = None if lengths is None else lengths.to(self.log_temperature.device)
        return self.audio(self._place(wavs), lengths, None)

    def get_text_latents(
        self, texts: Tensor | None = None, raw_texts: Sequence[str] | None = None
    ) -> Tensor:
        """(b, l) embeddings of ids, or of strings."""
        return self.text(*self.read(raw_texts, texts))

    @torch.no_grad()
    def embed_audio(self, wavs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b, l) embeddings of sounds (b, n), or (l,) of one (n,)."""
        if wavs.ndim == 1:
            return self.get_audio_latents(wavs[None])[0]
        return self.get_audio_latents(wavs, lengths)

    @torch.no_grad()
    def embed_text(self, texts: str | Sequence[str]) -> Tensor:
        """(b, l) embeddings of texts, or (l,) of one."""
        if isinstance(texts, str):
            return self.get_text_latents(raw_texts=[texts])[0]
        return self.get_text_latents(raw_texts=texts)

    @torch.no_grad()
    def similarity(
        self, wavs: Tensor, raw_texts: Sequence[str], lengths: Tensor | None = None
    ) -> Tensor:
        """(sounds, texts): cosines, 1 where both say the same."""
        return similarities(self.embed_audio(wavs, lengths), self.embed_text(raw_texts))

    @torch.no_grad()
    def quantize_latents(self, latents: Tensor) -> Tensor:
        """(b, l) embeddings -> (b, depth) integers below 2 ** quantiser_bits."""
        return self._own_quantiser().to_ids(latents)

    @torch.no_grad()
    def latents_from_ids(self, ids: Tensor) -> Tensor:
        """The embeddings that codes stand for, of length one."""
        return F.normalize(self._own_quantiser().ids_to_values(ids), dim=-1)

    def _own_quantiser(self) -> Residual:
        if self.quantiser is None:
            raise ValueError("this model has no quantiser; quantiser_depth of 1 or more adds one")
        return self.quantiser

    # -- checks ---------------------------------------------------------------------------------

    def _place(self, wavs: Tensor) -> Tensor:
        return wavs.to(self.log_temperature.device, self.log_temperature.dtype)

    @staticmethod
    def check(wavs: Tensor) -> None:
        if wavs.ndim != 2 or not wavs.is_floating_point() or not wavs.shape[1]:
            raise ValueError(
                f"expected sounds (b, n) of floating numbers, one channel, not"
                f" {tuple(wavs.shape)} of {str(wavs.dtype).removeprefix('torch.')}"
            )


def fit(ids: Tensor, length: int) -> Tensor:
    """(b, t) ids cut or padded to the length that the text tower always sees."""
    if ids.ndim != 2 or ids.is_floating_point():
        raise ValueError(f"expected ids (b, t) of integers, not {tuple(ids.shape)} of {ids.dtype}")
    return F.pad(ids[:, :length], (0, max(0, length - ids.shape[1])), value=PAD).long()
