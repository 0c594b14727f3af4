"""The task of VoiceBox: one part, one update, and losses over the whole global batch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quintet.engine.health import above
from quintet.engine.keys import fold, uniform
from quintet.engine.stream import Plan
from quintet.engine.task import At, Batch, Exhibit, Loss, Measured, Part, Rows, Tally, Task, Update
from quintet.engine.world import World
from quintet.nn.alignment import inside, token_of_frame
from quintet.speech import data, judge
from quintet.speech.config import VoiceBoxRecipe
from quintet.speech.draws import draw, span
from quintet.speech.durations import heard_whole
from quintet.speech.exhibits import Sounds
from quintet.speech.losses import Counts, counts, total
from quintet.speech.measures import copied, interpolated, mean_error, true_durations
from quintet.speech.model import VoiceBox
from quintet.speech.speaking import Line, Solver, fill, holed
from quintet.speech.vocoders import matching_vocoder

NO_BETTER = (
    "what is filled in is no nearer to the recording than the frames beside it; "
    "train longer, or check that texts belong to their recordings"
)
SHOWN = 3
"""Recordings that are shown at each evaluation."""


def build(recipe: VoiceBoxRecipe) -> "VoiceBoxTask":
    return VoiceBoxTask(recipe)


class VoiceBoxTask(Task):
    main = "voicebox"
    best = ("mel_error", "min")

    def __init__(self, recipe: VoiceBoxRecipe, model: VoiceBox | None = None, sets: Any = None):
        self.recipe, self.sets = recipe, sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        self.model = model if model is not None else VoiceBox(recipe.model)
        self.config = self.model.config
        self.fit = data.Fit(recipe.recordings, self.config)
        self.parts = {"voicebox": Part(self.model, recipe.voicebox)}
        self.updates = [Update("voicebox", self.losses)]
        self.monitors = [above("val/share_of_copying", 1.0, NO_BETTER, 3)]
        self.opened: dict[str, Any] = {}
        self.vocoder: nn.Module | None = None

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        """The vocoder, where one is asked for."""
        if self.recipe.speaking.vocoder is not None:
            found = matching_vocoder(self.recipe.speaking.vocoder, self.config)
            self.vocoder = found.to(world.device)

    def plan(self, source: Any) -> Plan:
        return data.frame_plan(source, self.fit, self.recipe.seed, self.recipe.batch_size)

    def data(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        if split not in self.opened:
            recipe = self.recipe
            self.opened[split] = data.open_data(recipe.data, self.fit, split, recipe.seed)  # type: ignore[arg-type]
        return self.opened[split]

    def collate(self, items: list[Any]) -> dict[str, Any]:
        return data.collate(items, self.fit)

    def check(self, data: Any) -> None:
        reach, most = data["audio"].abs().max().item(), int(data["ids"].max())
        if self.config.features == "mel" and not reach <= 8:
            raise ValueError(
                f"sounds reach to {reach:.3g}, but the model takes -1 to 1; "
                "divide integers of 16 bits by 32768"
            )
        if most >= self.config.vocabulary:
            raise ValueError(
                f"texts hold the id {most}, but the model knows {self.config.vocabulary};"
                " set vocabulary, or give strings"
            )

    # -- the update -----------------------------------------------------------------------------

    def losses(self, nets: Any, batches: Sequence[Batch], at: At) -> Iterator[Loss]:
        """Each hidden frame of the step weighs the same, in whichever micro-batch or process."""
        calls = [self._call(batch) for batch in batches]
        mine = torch.stack([torch.stack(self._counts(call)) for call in calls]).sum(0)
        everywhere = Counts(*at.sum(mine).unbind())
        for batch, call in zip(batches, calls):
            found = nets["voicebox"](*call)
            loss = total(found, everywhere, self.recipe.losses)
            # Reports add metrics up weighed by share of the step, as losses per frame are not.
            share = batch.size / at.samples
            metrics = {
                "flow": found.flow / everywhere.hidden,
                "align": found.align / everywhere.frames,
                "sharp": found.sharp / everywhere.frames,
                "duration": found.duration / everywhere.tokens,
            }
            yield loss, {name: value.detach() / share for name, value in metrics.items()}

    def _call(self, batch: Batch) -> tuple[Any, ...]:
        found = batch.data
        frames, size = self._frames(found)
        draws = draw(batch.keys, frames, (size, self.config.bins), self.recipe.losses)
        given = (found[name] for name in ("audio", "lengths", "ids", "tokens"))
        return *given, draws, not all(found["full"])

    def _frames(self, found: Mapping[str, Any]) -> tuple[Tensor, int]:
        """How many each recording has, and how many with padding."""
        count = self.model.frames.count
        return count(found["lengths"]), self.fit.frames_of(found["audio"].shape[1])

    def _counts(self, call: tuple[Any, ...]) -> Counts:
        _, lengths, _, tokens, draws, _ = call
        return counts(draws, self.model.frames.count(lengths), tokens)

    # -- measuring ------------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        network: VoiceBox = nets["voicebox"]
        call = self._call(batch)
        over = self._counts(call)
        # Not compiled: a few batches are over before a compiler is.
        found = network.forward(*call)
        measured: dict[str, Tally | Rows] = {
            "loss": Tally(found.flow, over.hidden),
            "align_loss": Tally(found.align, over.frames),
        }
        measured |= self._filled(network, batch)
        if network.durations is not None:
            measured |= self._timed(network, batch)
        spoken = [i for i, index in enumerate(batch.ids) if index < self.recipe.speaking.count]
        if spoken and self.recipe.data is None:
            measured |= self._spoken(network, batch, spoken)
        return measured

    def _hole(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The span of each held-out recording that is filled in, the same every time."""
        frames, size = self._frames(batch.data)
        place = uniform(batch.keys, "place", ())
        return frames, span(frames, self.recipe.speaking.span, place, size)

    def _filled(self, network: VoiceBox, batch: Batch) -> dict[str, Rows]:
        """How far what is filled in is from the recording, in units of log-mels."""
        frames, hole = self._hole(batch)
        x1 = network.frames(batch.data["audio"])
        script = holed(network, x1, frames, batch.data["ids"], batch.data["tokens"], hole)
        found = fill(network, script, self.solver, batch.keys)
        guesses = {"": found, "_copied": copied(x1, hole), "_interpolated": interpolated(x1, hole)}
        scale = self.config.deviation
        return {
            f"mel_error{name}": Rows(mean_error(guess, x1, hole) * scale)
            for name, guess in guesses.items()
        }

    def _timed(self, network: VoiceBox, batch: Batch) -> dict[str, Tally]:
        """Durations of hidden characters, told those of the others, and lengths of whole texts.

        They are compared with the alignment of the whole recording; how often that is right is
        known for built-in speech.
        """
        assert network.durations is not None
        found, (frames, hole) = batch.data, self._hole(batch)
        ids, tokens = found["ids"], found["tokens"]
        x1 = network.frames(found["audio"])
        aligned = network.align(x1, frames, ids, tokens).durations
        known, there = heard_whole(aligned, hole), inside(tokens, ids.shape[1])
        guess = network.durations(ids, tokens, aligned, known).exp()
        alone = (network.durations(ids, tokens, aligned, ~there).exp() * there).sum(1)
        errors = (guess - aligned).abs() * ~known
        measured = {
            "duration_error": Tally(errors.sum(), (aligned * ~known).sum()),
            "length_error": Tally((alone / frames - 1).abs().sum(), batch.size),
        }
        if "ends" in found:
            truth = true_durations(found["ends"], tokens, frames, self.frame_rate)
            same = token_of_frame(aligned, x1.shape[1]) == token_of_frame(truth, x1.shape[1])
            right = same & inside(frames, x1.shape[1])
            measured["aligned"] = Tally(right.sum(), frames.sum())
        return measured

    def _spoken(self, network: VoiceBox, batch: Batch, rows: Sequence[int]) -> dict[str, Tally]:
        """Syllables of built-in texts that are recognised, spoken from text alone and recorded."""
        config, mel = self.config, network.frames.mel
        assert mel is not None
        ear = judge.fitted(config.rate, config.n_fft, config.hop, config.bins)
        hits = {"syllables": [0, 0], "syllables_recorded": [0, 0]}
        texts = [batch.data["texts"][row] for row in rows]
        lines = [Line(network.encode(text).to(network.device)) for text in texts]
        spoken, script = network.speak(lines, self.solver, seed=batch.ids[rows[0]])
        for row, text, frames, durations in zip(rows, texts, spoken, script.durations.tolist()):
            skip = int(config.edges)
            spans = judge.spans_in(text, durations[skip:], sum(durations[:skip]))
            sounds = {"syllables": (network.to_sound(frames)[None], spans)}
            if "ends" in batch.data:
                ends = batch.data["ends"][row, : len(text)] * self.frame_rate
                lengths = ends.diff(prepend=ends.new_zeros(1)).tolist()
                wav = batch.data["audio"][row : row + 1, : int(batch.data["lengths"][row])]
                sounds["syllables_recorded"] = (wav, judge.spans_in(text, lengths))
            for name, (wav, where) in sounds.items():
                for place, count in enumerate(ear.recognised(mel(wav)[0], where)):
                    hits[name][place] += count
        return {n: Tally(torch.tensor(float(a)), b) for n, (a, b) in hits.items() if b}

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        found = super().summarise(rows)
        if "mel_error" in found:
            found["share_of_copying"] = found["mel_error"] / max(found["mel_error_copied"], 1e-12)
        return found

    @property
    def solver(self) -> Solver:
        how = self.recipe.speaking
        return Solver(how.steps, how.method, how.sway, how.cond_scale)

    @property
    def frame_rate(self) -> float:
        return self.config.rate / self.config.hop

    # -- showing --------------------------------------------------------------------------------

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        network: VoiceBox = nets["voicebox"]
        mel = network.frames.mel
        if mel is None:
            return []
        few = {name: value[:SHOWN] for name, value in batch.data.items()}
        part = Batch(few, batch.ids[:SHOWN], batch.keys[:SHOWN])
        frames, hole = self._hole(part)
        x1 = network.frames(few["audio"])
        script = holed(network, x1, frames, few["ids"], few["tokens"], hole)
        filled = fill(network, script, self.solver, part.keys)
        lines = [Line(ids[:n]) for ids, n in zip(few["ids"], few["tokens"].tolist())]
        new = network.speak(lines, self.solver)[0] if network.durations is not None else []
        shown: list[Exhibit] = []
        for row, text in enumerate(few["texts"]):
            end = int(frames[row])
            kinds = {"copy": x1[row, :end], "infilled": filled[row, :end]}
            if len(new):
                kinds["from-text"] = new[row]
            original = few["audio"][row, : int(few["lengths"][row])]
            sounds = {"original": original}
            sounds |= {n: network.to_sound(rows, self.vocoder) for n, rows in kinds.items()}
            pictures = [mel(sound[None])[0] for sound in sounds.values()]
            shown.append(Sounds(f"speech-{row}", sounds, pictures, self.config.rate, text or ""))
        return shown
