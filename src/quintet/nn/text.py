"""Text encoders: a trained byte-level transformer, or a frozen encoder from disk.

Bytes need no vocabulary file and cover every language (ByT5, arXiv 2105.13626). A frozen encoder is
any T5-like model folder in `transformers` format (T5, arXiv 1910.10683), never downloaded.
"""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from quintet.nn.attention import Block, Context
from quintet.nn.norms import RMSNorm
from quintet.nn.precision import full_precision, residual_stream
from quintet.nn.rope import rope_1d

PAD, START, FIRST = 0, 1, 2
VOCAB_SIZE = FIRST + 256
WORDS = 8192
"""Ids of hashed words."""


class ByteTokenizer:
    """UTF-8 bytes as ids of fixed length: a start id, one id per byte, padding."""

    def __init__(self, length: int) -> None:
        if length < 1:
            raise ValueError(f"length must be 1 or more, not {length}")
        self.length = length

    def size(self, text: str) -> int:
        return len(text.encode("utf-8", "replace"))

    def bytes_of(self, text: str) -> bytes:
        """UTF-8 bytes, truncated between characters; lone surrogates become question marks."""
        encoded = text.encode("utf-8", "replace")
        if len(encoded) < self.length:
            return encoded
        return encoded[: self.length - 1].decode("utf-8", "ignore").encode("utf-8")

    def encode(self, texts: Sequence[str]) -> Tensor:
        """(b, length) int64."""
        encoded = [self.bytes_of(text) for text in texts]
        counts = np.array([len(row) for row in encoded], np.int64)
        content = b"".join(row.ljust(self.length - 1) for row in encoded)
        values = np.frombuffer(content, np.uint8).reshape(len(texts), self.length - 1)
        inside = np.arange(self.length - 1) < counts[:, None]
        ids = np.full((len(texts), self.length), START, np.int64)
        ids[:, 1:] = np.where(inside, values.astype(np.int64) + FIRST, PAD)
        return torch.from_numpy(ids)


