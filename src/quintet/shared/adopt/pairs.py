"""Adopted models of two towers, one of texts: their tokenizer, temperature and files."""

import hashlib
import importlib
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from quintet.engine.errors import RunError
from quintet.engine.models.hub import CONFIG
from quintet.engine.models.pretrained import refuse_outside_links
from quintet.nn.alignment import inside
from quintet.nn.contrastive import MAX_TEMPERATURE, MIN_TEMPERATURE
from quintet.nn.precision import full_precision, without_autocast
from quintet.nn.text import TextSizes
from quintet.shared.adopt import folder
from quintet.shared.adopt.config import PairConfig
from quintet.shared.captions import say_cut

PROCESSOR = "processor"
"""Subfolder of the processor's files in what a run keeps."""
MAX_BYTES = 50_000_000
"""Limit for a file of the processor; a vocabulary takes a few megabytes."""
SCALES = (-math.log(MAX_TEMPERATURE), -math.log(MIN_TEMPERATURE))
"""Range of the logarithm of the inverse temperature."""


class AdoptedPair(folder.Adopted, nn.Module):
    """`network` is the original; `config` says what rebuilds it."""

    stage: ClassVar[str]
    """The setting that names the original."""
    scale: ClassVar[str]
    """Its logarithm of the inverse temperature."""
    towers: ClassVar[Mapping[Any, tuple[str, ...]]]
    """What is trained, beside the temperature, by the names of the original."""
    refusal = "is not a joint embedding of"

    def __init__(self, config: PairConfig, network: nn.Module | None = None) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.network = folder.build(config) if network is None else network
        self.tokenizer: Any = None
        self._processor: Path | None = None
        self.train_only("all")

    # -- embeddings ------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return getattr(self.network, self.scale).device

    @property
    def log_temperature(self) -> Tensor:
        return -getattr(self.network, self.scale).clamp(*SCALES)

    def text(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """(b, t) -> (b, l)."""
        pooled = self.network.text_model(input_ids=ids, attention_mask=mask).pooler_output
        return projected(self.network.text_projection, pooled)

    def get_text_latents(self, raw_texts: Sequence[str]) -> Tensor:
        """(b, l) embeddings of strings."""
        say_cut(self.text_sizes, raw_texts)
        ids, mask = self.tokenize(raw_texts)
        return self.text(ids.to(self.device), mask.to(self.device))

    def text_sizes(self, texts: Sequence[str]) -> TextSizes:
        rows = self._tokenizer(list(texts), verbose=False)["input_ids"] if texts else []
        return TextSizes([len(row) for row in rows], self._most, "tokens", "shorten them")

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids and mask (b, t), t that of the longest text, cut at what the model reads."""
        rows = self._tokenizer(list(texts), truncation=True, max_length=self._most)["input_ids"]
        pad = self.tokenizer.pad_token_id or 0
        ids = pad_sequence([torch.tensor(row) for row in rows], True, pad)
        return ids, inside(torch.tensor([len(row) for row in rows]), ids.shape[1])

    @property
    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise RunError(f"this model came without its tokenizer; give {self.original}")
        return self.tokenizer

    @property
    def _most(self) -> int:
        return min(self.config.text_length, self.tokenizer.model_max_length)

    # -- training --------------------------------------------------------------------------------

    def train_only(self, part: Any) -> None:
        """Freeze what is not trained."""
        self.network.requires_grad_(False)
        for name in self.towers[part]:
            getattr(self.network, name).requires_grad_(True)
        getattr(self.network, self.scale).requires_grad_(True)

    def train(self, mode: bool = True) -> Self:
        """Without dropout: the two passes of gradient caching must agree, and a step must not
        depend on how its batch is divided."""
        super().train(mode)
        self.network.eval()
        return self

    def commit(self, context: Any) -> None:
        """Clamp the temperature to where it has a gradient."""
        with torch.no_grad():
            getattr(self.network, self.scale).clamp_(*SCALES)

    # -- files -----------------------------------------------------------------------------------

    def read_stages(self, path: Path) -> None:
        """The processor in what a run keeps, or in the folder of what it keeps."""
        for processor in (path / PROCESSOR, path / self.stage / PROCESSOR):
            if processor.is_dir():
                self.read_processor(processor)

    def read_processor(self, path: Path) -> None:
        if processor_digest(path) != self.config.processor:
            raise RunError(f"{path}: the files of the tokenizer have changed; restore them")
        self.tokenizer, self._processor = read_tokenizer(path, self.original), path

    def write_stages(self, path: Path) -> None:
        (path / PROCESSOR).mkdir()
        self._copy_processor(path / PROCESSOR)

    def _write(self, path: Path) -> None:
        super()._write(path)
        self._copy_processor(path)

    def _copy_processor(self, path: Path) -> None:
        for file in [] if self._processor is None else processor_files(self._processor):
            shutil.copyfile(file, path / file.name)


def projected(layer: nn.Module, pooled: Tensor) -> Tensor:
    """A projection of unit length, in full precision."""
    with without_autocast(pooled):
        return F.normalize(layer(full_precision(pooled)), dim=-1)


def transformers() -> Any:
    """Imported by name: else the type checker reads 2,600 files of it."""
    return importlib.import_module("transformers")


def read_tokenizer(path: Path, original: str) -> Any:
    # The workers of the data are forked, which its threads would not survive.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with folder.quiet():
        try:
            return transformers().AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            raise RunError(f"{path} has no tokenizer; give {original} ({error})") from None


def processor_files(path: Path) -> list[Path]:
    """Files of the tokenizer and of the feature extractor."""
    files = [*path.glob("*.json"), *path.glob("*.txt")]
    files = sorted(f for f in files if f.name != CONFIG and not f.name.endswith(".index.json"))
    for file in files:
        refuse_outside_links(path, file)
        if file.stat().st_size > MAX_BYTES:
            raise RunError(
                f"{file} is not a file of a tokenizer: it has more than {MAX_BYTES:,} bytes"
            )
    return files


def processor_digest(path: Path) -> str:
    """Digest of the names and contents of these files."""
    digest = hashlib.sha256()
    for file in processor_files(path):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
