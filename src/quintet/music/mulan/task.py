"""MuLaN task: two towers, one update, and a contrastive loss over the global batch
(shared/contrastive.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.engine.data.plans import Plan
from quintet.engine.errors import RunError
from quintet.engine.keys import fold
from quintet.engine.task import Batch, Exhibit, Measured, Part, Rows, Update, World
from quintet.files import reading_once
from quintet.media.audio import write_wav
from quintet.media.errors import printable
from quintet.music import data, tunes
from quintet.music.mulan.config import MuLaNRecipe
from quintet.music.mulan.model import MuLaN, MuLaNOutput, pad_ids
from quintet.nn.contrastive import similarities
from quintet.nn.text import ByteTokenizer
from quintet.shared.captions import TextTable, survey
from quintet.shared.contrastive import ContrastiveTask
from quintet.shared.exhibits import SimilarityMatrix, best_captions
from quintet.shared.segments import check_peak

MATRIX_SIZE = 64
"""Pairs in the similarity matrix."""
EXHIBITED_CLIPS = 6
"""Clips written at each evaluation."""


@dataclass
class BestCaptions:
    """Audio files, and a text file with the most similar captions of each."""

    name: str
    wavs: Sequence[Tensor]
    rate: int
    captions: Sequence[str]
    """Caption i belongs to clip i; there may be more captions than clips."""
    similarity: Tensor
    """(clips, captions)."""
    top: int = 3

    def write(self, folder: Path) -> list[Path]:
        files, lines = list[Path](), list[str]()
        for number, wav in enumerate(self.wavs):
            path = folder / f"{self.name}-{number}.wav"
            write_wav(path, wav.float().cpu().numpy(), self.rate)
            files.append(path)
            lines += [path.name, f"  its own:  {printable(self.captions[number])}"]
            best = best_captions(self.similarity[number], self.captions, self.top)
            lines += [*(f"  {line}" for line in best), ""]
        page = folder / f"{self.name}.txt"
        page.write_text("\n".join(lines), encoding="utf-8")
        return [*files, page]


class MuLaNTask(ContrastiveTask):
    main = "mulan"
    medium = "audio"
    capturable = True

    def __init__(self, recipe: MuLaNRecipe, model: MuLaN | None = None, sets: Any = None):
        self.recipe = recipe
        self.sets: dict[str, Any] = {} if sets is None else sets
        torch.manual_seed(fold(recipe.seed, "weights"))
        self.model = model if model is not None else MuLaN(recipe.model)
        self.config = self.model.config
        self.parts = {"mulan": Part(self.model, recipe.optim)}
        self.updates = [Update("mulan", self.losses)]
        self.text_length = self.config.text_length
        self.texts: TextTable | None = None

    # -- data -----------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        """Set up the collapse monitor, the length of texts, and the caption embeddings of a frozen
        encoder."""
        self.watch(world)
        with reading_once():
            sources = [s for split in ("train", "valid") if (s := self.data(split)) is not None]
        survey(sources, self.model.text_sizes, world)
        self.text_length = data.text_length(sources, self.config.text_length)
        if self.config.text == "frozen":
            self.texts = TextTable(self.config, self._captions(sources), world)

    def plan(self, source: Any) -> Plan:
        recipe = self.recipe
        return data.length_plan(source, recipe.sounds, recipe.seed, recipe.batch_size)

    def _captions(self, sources: Sequence[Any]) -> list[str]:
        """All captions of the data, for the frozen encoder."""
        if self.recipe.data is None:
            raise RunError(
                "the built-in captions change in every epoch and cannot be encoded in advance by a "
                "frozen encoder; give a folder, or set model.text to 'bytes'"
            )
        captions = (s.texts(index) for s in sources for index in range(len(s)))
        return sorted(set(chain.from_iterable(captions)))

    def data(self, split: str) -> Any:
        if split not in self.sets:
            recipe = self.recipe
            self.sets[split] = data.open_data(recipe.data, recipe.sounds, split, recipe.seed)  # type: ignore[arg-type]
        return self.sets[split]

    def collate(self, items: list[Any]) -> dict[str, Any]:
        batch = data.collate(items, self.recipe.sounds)
        tokens = batch.pop("tokens", None)
        if bool((batch["lengths"] == batch["wavs"].shape[1]).all()):
            batch["lengths"] = None  # no mask: attention is faster without one
        if tokens is not None:
            return {**batch, "text": pad_ids(tokens, self.config.text_length)}
        return {**batch, **self.tokenized(batch["texts"])}

    def tokenized(self, texts: list[str]) -> dict[str, Tensor]:
        """`text`, and its `mask` where there is one: inputs of the text tower."""
        if self.texts is not None:
            return self.texts(texts)
        return {"text": ByteTokenizer(self.text_length).encode(texts)}

    def check(self, data: Any) -> None:
        check_peak(data["wavs"])
        text = data["text"]
        if not text.is_floating_point() and int(text.max()) >= self.config.vocab_size:
            raise ValueError(
                f"texts contain id {int(text.max())}, but vocab_size is {self.config.vocab_size}; "
                "raise it, or give raw_texts"
            )

    # -- the update -----------------------------------------------------------------------------

    def reported(self, output: MuLaNOutput) -> dict[str, Tensor]:
        return {"quantiser_error": output.quantiser_error}

    def inputs(self, batch: Batch, augment: bool = False) -> tuple[Any, ...]:
        """Arguments of `MuLaN.forward`."""
        data, draws = batch.data, self.draws(batch) if augment else None
        return data["wavs"], data["lengths"], data["text"], data.get("mask"), draws

    def draws(self, batch: Batch) -> Any:
        """Draws of the augmentation, by the keys of the samples."""
        samples = batch.data["wavs"].shape[1]
        return self.model.audio.draws(batch.keys, samples, self.recipe.losses)

    # -- evaluation -----------------------------------------------------------------------------

    def measure(self, nets: Mapping[str, Any], batch: Batch) -> Measured:
        network: MuLaN = nets["mulan"]
        # Not compiled: a few batches finish before the compiler does.
        output = network.forward(*self.inputs(batch))
        captions = [fold(text) for text in batch.data["texts"]]
        rows = {"audio": output.audio, "text": output.text}
        rows["caption"] = torch.tensor(captions, device=output.audio.device)
        rows["log_temperature"] = output.log_temperature.expand(batch.size)
        if output.bias is not None:
            rows["bias"] = output.bias.expand(batch.size)
        if "labels" in batch.data:
            rows |= zero_shot(network, output.audio, batch.data["labels"])
        return {name: Rows(values) for name, values in rows.items()}

    def summarise(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        hits = {name: v for name, v in rows.items() if name.startswith("zero_shot")}
        metrics = {name: values.double().mean().item() for name, values in hits.items()}
        if metrics:
            metrics["zero_shot"] = sum(metrics.values()) / len(metrics)
        return metrics | self.compared(rows)

    def exhibit(self, nets: Mapping[str, Any], batch: Batch) -> list[Exhibit]:
        network: MuLaN = nets["mulan"]
        output = network.forward(*self.inputs(batch))
        similarity = similarities(output.audio, output.text).cpu()
        wavs, lengths = batch.data["wavs"][:EXHIBITED_CLIPS], batch.data["lengths"]
        ends = [wavs.shape[1]] * len(wavs) if lengths is None else lengths.tolist()
        clips = [wav[:end] for wav, end in zip(wavs, ends)]
        captions = batch.data["texts"]
        return [
            SimilarityMatrix("similarity", similarity[:MATRIX_SIZE, :MATRIX_SIZE]),
            BestCaptions("captions", clips, self.config.sample_rate, captions, similarity),
        ]


def zero_shot(network: MuLaN, audio: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Hits (b,) of zero-shot classification for each attribute of the built-in music: whether the
    prompt of the right value is the most similar one."""
    prompts = {name: list(tunes.prompts(name).values()) for name in tunes.ATTRIBUTES}
    embeds = network.get_text_latents(raw_texts=list(chain.from_iterable(prompts.values())))
    classes = embeds.split([len(texts) for texts in prompts.values()])
    predictions = [similarities(audio, each).argmax(1) for each in classes]
    hits = ((pred == label).float() for pred, label in zip(predictions, labels.unbind(1)))
    return dict(zip((f"zero_shot_{name}" for name in prompts), hits))


build = MuLaNTask
