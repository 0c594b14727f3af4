"""Task of VoiceBox: one part, one update, and losses averaged over the global batch."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.data.plans import Plan
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
    World,
    shapes,
)
from quintet.nn.alignment import inside, token_of_frame
from quintet.shared.exhibits import Sounds
from quintet.shared.segments import check_peak
from quintet.speech import data, recognition
from quintet.speech.vocoder.loading import matching_vocoder
from quintet.speech.voicebox.config import VoiceBoxRecipe
from quintet.speech.voicebox.durations import fully_visible, voice_of
from quintet.speech.voicebox.inference import Segment, Solver, infill, infill_layout
from quintet.speech.voicebox.losses import Counts, counts, means, total_loss
from quintet.speech.voicebox.masking import draw, span_mask
from quintet.speech.voicebox.measures import copied, interpolated, mean_error, true_durations
from quintet.speech.voicebox.model import VoiceBox

NO_BETTER = (
    "infilled frames are no closer to the recording than copies of the adjacent frames; "
    "train longer, or check that texts match their recordings"
)
FALLING = 0.3, 0.8
"""Shares of a run between which the blank of alignments falls: at 0 alignments are found."""
LAST_BLANK = -8.0
"""Logit of frames without a character at the end of a run, so that boundaries are sharp."""
INFILLED = 0.5
"""Fraction of each validation recording to infill."""
SHOWN = 3
"""Recordings in the exhibits of an evaluation."""


class VoiceBoxTask(Task):
    main = "voicebox"
    best = ("mel_error", "min")
    capturable = True

    def __init__(self, recipe: VoiceBoxRecipe, model: VoiceBox | None = None, sets: Any = None):
        self.recipe = recipe
        self.sets: dict[str, Any] = {} if sets is None else sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        self.model = model if model is not None else VoiceBox(recipe.model)
        self.config = self.model.config
        self.buckets = data.Buckets(recipe.recordings, self.config)
        self.parts = {"voicebox": Part(self.model, recipe.optim)}
        self.updates = [Update("voicebox", self.losses)]
        self.monitors = [above("val/share_of_copying", 1.0, NO_BETTER, 3)]
        self.vocoder: nn.Module | None = None

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        if self.recipe.sampling.vocoder is not None:
            vocoder = matching_vocoder(self.recipe.sampling.vocoder, self.config)
            self.vocoder = vocoder.to(world.device)

    def plan(self, source: Any) -> Plan:
        return data.length_plan(source, self.buckets, self.recipe.seed, self.recipe.batch_size)

    def data(self, split: str) -> Any:
        if split not in self.sets:
            recipe = self.recipe
            self.sets[split] = data.open_data(recipe.data, self.buckets, split, recipe.seed)  # type: ignore[arg-type]
        return self.sets[split]

    def collate(self, items: list[Any]) -> dict[str, Any]:
        return data.collate(items, self.buckets)

    def kind(self, batch: Batch) -> Hashable:
        tensors = {name: v for name, v in batch.data.items() if isinstance(v, Tensor)}
        return shapes(tensors), all(batch.data["unpadded"])

    def check(self, data: Any) -> None:
        if self.config.features == "mel":
            check_peak(data["audio"])
        largest = int(data["ids"].max())
        if self.config.phonemes is None and largest >= self.config.vocabulary:
            raise ValueError(
                f"texts have the id {largest}, but the vocabulary has {self.config.vocabulary} ids;"
                " raise vocabulary, or give strings"
            )

    # -- the update -----------------------------------------------------------------------------

    def losses(self, nets: Any, batches: Sequence[Batch], context: StepContext) -> Iterator[Loss]:
        """Every masked frame of the step has equal weight, across micro-batches and processes."""
        calls = [self._call(batch) for batch in batches]
        blank = context.step_scalar("blank", self._blank)
        local = torch.stack([torch.stack(self._counts(call)) for call in calls]).sum(0)
        over = Counts(*context.sum(local).unbind())
        for batch, call in zip(batches, calls):
            sums = nets["voicebox"](*call, blank)
            loss = total_loss(sums, over)
            # Reports weight metrics by their share of samples, which these sums already include.
            share = batch.size / context.samples
            terms = {"loss": loss, **means(sums, over)}
            yield loss, {name: value.detach() / share for name, value in terms.items()}

    def _blank(self, step: int) -> float:
        begin, end = (share * (self.recipe.planned_steps or self.recipe.steps) for share in FALLING)
        return LAST_BLANK * min(1.0, max(0.0, (step - begin) / max(1, end - begin)))

    def _call(self, batch: Batch) -> tuple[Any, ...]:
        num_frames, size = self._num_frames(batch.data)
        draws = draw(batch.keys, num_frames, (size, self.config.n_mels), self.recipe.losses)
        inputs = (batch.data[name] for name in ("audio", "lengths", "ids", "num_tokens"))
        return *inputs, draws, not all(batch.data["unpadded"])

    def _num_frames(self, data: Mapping[str, Any]) -> tuple[Tensor, int]:
        """Frames of each recording (b,), and of the padded batch."""
        padded = self.buckets.num_frames(data["audio"].shape[1])
        return self.model.features.num_frames(data["lengths"]), padded

    def _counts(self, call: tuple[Any, ...]) -> Counts:
        _, lengths, _, num_tokens, draws, _ = call
        return counts(draws, self.model.features.num_frames(lengths), num_tokens)

    # -- evaluation -----------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        network: VoiceBox = nets["voicebox"]
        call = self._call(batch)
        over = self._counts(call)
        # Not compiled: a few batches take less time than the compiler.
        sums = network.forward(*call)
        measured: dict[str, Tally | Rows] = {
            "loss": Tally(sums.flow, over.masked),
            "alignment_loss": Tally(sums.alignment, over.frames),
        }
        measured |= self._measure_infill(network, batch)
        if network.durations is not None:
            measured |= self._measure_durations(network, batch)
        spoken = [i for i, index in enumerate(batch.ids) if index < self.recipe.sampling.count]
        if spoken and self.recipe.data is None and network.durations is not None:
            measured |= self._measure_syllables(network, batch, spoken)
        return measured

    def _infill_mask(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The number of frames, and the span to infill, the same at every evaluation."""
        num_frames, size = self._num_frames(batch.data)
        position = uniform(batch.keys, "place", ())
        return num_frames, span_mask(num_frames, INFILLED, position, size)

    def _measure_infill(self, network: VoiceBox, batch: Batch) -> dict[str, Rows]:
        """Error of the infilled span, and of two baselines, in units of log-mels."""
        x1, mask, infilled = self._infill(network, batch)
        outputs = {"": infilled, "_copied": copied(x1, mask)}
        outputs["_interpolated"] = interpolated(x1, mask)
        return {
            f"mel_error{name}": Rows(mean_error(output, x1, mask) * self.config.std)
            for name, output in outputs.items()
        }

    def _infill(self, network: VoiceBox, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Recorded frames (b, t, c), the infill mask (b, t), and the infilled frames."""
        num_frames, mask = self._infill_mask(batch)
        x1 = network.features(batch.data["audio"])
        ids, num_tokens = batch.data["ids"], batch.data["num_tokens"]
        layout = infill_layout(network, x1, num_frames, ids, num_tokens, mask)
        return x1, mask, infill(network, layout, self.solver, batch.keys)

    def _measure_durations(self, network: VoiceBox, batch: Batch) -> dict[str, Tally]:
        """Errors of the durations of masked characters, and of the lengths of whole texts.

        The targets are from the alignment of the whole recording; its accuracy is known for
        built-in speech.
        """
        assert network.durations is not None
        num_frames, infill_mask = self._infill_mask(batch)
        ids, num_tokens = batch.data["ids"], batch.data["num_tokens"]
        x1 = network.features(batch.data["audio"])
        aligned = network.align(x1, num_frames, ids, num_tokens).durations
        known, mask = fully_visible(aligned, infill_mask), inside(num_tokens, ids.shape[1])
        voice = voice_of(x1, inside(num_frames, x1.shape[1]) & ~infill_mask)
        predicted = network.durations(ids, num_tokens, aligned, known, voice).exp()
        unknown = network.durations(ids, num_tokens, aligned, ~mask, torch.zeros_like(voice))
        from_text = (unknown.exp() * mask).sum(1)
        errors = (predicted - aligned).abs() * ~known
        measured = {
            "duration_error": Tally(errors.sum(), (aligned * ~known).sum()),
            "length_error": Tally((from_text / num_frames - 1).abs().sum(), batch.size),
        }
        if "ends" in batch.data:
            target = true_durations(batch.data["ends"], num_tokens, num_frames, self.frame_rate)
            same = token_of_frame(aligned, x1.shape[1]) == token_of_frame(target, x1.shape[1])
            correct = same & inside(num_frames, x1.shape[1])
            measured["aligned"] = Tally(correct.sum(), num_frames.sum())
        return measured

    def _measure_syllables(
        self, network: VoiceBox, batch: Batch, rows: Sequence[int]
    ) -> dict[str, Tally]:
        """Recognised syllables of built-in texts, synthesised from text alone and recorded."""
        config, mel = self.config, network.features.mel
        assert mel is not None
        sizes = (config.sample_rate, config.n_fft, config.hop_length, config.n_mels)
        weights = recognition.fitted(*sizes)
        hits = {"syllables": [0, 0], "syllables_recorded": [0, 0]}
        texts = [batch.data["texts"][row] for row in rows]
        segments = [Segment(network.encode(text).to(network.device)) for text in texts]
        generated, layout = network.generate(segments, self.solver, seed=batch.ids[rows[0]])
        for row, text, frames, durations in zip(rows, texts, generated, layout.durations.tolist()):
            skip = int(config.edges)
            spans = recognition.spans_in(text, durations[skip:], sum(durations[:skip]))
            sounds = {"syllables": (network.to_sound(frames)[None], spans)}
            if "ends" in batch.data:
                ends = batch.data["ends"][row, : len(text)] * self.frame_rate
                lengths = ends.diff(prepend=ends.new_zeros(1)).tolist()
                wav = batch.data["audio"][row : row + 1, : int(batch.data["lengths"][row])]
                sounds["syllables_recorded"] = (wav, recognition.spans_in(text, lengths))
            for name, (wav, spans) in sounds.items():
                correct, count = recognition.recognised(weights, mel(wav)[0], spans)
                hits[name][0] += correct
                hits[name][1] += count
        return {n: Tally(torch.tensor(float(a)), b) for n, (a, b) in hits.items() if b}

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        metrics = super().summarise(rows)
        if "mel_error" in metrics:
            baseline = max(metrics["mel_error_copied"], 1e-12)
            metrics["share_of_copying"] = metrics["mel_error"] / baseline
        return metrics

    @property
    def solver(self) -> Solver:
        config = self.recipe.sampling
        return Solver(config.steps, config.method, config.sway, config.cond_scale)

    @property
    def frame_rate(self) -> float:
        return self.config.sample_rate / self.config.hop_length

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        network: VoiceBox = nets["voicebox"]
        mel = network.features.mel
        if mel is None:
            return []
        few = {name: value[:SHOWN] for name, value in batch.data.items()}
        part = Batch(few, batch.ids[:SHOWN], batch.keys[:SHOWN])
        x1, _, infilled = self._infill(network, part)
        num_frames, _ = self._num_frames(few)
        segments = [Segment(ids[:n]) for ids, n in zip(few["ids"], few["num_tokens"].tolist())]
        generated = network.generate(segments, self.solver)[0] if network.durations else []
        exhibits: list[Exhibit] = []
        for row, text in enumerate(few["texts"]):
            end = int(num_frames[row])
            kinds = {"copy": x1[row, :end], "infilled": infilled[row, :end]}
            if len(generated):
                kinds["from-text"] = generated[row]
            original = few["audio"][row, : int(few["lengths"][row])]
            sounds = {"original": original}
            sounds |= {n: network.to_sound(frames, self.vocoder) for n, frames in kinds.items()}
            pictures = [mel(sound[None])[0] for sound in sounds.values()]
            exhibits.append(
                Sounds(f"speech-{row}", sounds, pictures, self.config.sample_rate, text or "")
            )
        return exhibits


build = VoiceBoxTask