class WordTokenizer:
    """Words and signs as ids of fixed length: a start id, one hashed id each, padding.

    For captions of few words. An encoder of bytes has to learn first how they are spelled; unknown
    words mean nothing to this one, and of a thousand words one in nine shares its id.
    """

    def __init__(self, length: int, rows: int = WORDS) -> None:
        self.length = length
        self.rows = rows

    def size(self, text: str) -> int:
        return len(self.words_of(text))

    def words_of(self, text: str) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text.lower())

    def encode(self, texts: Sequence[str]) -> Tensor:
        """(b, length) int64."""
        ids = torch.full((len(texts), self.length), PAD)
        ids[:, 0] = START
        for row, text in enumerate(texts):
            words = self.words_of(text)[: self.length - 1]
            hashes = [crc32(word.encode("utf-8", "replace")) for word in words]
            numbers = [FIRST + number % self.rows for number in hashes]
            ids[row, 1 : 1 + len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        return ids


TOKENIZERS = {"bytes": ByteTokenizer, "words": WordTokenizer}
"""Tokenizers of trained encoders."""


def tokenizer_of(config: Any) -> ByteTokenizer | WordTokenizer:
    """That of a configuration with `text`, `text_length` and `text_words`."""
    if config.text == "words":
        return WordTokenizer(config.text_length, config.text_words)
    return ByteTokenizer(config.text_length)


def vocab_size(config: Any) -> int:
    """Ids of that tokenizer."""
    return FIRST + config.text_words if config.text == "words" else VOCAB_SIZE


class TextSizes(NamedTuple):
    """Sizes of texts as an encoder counts them."""

    sizes: list[int]
    most: int
    """What the encoder reads of a text; longer ones are cut there."""
    unit: str
    """bytes, words or tokens."""
    remedy: str = "a larger --model.text-length reads more"

    def cut_line(self) -> str:
        """How many captions are cut; empty if none are."""
        cut = sum(size > self.most for size in self.sizes)
        if not cut:
            return ""
        counts = f"{cut:,} of {len(self.sizes):,} captions have more than {self.most:,} {self.unit}"
        return f"{counts}, the longest {max(self.sizes):,}, and are cut there; {self.remedy}"


def text_sizes(config: Any, texts: Sequence[str]) -> TextSizes:
    """Sizes for the encoder of a configuration with `text`, `text_length` and `text_path`."""
    kind, length = config.text, config.text_length
    if kind in TOKENIZERS:
        tokenizer = TOKENIZERS[kind](length)
        return TextSizes([tokenizer.size(text) for text in texts], length - 1, kind)  # a start id
    rows = load_tokenizer(Path(config.text_path))(list(texts), verbose=False)["input_ids"]
    return TextSizes([len(row) for row in rows], length, "tokens")


class TextEncoder(nn.Module):
    """Bidirectional transformer: ids of a tokenizer (b, n) -> context (b, n, d)."""

    def __init__(
        self,
        dim: int,
        layers: int,
        heads: int,
        *,
        head_dim: int | None = None,
        dropout: float = 0,
        vocab_size: int = VOCAB_SIZE,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim or dim // heads
        self.embedding = nn.Embedding(vocab_size, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        blocks = (Block(dim, heads, self.head_dim, dropout=dropout) for _ in range(layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(dim)

    @torch.no_grad()
    def keep_words(self, ids: Tensor) -> None:
        """Clear the embeddings of all other ids: `forward` leaves out words without one."""
        known = torch.zeros(len(self.embedding.weight), dtype=torch.bool, device=ids.device)
        known[ids.flatten()] = True
        self.embedding.weight.mul_(known[:, None].to(self.embedding.weight))

    def forward(self, ids: Tensor) -> Context:
        embedded = self.embedding(ids)
        mask = ids != PAD
        if not self.training:  # a word that training did not meet would mislead the others
            mask = mask & (embedded != 0).any(-1)
        x = residual_stream(embedded)
        rotation = rope_1d(torch.arange(ids.shape[1], device=ids.device), self.head_dim)
        for block in self.blocks:
            x = block(x, rotation, mask=mask)
        return Context(self.norm(full_precision(x)), mask)


class FrozenText:
    """Frozen T5-like encoder from a folder on disk; not saved with the model."""

    def __init__(self, path: str | Path, *, length: int = 64) -> None:
        self.path, self.length = Path(path), length
        if not (self.path / "config.json").is_file():
            raise FileNotFoundError(
                f"{self.path} is not a text encoder: give a folder with config.json,"
                " model.safetensors and a tokenizer"
            )
        self.tokenizer, self.model = load_encoder(self.path)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], device: torch.device | str = "cpu") -> Context:
        """(b, length, dim) in fp32, zero where masked; moves the encoder to `device`."""
        inputs = self.tokenizer(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=self.length,
            return_tensors="pt",
        ).to(device)
        model = self.model.to(device)
        output = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        mask = inputs["attention_mask"].bool()
        return Context(full_precision(output.last_hidden_state) * mask[..., None], mask)


def load_encoder(path: Path) -> tuple[Any, Any]:
    """Tokenizer and model from a local folder: no download, no pickle, no remote code."""
    tokenizer = load_tokenizer(path)
    model = _load(path, "AutoModelForTextEncoding", use_safetensors=True)
    return tokenizer, model.eval().requires_grad_(False)


def load_tokenizer(path: Path) -> Any:
    return _load(path, "AutoTokenizer")


def _load(path: Path, name: str, **settings: Any) -> Any:
    try:
        # By name: else the type checker reads 2,600 files of it.
        kind = getattr(importlib.import_module("transformers"), name)
    except ImportError:
        raise ImportError(
            f"the text encoder at {path} needs transformers: pip install 'quintet[text]'"
        ) from None
    try:
        return kind.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, **settings
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the text encoder at {path} cannot be loaded (it must be a T5-like model with"
            f" safetensors and a fast tokenizer): {error}"
        ) from error
