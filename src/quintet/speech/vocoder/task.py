"""Training of a vocoder: the magnitudes that it predicts from the log-mels of recordings against
those of the recordings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quintet.engine.health import above
from quintet.engine.keys import fold, uniform
from quintet.engine.task import (
    Batch,
    Exhibit,
    Loss,
    Measured,
    Part,
    Rows,
    StepContext,
    Tally,
    Task,
    Update,
    each,
)
from quintet.media.pitch import cents_apart, pitch
from quintet.nn.spectral_errors import mel_errors, stft_errors
from quintet.shared import segments
from quintet.shared.exhibits import Sounds
from quintet.speech.vocoder import data
from quintet.speech.vocoder.config import VocoderRecipe
from quintet.speech.vocoder.model import Vocoder

NO_BETTER = (
    "copies are no closer to the recordings than those of Griffin-Lim; train longer, or raise the "
    "learning rate"
)
SHOWN = 3
"""Recordings in the exhibits of an evaluation."""


class VocoderTask(Task):
    main = "vocoder"
    best = ("stft_error", "min")
    capturable = True

    def __init__(self, recipe: VocoderRecipe, model: Vocoder | None = None, sets: Any = None):
        self.recipe = recipe
        self.sets: dict[str, Any] = {} if sets is None else sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        self.model = model if model is not None else Vocoder(recipe.model)
        self.segments = data.segments(recipe)
        self.baselines: dict[int, Tensor] = {}
        self.parts = {self.main: Part(self.model, recipe.optim, compiles_captured=False)}
        self.updates = [Update(self.main, each(self.loss))]
        self.monitors = [above("val/share_of_griffin_lim", 1.0, NO_BETTER, 3)]

    # -- data -----------------------------------------------------------------------------------

    def data(self, split: str) -> Any:
        if split not in self.sets:
            self.sets[split] = data.open_data(self.recipe, split)  # type: ignore[arg-type]
        return self.sets[split]

    def collate(self, items: list[Any]) -> dict[str, Any]:
        return segments.collate(items, self.segments)

    def check(self, data: Any) -> None:
        segments.check_peak(data["audio"])

    # -- the update -----------------------------------------------------------------------------

    def loss(self, nets: Mapping[str, Any], batch: Batch, context: StepContext) -> Loss:
        # At a loudness drawn by the keys of the samples.
        decibels = (2 * uniform(batch.keys, "gain", ()) - 1) * self.recipe.recordings.gain
        sounds = batch.data["audio"]
        sounds = sounds * (10 ** (decibels / 20)).to(sounds.dtype)[:, None]
        loss = nets[self.main](self.model.mel(sounds), sounds).mean()
        return loss, {"loss": loss}

    # -- evaluation -----------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        """Errors of copies, beside those of Griffin-Lim, which are computed once."""
        copies = self._distances(batch, self._copies(nets, batch))
        if not all(index in self.baselines for index in batch.ids):
            baselines = self._distances(batch, self._copies(nets, batch, griffin_lim=True))
            self.baselines |= dict(zip(batch.ids, baselines.cpu()))
        baselines = torch.stack([self.baselines[index] for index in batch.ids]).to(copies.device)
        measured: dict[str, Tally | Rows] = {}
        for suffix, values in {"": copies, "_griffin_lim": baselines}.items():
            mel, stft, cents = values.unbind(1)
            measured[f"mel_error{suffix}"] = Rows(mel)
            measured[f"stft_error{suffix}"] = Rows(stft)
            voiced = ~cents.isnan()
            measured[f"pitch_error{suffix}"] = Tally(cents.nan_to_num().sum(), voiced.sum())
        return measured

    def _copies(self, nets: Mapping[str, Any], batch: Batch, griffin_lim: bool = False) -> Tensor:
        model: Vocoder = nets[self.main]
        log_mels = model.mel(batch.data["audio"])
        return model.griffin_lim(log_mels) if griffin_lim else model.forward(log_mels)

    def _distances(self, batch: Batch, copies: Tensor) -> Tensor:
        """(b, 3): errors of log-mels and STFT, and of the pitch in cents: NaN without a voice."""
        real, lengths = batch.data["audio"], batch.data["lengths"]
        mel = mel_errors(real, copies, lengths, self.model.mel)
        rate = self.recipe.model.sample_rate
        cents: list[float] = []
        for wav, copy, length in zip(real.cpu(), copies.cpu(), lengths.tolist()):
            courses = (pitch(sound[:length].numpy(), rate) for sound in (wav, copy))
            apart = cents_apart(*courses)
            cents.append(float("nan") if apart is None else apart)
        return torch.stack([mel, stft_errors(real, copies, lengths), mel.new_tensor(cents)], 1)

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        metrics = super().summarise(rows)
        if "mel_error" in metrics:
            metrics["share_of_griffin_lim"] = max(
                metrics[name] / max(metrics[f"{name}_griffin_lim"], 1e-12)
                for name in ("mel_error", "stft_error")
            )
        return metrics

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        few = {name: value[:SHOWN] for name, value in batch.data.items()}
        part = Batch(few, batch.ids[:SHOWN], batch.keys[:SHOWN])
        kinds = {
            "original": few["audio"],
            "copy": self._copies(nets, part),
            "griffin-lim": self._copies(nets, part, griffin_lim=True),
        }
        exhibits: list[Exhibit] = []
        for row, length in enumerate(few["lengths"].tolist()):
            sounds = {name: batch[row, :length] for name, batch in kinds.items()}
            pictures = [self.model.mel(sound[None])[0] for sound in sounds.values()]
            rate = self.recipe.model.sample_rate
            exhibits.append(Sounds(f"speech-{row}", sounds, pictures, rate, ""))
        return exhibits


build = VocoderTask
