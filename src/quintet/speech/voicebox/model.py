"""VoiceBox: text-guided speech infilling by flow matching (arXiv 2306.15687).

Shapes: b samples, n characters, t frames of c features.

    sound ─ log-mel ─> frames ─┬─ one span masked ─────> context ─┐
                               │                                  ├─ backbone ─> velocity
    text ─ embedding ─ aligner ┴> character of each frame ────────┘
                          └─────> durations ─> targets of the duration model

The alignment is learned jointly, from whole recordings (arXiv 2108.10447). For infilling, the
aligner sees only the context, and the duration model predicts the rest: nothing of the target
reaches the backbone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quintet.compat.calls import VOICEBOX_CALL, VOICEBOX_SAMPLE, call_keywords
from quintet.compat.models import VOICEBOX, arguments, model_keywords
from quintet.engine.models.pretrained import Pretrained
from quintet.engine.settings import updated
from quintet.nn.alignment import (
    Aligner,
    binarization_loss,
    diagonal_prior,
    expand,
    forward_sum,
    inside,
    monotonic_search,
)
from quintet.nn.flow import Method, flow_loss, straight_path
from quintet.nn.griffin_lim import GriffinLim
from quintet.nn.quantisers.base import check_ids
from quintet.speech.features import FeatureExtractor
from quintet.speech.text.characters import FIRST, PAD, UNKNOWN, clean, stack
from quintet.speech.text.embedding import TokenEmbedding
from quintet.speech.text.markup import Marked
from quintet.speech.text.spelling import to_ids
from quintet.speech.text.timing import units_of
from quintet.speech.voicebox import control
from quintet.speech.voicebox.backbone import Backbone
from quintet.speech.voicebox.config import VoiceBoxConfig, VoiceBoxLossConfig
from quintet.speech.voicebox.durations import DurationModel, duration_loss, fully_visible, voice_of
from quintet.speech.voicebox.inference import (
    Layout,
    Reference,
    Segment,
    Solver,
    align_reference,
    infill,
    infill_layout,
    noise_keys,
    segment_layout,
    splice,
    split_reference,
)
from quintet.speech.voicebox.losses import LossSums, counts, total_loss
from quintet.speech.voicebox.masking import Draws, draw


class Alignment(NamedTuple):
    log_probs: Tensor
    """(b, t, n)."""
    durations: Tensor
    """(b, n), of the best alignment."""


class VoiceBox(Pretrained, nn.Module):
    """Built from a configuration, or from its fields as keywords.

    `voicebox(audio, texts=…)` is the loss of a batch, for a custom training loop;
    `voicebox.sample(…)` generates speech.
    """

    Config = VoiceBoxConfig

    def __init__(self, config: VoiceBoxConfig | None = None, **keywords: Any) -> None:
        nn.Module.__init__(self)
        config = config or VoiceBoxConfig()
        self.config = config = updated(config, model_keywords(VOICEBOX, keywords, config))
        self.features = FeatureExtractor(config)
        self.text_embedding = TokenEmbedding(config, config.text_dim)
        self.backbone = Backbone(config)
        learned, dim = config.text == "learned", config.align_dim
        self.align_embedding = TokenEmbedding(config, dim) if learned else None
        self.aligner = Aligner(dim, config.n_mels, dim) if learned else None
        self.durations = DurationModel(config) if learned else None

    def regions(self) -> list[nn.Module]:
        """Regions to compile: the blocks of the backbone, which share one graph."""
        return list(self.backbone.blocks)

    # -- training ---------------------------------------------------------------------------------

    def forward(
        self,
        audio: Tensor,
        lengths: Tensor,
        ids: Tensor,
        num_tokens: Tensor,
        draws: Draws,
        padded: bool = True,
        blank: float | Tensor = 0.0,
    ) -> LossSums:
        """`audio` (b, samples), or latents; `ids` (b, n), `num_tokens` (b,) without padding.

        If no recording is `padded`, attention runs without a mask, which is faster. `blank` is the
        logit of frames without a token in the alignment loss.
        """
        x1, num_frames = self.features(audio), self.features.num_frames(lengths)
        mask = inside(num_frames, x1.shape[1])
        infill_mask = draws.infill_mask & mask
        frame_ids, text_losses = ids, (x1.new_zeros(()),) * 3
        if self.config.text == "learned":
            alignment = self.align(x1, num_frames, ids, num_tokens)
            voice = voice_of(x1, mask & ~infill_mask)
            text_losses = self._text_losses(
                alignment, infill_mask, num_frames, ids, num_tokens, voice, draws.keys, blank
            )
            frame_ids = expand(ids, alignment.durations, x1.shape[1])
        elif self.config.text == "none":
            frame_ids = torch.where(mask, UNKNOWN, PAD)
        noise, time = draws.noise.to(x1.dtype), draws.time.to(x1.dtype)
        path = straight_path(noise, x1, time)
        frame_ids = torch.where(draws.text_dropped, UNKNOWN, frame_ids)
        context = self.mask_context(x1, infill_mask, mask)
        attention_mask = mask if padded else None
        velocity = self.velocity(path.x, time, context, infill_mask, frame_ids, attention_mask)
        return LossSums(flow_loss(velocity, path.target, infill_mask, 1.0), *text_losses)

    def velocity(
        self,
        x: Tensor,
        time: Tensor,
        context: Tensor,
        infill_mask: Tensor,
        frame_ids: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """The velocity of a state (b, t, c), given the character of each frame (b, t)."""
        text_embed = self.text_embedding(frame_ids)
        return self.backbone(x, context, infill_mask, text_embed, time.to(x.dtype), mask)

    @staticmethod
    def mask_context(x1: Tensor, infill_mask: Tensor, mask: Tensor) -> Tensor:
        """The clean frames, with zeros in the infill mask and in padding."""
        return torch.where((mask & ~infill_mask)[..., None], x1, torch.zeros_like(x1))

    def align(
        self,
        x1: Tensor,
        num_frames: Tensor,
        ids: Tensor,
        num_tokens: Tensor,
        infill_mask: Tensor | None = None,
    ) -> Alignment:
        """The alignment of characters with frames; masked frames are unseen and score alike."""
        assert self.aligner is not None
        assert self.align_embedding is not None
        visible = x1.detach() if infill_mask is None else x1.masked_fill(infill_mask[..., None], 0)
        size = (x1.shape[1], ids.shape[1])
        prior = diagonal_prior(num_frames, num_tokens, size)
        log_probs = self.aligner(
            self.align_embedding(ids), visible, num_tokens, num_frames, prior.to(x1.dtype)
        )
        if infill_mask is not None:
            log_probs = log_probs.masked_fill(infill_mask[..., None], 0)
        return Alignment(log_probs, monotonic_search(log_probs, num_frames, num_tokens))

    def _text_losses(
        self,
        alignment: Alignment,
        infill_mask: Tensor,
        num_frames: Tensor,
        ids: Tensor,
        num_tokens: Tensor,
        voice: Tensor,
        keys: Tensor,
        blank: float | Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert self.durations is not None
        known = fully_visible(alignment.durations, infill_mask)
        predicted = self.durations(ids, num_tokens, alignment.durations, known, voice, keys)
        # A text with more characters than frames cannot be aligned and has no loss.
        alignable = num_tokens <= num_frames
        target_mask = inside(num_tokens, ids.shape[1]) & ~known & alignable[:, None]
        return (
            forward_sum(alignment.log_probs, num_frames, num_tokens, blank).sum(),
            torch.where(alignable, binarization_loss(*alignment), 0.0).sum(),
            duration_loss(predicted, alignment.durations, target_mask),
        )

    # -- custom training loops --------------------------------------------------------------------

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if len(args) < 5 and "draws" not in keywords:
            return self.loss(*args, **call_keywords(VOICEBOX_CALL, keywords))
        return super().__call__(*args, **keywords)

    def loss(
        self,
        audio: Tensor,
        texts: Sequence[str] | Tensor | None = None,
        lengths: Tensor | None = None,
        losses: VoiceBoxLossConfig | None = None,
    ) -> Tensor:
        """The loss of a batch of sounds (b, n), or latents (b, t, c), with texts or ids."""
        losses, audio = losses or VoiceBoxLossConfig(), self.check_audio(audio)
        full = torch.full((len(audio),), audio.shape[1])
        lengths = (full if lengths is None else lengths).to(self.device)
        num_frames = self.features.num_frames(lengths)
        size = int(self.features.num_frames(full)[0])
        unknown = torch.full((len(audio), 1 if self.durations else size), UNKNOWN)
        ids, num_tokens = self.tokenize(unknown if texts is None else texts)
        keys = torch.randint(2**62, (len(audio),), device=self.device)
        draws = draw(keys, num_frames, (size, self.config.n_mels), losses)
        sums = super().__call__(audio, lengths, ids, num_tokens, draws)
        return total_loss(sums, counts(draws, num_frames, num_tokens))

    def tokenize(self, texts: Sequence[str] | Tensor) -> tuple[Tensor, Tensor]:
        """Ids (b, n) and their number (b,); a tensor of ids passes through, with 0 for padding."""
        if isinstance(texts, Tensor):
            remedy = "build VoiceBox with vocabulary=, 2 more than your ids"
            check_ids(texts, self.config.vocabulary, remedy)
            return texts.to(self.device), (texts != PAD).sum(1).to(self.device)
        self.check_texts(texts)
        if self.config.text == "given":
            raise ValueError("this model takes ids, one for each frame, and not strings")
        ids, num_tokens = stack([self.encode(text) for text in texts])
        return ids.to(self.device), num_tokens.to(self.device)

    def check_texts(self, texts: Any) -> None:
        if self.config.text == "none" and texts is not None:
            raise ValueError("this model was trained on sound alone (text is 'none'): drop texts")

    def encode(self, text: str | Marked, language: str = "") -> Tensor:
        """(n,) ids of a text; the language, for phonemes, is that of the model by default."""
        if isinstance(text, Marked):
            return torch.tensor(units_of(text, self.config, language)[0])
        return to_ids(clean(text), self.config, language)

    def check_audio(self, audio: Tensor) -> Tensor:
        """Sounds (b, n) or latents (b, t, c), on the model's device and of its dtype."""
        latents = self.config.features == "latents"
        valid = audio.ndim == (3 if latents else 2) and audio.is_floating_point()
        if not valid or not audio.shape[1] or (latents and audio.shape[2] != self.config.n_mels):
            expected = f"latents (b, t, {self.config.n_mels})" if latents else "sounds (b, n)"
            dtype = str(audio.dtype).removeprefix("torch.")
            other = "; for latents build the model with features='latents' and n_mels=, their width"
            raise ValueError(
                f"expected floating-point {expected}, not {tuple(audio.shape)} of"
                f" {dtype}{other if audio.ndim == 3 else ''}"
            )
        return audio.to(self.device, self.text_embedding.weight.dtype)

    @property
    def device(self) -> torch.device:
        return self.text_embedding.weight.device

    # -- sampling ---------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self,
        *,
        cond: Tensor | Sequence[Tensor] | None = None,
        texts: Sequence[str | Marked] | Tensor | None = None,
        cond_mask: Tensor | None = None,
        cond_texts: Sequence[str | Marked | None] | None = None,
        language: str = "",
        seconds: float | None = None,
        steps: int = 16,
        cond_scale: float = 1.3,
        method: Method = "midpoint",
        sway: float = -1.0,
        seed: int = 0,
        vocoder: nn.Module | None = None,
        **older: Any,
    ) -> list[Tensor]:
        """Speech (n,) for each text, or latents (t, c) from a model of latents. `older` are
        arguments of voicebox-pytorch.

        `texts` alone are spoken in any voice. With `cond`, reference recordings with optional
        transcripts `cond_texts`, they continue those recordings; the new part is returned. They may
        have marks; `quintet.speech.text.markup.parse(text, rate=1.2, spread=0.1)` is a text with
        a rate, and with durations that are drawn. `seconds` are all in all.

        With `cond_mask` (b, t) as well, true for frames to infill, `texts` are the transcripts of
        the whole recordings, which are returned; without texts the mask may have several spans.
        `cond` alone only sets the lengths of speech without any condition.
        """
        arguments(VOICEBOX_SAMPLE, older, set(), self.config, self.sample)
        solver = Solver(steps, method, sway, cond_scale)
        self.check_texts(texts)
        if texts is None and cond is not None and cond_mask is None:
            longest = max(len(frames) for frames in self.extract(cond))
            cond_mask = torch.ones(len(cond), longest, dtype=torch.bool)
        if cond_mask is not None:
            if cond is None:
                raise ValueError("cond_mask selects frames of cond; give cond as well")
            layout = self._infill_layout(self.extract(cond), control.plain(texts), cond_mask)
            frames = infill(self, layout, solver, noise_keys(seed, len(cond), self.device))
            lengths = layout.num_frames.tolist()
            return [self.to_sound(row[:n], vocoder) for row, n in zip(frames, lengths)]
        if texts is None or isinstance(texts, Tensor) or self.durations is None:
            raise ValueError("give texts as strings, or recordings (cond), alone or with cond_mask")
        segments = self.segments(texts, cond, cond_texts, language, seconds, seed)
        return [self.to_sound(new, vocoder) for new in self.generate(segments, solver, seed)[0]]

    def segments(
        self,
        texts: Sequence[str | Marked],
        cond: Tensor | Sequence[Tensor] | None,
        cond_texts: Sequence[str | Marked | None] | None,
        language: str = "",
        seconds: float | None = None,
        seed: int = 0,
    ) -> list[Segment]:
        length = self._frames_in(seconds)
        segments: list[Segment] = []
        for index, text in enumerate(texts):
            key = control.spread_key(seed, index)
            ids, timing = control.timed_ids(self, text, language, key)
            segments.append(Segment(ids, length=length, timing=timing))
        if cond is None:
            return segments
        transcripts = cond_texts or [None] * len(segments)
        if not len(cond) == len(transcripts) == len(segments):
            raise ValueError(
                f"{len(cond)} recordings and {len(transcripts)} transcripts for {len(segments)}"
                " texts; give one recording, and its transcript or None, for each text"
            )
        references = [
            self._reference(x, text, language) for x, text in zip(self.extract(cond), transcripts)
        ]
        # A space separates the texts where they have no edges.
        space = torch.tensor([] if self.config.edges else [FIRST + ord(" ")], device=self.device)
        return [
            segment._replace(
                ids=torch.cat((space.long(), segment.ids)),
                before=reference,
                timing=segment.timing and segment.timing.after(len(space)),
            )
            for segment, reference in zip(segments, references)
        ]

    @torch.no_grad()
    def edit(
        self,
        audio: Tensor,
        start: float,
        end: float,
        text: str | Marked | None = None,
        transcript: str | None = None,
        *,
        language: str = "",
        seconds: float | None = None,
        solver: Solver = Solver(),  # noqa: B008
        seed: int = 0,
        vocoder: nn.Module | None = None,
    ) -> Tensor:
        """A recording (n,) with the span from `start` to `end`, in seconds, replaced by `text`,
        which may have marks.

        The new span lasts as long as predicted, or `seconds`; the rest of the recording is kept.
        A model without texts infills the span, at its length.
        """
        self.check_texts(text)
        mel = self.features.mel
        if mel is None:
            raise ValueError("edit() needs a mel model; for latents use sample() with cond_mask")
        sample_rate = self.config.sample_rate
        total = audio.shape[-1] / sample_rate
        if audio.ndim != 1 or not 0 <= start < end <= total + 1e-3:
            raise ValueError(
                f"span from {start:g} to {end:g} s of a recording {tuple(audio.shape)} of"
                f" {total:.2f} s: give one recording (n,), and times inside of it"
            )
        frames = self.extract([audio])[0]
        first = min(round(start * sample_rate / mel.hop_length), len(frames) - 1)
        last = min(max(round(end * sample_rate / mel.hop_length), first + 1), len(frames))
        if self.durations is None:
            mask = torch.zeros(1, len(frames), dtype=torch.bool)
            mask[:, first:last] = True
            layout = self._infill_layout([frames], None, mask)
            (filled,) = infill(self, layout, solver, noise_keys(seed, 1, self.device))
            sound = self.to_sound(filled, vocoder)
            return splice(audio.to(sound), sound, (first, last, last), mel.hop_length)
        if text is None:
            raise ValueError("give the text to speak in the span")
        before, after = split_reference(self._reference(frames, transcript, language), first, last)
        key = control.spread_key(seed, 0)
        ids, timing = control.timed_ids(self, text, language, key)
        segment = Segment(ids, before, after, self._frames_in(seconds), timing)
        (new,), _ = self.generate([segment], solver, seed)
        sound = self.to_sound(torch.cat((before.frames, new, after.frames)), vocoder)
        return splice(audio.to(sound), sound, (first, last, first + len(new)), mel.hop_length)

    def generate(
        self, segments: Sequence[Segment], solver: Solver, seed: int = 0
    ) -> tuple[list[Tensor], Layout]:
        """The new frames (t, c) of each segment, and their layout."""
        layout = segment_layout(self, segments)
        frames = infill(self, layout, solver, noise_keys(seed, len(segments), self.device))
        new = [row[mask] for row, mask in zip(frames, layout.infill_mask)]
        pauses = layout.pauses or ((),) * len(new)
        return [control.with_pauses(self, row, each) for row, each in zip(new, pauses)], layout

    def extract(self, audio: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Frames (t, c) of each recording."""
        return [self.features(self.check_audio(one[None]))[0] for one in audio]

    def _reference(self, frames: Tensor, text: str | Marked | None, language: str) -> Reference:
        ids = None if text is None else self.encode(text, language).to(self.device)
        return align_reference(self, frames, ids)

    def _infill_layout(
        self, frames: Sequence[Tensor], texts: Sequence[str] | Tensor | None, mask: Tensor
    ) -> Layout:
        num_frames = torch.tensor([len(row) for row in frames], device=self.device)
        x1 = nn.utils.rnn.pad_sequence(list(frames), batch_first=True)
        if mask.shape != x1.shape[:2]:
            raise ValueError(
                f"cond_mask is {tuple(mask.shape)}; give {tuple(x1.shape[:2])}, one for each frame"
            )
        valid = inside(num_frames, x1.shape[1])
        infill_mask = mask.to(self.device) & valid
        aligned = texts is not None and self.durations is not None
        if aligned and bool((F.pad(infill_mask, (1, 0)).int().diff(dim=1) > 0).sum(1).gt(1).any()):
            raise ValueError(
                "cond_mask has several spans; infill them one at a time, or drop texts"
            )
        if texts is None:
            frame_ids = torch.where(valid, UNKNOWN, PAD)
            context = self.mask_context(x1, infill_mask, ~infill_mask)
            return Layout(frame_ids, context, infill_mask, num_frames, num_frames[:, None])
        return infill_layout(self, x1, num_frames, *self.tokenize(texts), infill_mask)

    def _frames_in(self, seconds: float | None) -> int | None:
        if seconds is None:
            return None
        return max(1, round(seconds * self.config.sample_rate / self.config.hop_length))

    def to_sound(self, frames: Tensor, vocoder: nn.Module | None = None) -> Tensor:
        """Frames (t, c) -> sound (n,), by Griffin-Lim or a vocoder; latents stay latents."""
        features = self.features.inverse(frames[None])
        mel = self.features.mel
        if mel is None:
            return features[0]
        if vocoder is None:
            # A single frame spans no hop.
            return GriffinLim(mel)(features, max(1, (len(frames) - 1) * mel.hop_length))[0]
        return vocoder(features)[0]


Model = VoiceBox
