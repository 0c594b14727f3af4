"""The task of MuLaN: two towers, one update, and a loss over the whole global batch.

micro-batches ─ towers ─> features ─ gathered over micro-batches and processes ─> loss
                                        its gradient at the features ─> each micro-batch's surrogate
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from quintet.engine.errors import RunError
from quintet.engine.health import Resting
from quintet.engine.keys import fold
from quintet.engine.stream import Plan
from quintet.engine.task import At, Batch, Exhibit, Loss, Measured, Part, Rows, Task, Update
from quintet.engine.world import World
from quintet.media import tunes
from quintet.music import data
from quintet.music.config import MuLaNRecipe
from quintet.music.exhibits import BestCaptions, SimilarityPicture
from quintet.music.model import Embedded, MuLaN, fit
from quintet.nn.contrastive import (
    Pairs,
    contrastive_loss,
    ranks,
    resting_loss,
    similarities,
    whole_batch,
)
from quintet.nn.text import ByteTokenizer
from quintet.shared.captions import TextTable

COLLAPSED = (
    "the embeddings have collapsed: every sound is as near to every caption; "
    "lower the rate, warm up longer, or check that captions belong to their sounds"
)
SHOWN = 64
"""Pairs in the picture of similarities."""
HEARD = 6
"""Sounds that are written down at each evaluation."""


def build(recipe: MuLaNRecipe) -> "MuLaNTask":
    return MuLaNTask(recipe)


class MuLaNTask(Task):
    main = "mulan"
    best = ("recall_at_10", "max")

    def __init__(self, recipe: MuLaNRecipe, model: MuLaN | None = None, sets: Any = None):
        self.recipe, self.sets = recipe, sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        self.model = model if model is not None else MuLaN(recipe.model)
        self.config = self.model.config
        self.parts = {"mulan": Part(self.model, recipe.mulan)}
        self.updates = [Update("mulan", self.losses)]
        self.texts: TextTable | None = None
        self.opened: dict[str, Any] = {}

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        """What no learning looks like, and what a frozen encoder makes of the captions."""
        recipe = self.recipe
        count = recipe.batch_size * recipe.accumulate * world.size
        if count < 2:
            raise RunError("a global batch of one pair has nothing to tell apart; --batch-size 2")
        rest = resting_loss(self.config.loss, count)
        self.monitors = [Resting("mulan/loss", COLLAPSED, rest - 0.02, rest + 0.02, patience=10)]
        if self.config.text == "frozen":
            self.texts = TextTable(self.config, self._captions(), world)

    def plan(self, source: Any) -> Plan:
        recipe = self.recipe
        return data.bucket_plan(source, recipe.sounds, recipe.seed, recipe.batch_size)

    def _captions(self) -> list[str]:
        """All that the data can say; a frozen encoder reads it once."""
        if self.recipe.data is None:
            raise RunError(
                "the built-in captions are worded anew in every epoch, so a frozen encoder cannot "
                "read them beforehand; give a folder, or model.text 'bytes'"
            )
        sets = [found for split in ("train", "valid") if (found := self.data(split)) is not None]
        every = (captions_of(s, index) for s in sets for index in range(len(s)))
        return sorted(set(chain.from_iterable(every)))

    def data(self, split: str) -> Any:
        if self.sets is not None:
            return self.sets[split]
        if split not in self.opened:
            recipe = self.recipe
            self.opened[split] = data.open_data(recipe.data, recipe.sounds, split, recipe.seed)  # type: ignore[arg-type]
        return self.opened[split]

    def collate(self, items: list[Any]) -> dict[str, Any]:
        found = data.collate(items, self.recipe.sounds)
        tokens = found.pop("tokens", None)
        if bool((found["lengths"] == found["wavs"].shape[1]).all()):
            found["lengths"] = None  # no mask: attention is quicker without one
        if tokens is not None:
            return {**found, "text": fit(tokens, self.config.text_length)}
        if self.texts is not None:
            return {**found, **self.texts(found["texts"])}
        return {**found, "text": ByteTokenizer(self.config.text_length).encode(found["texts"])}

    def check(self, data: Any) -> None:
        wavs, text = data["wavs"], data["text"]
        reach = wavs.abs().max().item()
        if not reach <= 8:
            raise ValueError(
                f"sounds reach to {reach:.3g}, but the model takes -1 to 1; "
                "divide integers of 16 bits by 32768"
            )
        if not text.is_floating_point() and int(text.max()) >= self.config.vocabulary:
            raise ValueError(
                f"texts hold the id {int(text.max())}, but the text tower knows "
                f"{self.config.vocabulary}; set vocabulary, or give raw_texts"
            )

    # -- the update -----------------------------------------------------------------------------

    def losses(self, nets: Any, batches: Sequence[Batch], at: At) -> Iterator[Loss]:
        """Features of all micro-batches come first, and with several of them a second time with
        gradients; a single one keeps its graph and is computed once."""
        calls = [self._call(batch, hidden=True) for batch in batches]
        with torch.set_grad_enabled(len(batches) == 1):
            first: list[Embedded] = [nets["mulan"](*call) for call in calls]
        pairs = [found.pairs for found in first]
        whole = whole_batch(self.config.loss, pairs, at.gather, at.world.rank)
        for index, call in enumerate(calls):
            found: Embedded = first[0] if len(calls) == 1 else nets["mulan"](*call)
            yield (
                whole.share(index, found.pairs),
                {
                    "loss": whole.loss,
                    "accuracy": whole.accuracy,
                    "temperature": found.log_temperature.detach().exp(),
                    "rounding": found.rounding,
                },
            )

    def _call(self, batch: Batch, hidden: bool = False) -> tuple[Any, ...]:
        found = batch.data
        samples, draws = found["wavs"].shape[1], None
        if hidden:
            draws = self.model.audio.draws(batch.keys, samples, self.recipe.losses)
        return found["wavs"], found["lengths"], found["text"], found.get("mask"), draws

    # -- measuring and showing ------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        network: MuLaN = nets["mulan"]
        # Not compiled: a few batches are over before a compiler is.
        found = network.forward(*self._call(batch))
        each = {"audio": found.audio, "text": found.text}
        each["log_temperature"] = found.log_temperature.expand(batch.size)
        if found.bias is not None:
            each["bias"] = found.bias.expand(batch.size)
        if "labels" in batch.data:
            each |= zero_shot(network, found.audio, batch.data["labels"])
        return {name: Rows(values) for name, values in each.items()}

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        audio, text = rows["audio"], rows["text"]
        scalars = [rows[name][0] for name in ("log_temperature", "bias") if name in rows]
        named = {name: v for name, v in rows.items() if name.startswith("zero_shot")}
        found = {name: values.double().mean().item() for name, values in named.items()}
        if found:
            found["zero_shot"] = sum(found.values()) / len(found)
        if self.config.loss != "decoupled" or len(audio) > 1:
            found["loss"] = contrastive_loss(self.config.loss, Pairs(audio, text, *scalars)).item()
        return found | retrieval(audio, text)

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        network: MuLaN = nets["mulan"]
        found = network.forward(*self._call(batch))
        similarity = similarities(found.audio, found.text).cpu()
        wavs, lengths = batch.data["wavs"][:HEARD], batch.data["lengths"]
        ends = [wavs.shape[1]] * len(wavs) if lengths is None else lengths[:HEARD].tolist()
        sounds = [wav[:end] for wav, end in zip(wavs, ends)]
        captions = batch.data["texts"]
        return [
            SimilarityPicture("similarity", similarity[:SHOWN, :SHOWN]),
            BestCaptions("captions", sounds, self.config.rate, captions, similarity),
        ]


def captions_of(source: Any, index: int) -> list[str]:
    """All captions of a sound, where a data set has several."""
    return source.texts(index) if hasattr(source, "texts") else [source.text(index)]


def zero_shot(network: MuLaN, audio: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """(b,) for each attribute of the built-in music: whether the sentence that says the right value
    is nearer than those that say the others."""
    said = {name: list(tunes.phrases(name).values()) for name in tunes.ATTRIBUTES}
    every = network.get_text_latents(raw_texts=[text for texts in said.values() for text in texts])
    parts = every.split([len(texts) for texts in said.values()])
    nearest = [similarities(audio, part).argmax(1) for part in parts]
    hits = ((place == right).float() for place, right in zip(nearest, labels.unbind(1)))
    return dict(zip((f"zero_shot_{name}" for name in said), hits))


def retrieval(audio: Tensor, text: Tensor) -> dict[str, float]:
    """Recall over the whole set both ways and their mean, and the median rank, 1 at best."""
    both = {"text": ranks(audio, text), "audio": ranks(text, audio)}
    found: dict[str, float] = {}
    for count in (1, 5, 10):
        hits = {name: (rank < count).double().mean().item() for name, rank in both.items()}
        found |= {f"recall_at_{count}_of_{name}": value for name, value in hits.items()}
        found[f"recall_at_{count}"] = sum(hits.values()) / 2
    for name, rank in both.items():
        found[f"median_rank_of_{name}"] = rank.double().median().item() + 1
    return found
