"""VoiceBox: speech from text, by a flow that fills in what is missing (arXiv 2306.15687).

Shapes: b samples, n characters, t frames of c numbers.

    sound ─ log-mel ─> frames ─┬─ hidden in one span ─> context ─┐
                               │                                 ├─ backbone ─> velocity of noise
    text ─ embedding ─ aligner ┴> character of each frame ───────┘
                          └─────> durations ─> what the duration model learns

Which character is heard when is learned along (arXiv 2108.10447), from whole recordings. When a
hole is filled in, the aligner sees only what is left of the recording, and the duration model says
the rest: nothing of what is to be found reaches the backbone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.engine.pretrained import Pretrained
from quintet.nn.alignment import (
    Aligner,
    binarisation_loss,
    diagonal_prior,
    expand,
    forward_sum,
    inside,
    monotonic_search,
)
from quintet.nn.flow import Method, flow_loss, straight_path
from quintet.nn.vocoder import GriffinLim
from quintet.speech.backbone import Backbone
from quintet.speech.characters import FIRST, PAD, UNKNOWN, clean, encode, stack
from quintet.speech.config import VoiceBoxConfig, VoiceBoxLossConfig
from quintet.speech.draws import Draws, draw
from quintet.speech.durations import DurationModel, duration_errors, heard_whole
from quintet.speech.losses import Learned, counts, total
from quintet.speech.mels import Frames
from quintet.speech.speaking import (
    Heard,
    Line,
    Script,
    Solver,
    cut,
    fill,
    hear,
    holed,
    keys_of,
    pasted,
    scripted,
)


class Aligned(NamedTuple):
    log_probs: Tensor
    """(b, t, n)."""
    durations: Tensor
    """(b, n), of the best alignment."""


class VoiceBox(Pretrained, nn.Module):
    """Build it from a configuration, or from its fields as keywords.

    `voicebox(audio, texts=…)` gives the loss of a batch, for a training loop of one's own, and
    `voicebox.sample(…)` speaks.
    """

    Config = VoiceBoxConfig

    def __init__(self, config: VoiceBoxConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        config = replace(config, **keywords) if config else VoiceBoxConfig(**keywords)
        self.config = config
        self.frames = Frames(config)
        self.characters = nn.Embedding(config.vocabulary, config.text_dim, padding_idx=PAD)
        self.backbone = Backbone(config)
        learned = config.text == "learned"
        self.letters = nn.Embedding(config.vocabulary, config.align_dim) if learned else None
        self.aligner = Aligner(config.align_dim, config.bins, config.align_dim) if learned else None
        self.durations = DurationModel(config) if learned else None

    def regions(self) -> list[nn.Module]:
        """What is compiled by itself: the blocks of the backbone, which are alike."""
        return list(self.backbone.blocks)

    # -- learning ---------------------------------------------------------------------------------

    def forward(
        self,
        audio: Tensor,
        lengths: Tensor,
        ids: Tensor,
        tokens: Tensor,
        draws: Draws,
        padded: bool = True,
    ) -> Learned:
        """`audio` (b, samples), or latents; `ids` (b, n) of which `tokens` (b,) are no padding.

        Where no recording is `padded`, attention goes without a mask, which is faster.
        """
        x1, frames = self.frames(audio), self.frames.count(lengths)
        mask = inside(frames, x1.shape[1])
        hole = draws.hole & mask
        said, losses = ids, (x1.new_zeros(()),) * 3
        if self.config.text == "learned":
            found = self.align(x1, frames, ids, tokens)
            losses = self._learn_text(found, hole, frames, ids, tokens)
            said = expand(ids, found.durations, x1.shape[1])
        noise, time = draws.noise.to(x1.dtype), draws.time.to(x1.dtype)
        path = straight_path(noise, x1, time)
        told = torch.where(draws.dropped, UNKNOWN, said)
        context = self.hidden(x1, hole, mask)
        velocity = self.velocity(path.x, time, context, hole, told, mask if padded else None)
        return Learned(flow_loss(velocity, path.target, hole, 1.0), *losses)

    def velocity(
        self,
        x: Tensor,
        time: Tensor,
        context: Tensor,
        hole: Tensor,
        said: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """Where the state (b, t, c) should go, given the character `said` (b, t) in each frame."""
        return self.backbone(x, context, hole, self.characters(said), time.to(x.dtype), mask)

    @staticmethod
    def hidden(x1: Tensor, hole: Tensor, mask: Tensor) -> Tensor:
        """The clean frames, with zeros in the hole and beyond the end."""
        return torch.where((mask & ~hole)[..., None], x1, torch.zeros_like(x1))

    def align(
        self,
        x1: Tensor,
        frames: Tensor,
        ids: Tensor,
        tokens: Tensor,
        hole: Tensor | None = None,
    ) -> Aligned:
        """Where each character is; of frames in a hole nothing is known, and nothing seen."""
        assert self.aligner is not None
        assert self.letters is not None
        heard = x1.detach() if hole is None else x1.masked_fill(hole[..., None], 0)
        size = (x1.shape[1], ids.shape[1])
        prior = diagonal_prior(frames, tokens, size, narrowness=self.config.narrowness)
        log_probs = self.aligner(self.letters(ids), heard, tokens, frames, prior.to(x1.dtype))
        if hole is not None:
            log_probs = log_probs.masked_fill(hole[..., None], 0)
        return Aligned(log_probs, monotonic_search(log_probs, frames, tokens))

    def _learn_text(
        self, found: Aligned, hole: Tensor, frames: Tensor, ids: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert self.durations is not None
        known = heard_whole(found.durations, hole)
        predicted = self.durations(ids, tokens, found.durations, known)
        wanted = inside(tokens, ids.shape[1]) & ~known
        # A text longer than its recording cannot be aligned, and teaches nothing.
        wanted = wanted & (tokens <= frames)[:, None]
        sharp = torch.where(tokens <= frames, binarisation_loss(*found), 0.0)
        return (
            forward_sum(found.log_probs, frames, tokens).sum(),
            sharp.sum(),
            duration_errors(predicted, found.durations, wanted),
        )

    # -- training loops of one's own --------------------------------------------------------------

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if len(args) < 5 and "draws" not in keywords:
            return self.loss(*args, **keywords)
        return super().__call__(*args, **keywords)

    def loss(
        self,
        audio: Tensor,
        texts: Sequence[str] | Tensor | None = None,
        lengths: Tensor | None = None,
        losses: VoiceBoxLossConfig | None = None,
    ) -> Tensor:
        """The loss of a batch of sounds (b, n), or latents (b, t, c), with texts or ids."""
        losses, audio = losses or VoiceBoxLossConfig(), self.checked(audio)
        whole = torch.full((len(audio),), audio.shape[1])
        lengths = (whole if lengths is None else lengths).to(self.device)
        frames, size = self.frames.count(lengths), self.frames.count(whole)[0]
        nothing = torch.full((len(audio), 1 if self.durations else int(size)), UNKNOWN)
        ids, tokens = self.read(nothing if texts is None else texts)
        keys = torch.randint(2**62, (len(audio),), device=self.device)
        draws = draw(keys, frames, (int(size), self.config.bins), losses)
        found = super().__call__(audio, lengths, ids, tokens, draws)
        return total(found, counts(draws, frames, tokens), losses)

    def read(self, texts: Sequence[str] | Tensor) -> tuple[Tensor, Tensor]:
        """Ids (b, n) and how many of them there are; ids of one's own are what is not 0."""
        if isinstance(texts, Tensor):
            return texts.to(self.device), (texts != PAD).sum(1).to(self.device)
        if self.config.text == "given":
            raise ValueError("this model takes ids, one for each frame, and not strings")
        ids, tokens = stack([self.encode(text) for text in texts])
        return ids.to(self.device), tokens.to(self.device)

    def encode(self, text: str) -> Tensor:
        """(n,) ids of a text."""
        return encode(clean(text), self.config.edges)

    def checked(self, audio: Tensor) -> Tensor:
        """As the model takes it: sounds (b, n), or latents (b, t, c)."""
        latents = self.config.features == "latents"
        fits = audio.ndim == (3 if latents else 2) and audio.is_floating_point()
        if not fits or not audio.shape[1] or (latents and audio.shape[2] != self.config.bins):
            wanted = f"latents (b, t, {self.config.bins})" if latents else "sounds (b, n)"
            kind = str(audio.dtype).removeprefix("torch.")
            raise ValueError(
                f"expected {wanted} of floating numbers, not {tuple(audio.shape)} of {kind}"
            )
        return audio.to(self.device, self.characters.weight.dtype)

    @property
    def device(self) -> torch.device:
        return self.characters.weight.device

    # -- speaking ---------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self,
        *,
        cond: Tensor | Sequence[Tensor] | None = None,
        texts: Sequence[str] | Tensor | None = None,
        cond_mask: Tensor | None = None,
        cond_texts: Sequence[str | None] | None = None,
        seconds: float | None = None,
        steps: int = 16,
        cond_scale: float = 1.3,
        method: Method = "midpoint",
        sway: float = -1.0,
        seed: int = 0,
        vocoder: nn.Module | None = None,
    ) -> list[Tensor]:
        """Speech (n,) for each text, or latents (t, c) where the model is of those.

        Alone, `texts` are spoken by any voice. With `cond`, recordings of which `cond_texts` are
        the words where they are known, they are spoken on by those voices, and what is new comes
        back. With `cond_mask` (b, t) as well, true where a recording is to be filled in, `texts`
        are the words of it all, and all of it comes back.
        """
        solver = Solver(steps, method, sway, cond_scale)
        if cond_mask is not None:
            if cond is None:
                raise ValueError("cond_mask says which frames of cond are missing; give cond too")
            script = self._holed(self.heard(cond), texts, cond_mask)
            found = fill(self, script, solver, keys_of(seed, len(script.said), self.device))
            return [
                self.to_sound(row[:n], vocoder) for row, n in zip(found, script.frames.tolist())
            ]
        if texts is None or isinstance(texts, Tensor) or self.durations is None:
            raise ValueError("give texts as strings, or recordings with cond_mask")
        lines = self._lines(texts, cond, cond_texts, self._count(seconds))
        return [self.to_sound(new, vocoder) for new in self.speak(lines, solver, seed)[0]]

    def _lines(
        self,
        texts: Sequence[str],
        cond: Tensor | Sequence[Tensor] | None,
        cond_texts: Sequence[str | None] | None,
        length: int | None,
    ) -> list[Line]:
        lines = [Line(self.encode(text).to(self.device), length=length) for text in texts]
        if cond is None:
            return lines
        said = cond_texts or [None] * len(lines)
        if not len(cond) == len(said) == len(lines):
            raise ValueError(
                f"{len(cond)} recordings with {len(said)} texts are to say {len(lines)}; give one"
                " recording, and one of its texts where they are known, for each text"
            )
        befores = [self._hear(frames, text) for frames, text in zip(self.heard(cond), said)]
        # Words are spoken apart, also where texts have no edges.
        pause = torch.tensor([] if self.config.edges else [FIRST + ord(" ")], device=self.device)
        return [
            line._replace(ids=torch.cat((pause.long(), line.ids)), before=heard)
            for line, heard in zip(lines, befores)
        ]

    @torch.no_grad()
    def edit(
        self,
        audio: Tensor,
        start: float,
        end: float,
        text: str,
        transcript: str | None = None,
        *,
        seconds: float | None = None,
        solver: Solver = Solver(),  # noqa: B008
        seed: int = 0,
        vocoder: nn.Module | None = None,
    ) -> Tensor:
        """A recording (n,) that says `text` between `start` and `end`, in seconds, instead.

        What is new lasts as long as it takes, or `seconds`; all else stays as it was recorded.
        """
        mel = self.frames.mel
        if mel is None:
            raise ValueError("only sound can be cut by the second; use sample with cond_mask")
        rate, whole = self.config.rate, audio.shape[-1] / self.config.rate
        if audio.ndim != 1 or not 0 <= start < end <= whole + 1e-3:
            raise ValueError(
                f"from {start:g} to {end:g} s of a recording {tuple(audio.shape)} of {whole:.2f} s:"
                " give one recording (n,), and times inside of it"
            )
        frames = self.heard([audio])[0]
        first = min(round(start * rate / mel.hop), len(frames) - 1)
        last = min(max(round(end * rate / mel.hop), first + 1), len(frames))
        before, after = cut(self._hear(frames, transcript), first, last)
        line = Line(self.encode(text).to(self.device), before, after, self._count(seconds))
        (new,), _ = self.speak([line], solver, seed)
        sound = self.to_sound(torch.cat((before.frames, new, after.frames)), vocoder)
        return pasted(audio.to(sound), sound, (first, last, first + len(new)), mel.hop)

    def speak(
        self, lines: Sequence[Line], solver: Solver, seed: int = 0
    ) -> tuple[list[Tensor], Script]:
        """The new frames (t, c) of each line, and how they were laid out."""
        script = scripted(self, lines)
        found = fill(self, script, solver, keys_of(seed, len(lines), self.device))
        return [row[hole] for row, hole in zip(found, script.hole)], script

    def heard(self, audio: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Frames (t, c) of each recording."""
        return [self.frames(self.checked(one[None]))[0] for one in audio]

    def _hear(self, frames: Tensor, text: str | None) -> Heard:
        return hear(self, frames, None if text is None else self.encode(text).to(self.device))

    def _holed(
        self, rows: Sequence[Tensor], texts: Sequence[str] | Tensor | None, mask: Tensor
    ) -> Script:
        frames = torch.tensor([len(row) for row in rows], device=self.device)
        x1 = nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        if mask.shape != x1.shape[:2]:
            raise ValueError(
                f"cond_mask is {tuple(mask.shape)}; give {tuple(x1.shape[:2])}, one for each frame"
            )
        hole = mask.to(self.device) & inside(frames, x1.shape[1])
        if bool((F.pad(hole, (1, 0)).int().diff(dim=1) > 0).sum(1).gt(1).any()):
            raise ValueError("cond_mask has several spans; fill them in one after the other")
        if texts is None:
            said = torch.where(inside(frames, x1.shape[1]), UNKNOWN, PAD)
            return Script(said, self.hidden(x1, hole, ~hole), hole, frames, frames[:, None])
        return holed(self, x1, frames, *self.read(texts), hole)

    def _count(self, seconds: float | None) -> int | None:
        """Frames of so many seconds."""
        if seconds is None:
            return None
        return max(1, round(seconds * self.config.rate / self.config.hop))

    def to_sound(self, frames: Tensor, vocoder: nn.Module | None = None) -> Tensor:
        """Frames (t, c) -> sound (n,), by Griffin-Lim or another vocoder; latents stay latents."""
        rows = self.frames.back(frames[None])
        mel = self.frames.mel
        if mel is None:
            return rows[0]
        if vocoder is None:
            # A single frame is the end of no hop.
            return GriffinLim(mel)(rows, max(1, (len(frames) - 1) * mel.hop))[0]
        return vocoder(rows)[0]
