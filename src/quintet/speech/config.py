"""What can be set in the speech room. Plain values only, and no torch: help must be instant."""

from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from quintet.engine.config import (
    OptimiserConfig,
    Recipe,
    path,
    require,
    require_choices,
    require_finite,
    require_held_out,
)


@dataclass(frozen=True, kw_only=True)
class SpeechDataConfig:
    """Which recordings, and how they come in batches."""

    rate: int = 24_000
    """Samples a second; files of any other rate are resampled."""
    max_seconds: float = 16.0
    """Longer recordings are skipped: nobody knows which of their words a part of them has."""
    min_seconds: float = 0.1
    """Shorter recordings are skipped."""
    text_length: int = 512
    """Recordings whose text has more bytes than this are skipped."""
    alphabet: str | None = None
    """Where given, recordings whose text has a character that is not among these are skipped."""
    buckets: int = 6
    """Batches are padded to one of so many lengths, evenly spaced up to max_seconds."""
    valid_fraction: float = 0.05
    """Share of a folder held out for validation, chosen by the seed."""
    valid_limit: int = 500
    """At most so many held-out recordings are measured at each evaluation."""
    builtin_count: int = 100_000
    """Number of built-in training utterances when no folder is given."""
    max_missing: float = 0.5
    """Recordings without a text are left out; past this share of them the folder is refused."""
    max_bytes: int = 1_000_000_000
    """Files with more bytes than this are skipped before they are opened."""
    max_channels: int = 8
    """Files with more channels than this are skipped; up to it they are mixed to one."""
    max_rate: int = 192_000
    """Files with more samples a second than this are skipped."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(8000 <= self.rate <= 192_000, "rate", self.rate, "between 8,000 and 192,000")
        least = self.min_seconds
        most = self.max_seconds
        require(0 < least <= most, "min_seconds", least, "above 0 and at most max_seconds")
        require_held_out(self)
        lost = self.max_missing
        require(0 <= lost <= 1, "max_missing", lost, "a share between 0 and 1")
        empty = self.alphabet is None or bool(self.alphabet)
        require(empty, "alphabet", self.alphabet, "the characters that may occur, or left out")
        counts = ("buckets", "text_length")
        for name in (*counts, "max_bytes", "max_channels", "max_rate"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")


@dataclass(frozen=True, kw_only=True)
class VoiceBoxConfig:
    """The model: a flow over frames of sound, and what tells it which character is when."""

    features: Literal["mel", "latents"] = "mel"
    """Frames are log-mel bins of the sound, or latents that you bring along."""
    rate: int = 24_000
    """mel: samples a second."""
    n_fft: int = 1024
    """mel: samples that a frame looks at."""
    hop: int = 256
    """mel: samples between frames."""
    bins: int = 100
    """Numbers of a frame."""
    mean: float = -2.0
    """Subtracted from every number of a frame: about the mean of speech."""
    deviation: float = 2.2
    """What is left is divided by this: about how far speech departs from its mean."""
    dim: int = 512
    """Width of the transformer."""
    depth: int = 12
    """Its layers."""
    heads: int = 8
    """Its attention heads."""
    head_dim: int = 64
    """Channels of each of them."""
    registers: int = 16
    """Learned positions before the first frame that all frames can look at."""
    kernel: int = 31
    """Frames that the convolution sees by which frames know their neighbours."""
    dropout: float = 0.0
    """Share of each branch that is dropped in training."""
    text: Literal["learned", "given"] = "learned"
    """Characters whose place in time is learned along, or ids of your own, one for each frame."""
    vocabulary: int = 258
    """Ids of the text: bytes and two more; or as many as your own take."""
    edges: bool = True
    """learned: a space before and after each text, for the silence there."""
    text_dim: int = 256
    """Width of an embedded character."""
    align_dim: int = 80
    """learned: width of the space in which characters and frames are compared."""
    narrowness: float = 1.0
    """learned: how closely alignments are expected to keep to an even pace."""
    duration_dim: int = 256
    """learned: width of the small transformer that says how long each character lasts."""
    duration_depth: int = 3
    """learned: its layers."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_finite(self)
        sizes = ("rate", "n_fft", "hop", "bins", "dim", "depth", "heads", "head_dim", "kernel")
        for name in (*sizes, "text_dim", "align_dim", "duration_dim", "duration_depth"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.registers >= 0, "registers", self.registers, "0 or more")
        even = self.head_dim // 2 * 2 == self.head_dim
        require(even, "head_dim", self.head_dim, "even, so that it turns")
        wide = self.duration_dim // 64 * 64 == self.duration_dim
        require(wide, "duration_dim", self.duration_dim, "a multiple of 64, the width of a head")
        require(self.kernel // 2 * 2 != self.kernel, "kernel", self.kernel, "odd")
        for name in ("deviation", "narrowness"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "at least 0 and below 1")
        least = 258 if self.text == "learned" else 3
        require(self.vocabulary >= least, "vocabulary", self.vocabulary, f"{least} or more")
        fits = self.hop <= self.n_fft // 2
        require(fits, "hop", self.hop, "at most half of n_fft, or sound between frames is lost")


@dataclass(frozen=True, kw_only=True)
class VoiceBoxLossConfig:
    """What is hidden in training, and what each loss weighs beside that of the flow."""

    hidden: tuple[float, float] = (0.5, 1.0)
    """The least and the largest share of a recording that is hidden, in one span."""
    drop_context: float = 0.2
    """Share of samples of which all is hidden, so that speech can begin from nothing."""
    drop_text: float = 0.1
    """Share of samples whose text is hidden, so that it can be followed more than it asks."""
    drop_context_text: float = 0.1
    """Share of samples whose text outside of the span is hidden, as of a voice without one."""
    align_weight: float = 1.0
    """Weight of the likelihood of all alignments, for each frame."""
    sharp_weight: float = 0.1
    """Weight of the likelihood of the best alignment alone."""
    duration_weight: float = 0.1
    """Weight of the error of logarithms of durations, for each character."""

    def __post_init__(self) -> None:
        require_finite(self)
        low, high = self.hidden
        require(0 < low <= high <= 1, "hidden", self.hidden, "two shares above 0, the less first")
        for name in ("drop_context", "drop_text", "drop_context_text"):
            share = getattr(self, name)
            require(0 <= share <= 1, name, share, "a share between 0 and 1")
        for name in ("align_weight", "sharp_weight", "duration_weight"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")


@dataclass(frozen=True, kw_only=True)
class SpeakingConfig:
    """How held-out speech is filled in and spoken at evaluations."""

    steps: int = 16
    """Steps of the solver."""
    method: Literal["euler", "midpoint", "adaptive"] = "midpoint"
    """Euler looks at the field once a step, midpoint twice; adaptive chooses its steps."""
    sway: float = -1.0
    """Steps are closer together near the noise where this is negative, down to -1."""
    cond_scale: float = 1.3
    """How far text and context are followed beyond what they ask for; 1 is as learned."""
    span: float = 0.5
    """Share of each held-out recording that is hidden and filled in."""
    count: int = 32
    """So many held-out texts are spoken from nothing but the text."""
    vocoder: str | None = path()
    """Folder with the weights of Vocos; left out: Griffin-Lim."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_finite(self)
        require(self.steps >= 1, "steps", self.steps, "1 or more")
        require(-1 <= self.sway <= 1, "sway", self.sway, "between -1 and 1")
        require(0 < self.span < 1, "span", self.span, "a share between 0 and 1")
        require(self.count >= 0, "count", self.count, "0 or more")


@dataclass(frozen=True, kw_only=True)
class VoiceBoxRecipe(Recipe):
    """Everything that a run of VoiceBox is made of. A batch has as many frames as `batch_size`
    recordings of the longest kind; of shorter ones there are more in it."""

    model: VoiceBoxConfig = field(default_factory=VoiceBoxConfig)
    """The flow, the aligner and the durations."""
    recordings: SpeechDataConfig = field(default_factory=SpeechDataConfig)
    """The recordings and their texts."""
    losses: VoiceBoxLossConfig = field(default_factory=VoiceBoxLossConfig)
    """What is hidden, and what it costs."""
    speaking: SpeakingConfig = field(default_factory=SpeakingConfig)
    """How it is measured."""
    voicebox: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How it learns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model, rate = self.model, self.recordings.rate
        matched = model.features == "latents" or rate == model.rate
        require(matched, "recordings.rate", rate, f"model.rate, {model.rate}")
        built_in = self.data is not None or (model.features == "mel" and model.text == "learned")
        require(built_in, "data", self.data, "given: built-in speech is sound with characters")


def frames_in(seconds: float, rate: int, hop: int) -> int:
    """Frames of a sound, as `LogMel` counts them."""
    return 1 + ceil(seconds * rate) // hop
