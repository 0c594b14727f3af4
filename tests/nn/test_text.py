import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from quintet.nn.text import (
    FIRST,
    PAD,
    START,
    VOCAB_SIZE,
    ByteTokenizer,
    FrozenText,
    TextEncoder,
    WordTokenizer,
)


def decoded(ids: torch.Tensor) -> str:
    return bytes(i - FIRST for i in ids.flatten().tolist() if i >= FIRST).decode("utf-8")


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_bytes_survive_the_round_trip(text: str) -> None:
    ids = ByteTokenizer(200).encode([text])
    assert ids.shape == (1, 200)
    assert ids.min() >= 0
    assert ids.max() < VOCAB_SIZE
    assert decoded(ids) == text


@given(st.text(max_size=20), st.integers(1, 40))
def test_a_text_that_is_too_long_is_cut_between_characters(text: str, length: int) -> None:
    tokenizer = ByteTokenizer(length)
    ids = tokenizer.encode([text])
    actual = decoded(ids)
    writable = text.encode("utf-8", "replace").decode()
    assert ids.shape == (1, length)
    assert writable.startswith(actual)
    if len(actual) < len(writable):
        assert len(writable[: len(actual) + 1].encode()) > length - 1


def test_a_word_has_the_same_id_wherever_it_stands() -> None:
    first, second, empty = WordTokenizer(6).encode(["A red, red star", "star", "  "])
    assert first[0] == START
    assert first[2] == first[4] != first[3]  # red, comma, red; the star is cut off
    assert (second[1], second[2]) == (WordTokenizer(9).encode(["A red, red star"])[0, 5], PAD)
    assert empty.tolist() == [START, *[PAD] * 5]
    assert FIRST <= first[1:].min() <= first.max() < FIRST + 8192
    (small,) = WordTokenizer(6, rows=64).encode(["A red, red star"])
    assert small[1:].max() < FIRST + 64
    assert small[2] == small[4]


def encoder() -> TextEncoder:
    model = TextEncoder(16, 2, 2).double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.2)
    return model


def test_padding_does_not_change_a_text() -> None:
    model = encoder()
    short = model(ByteTokenizer(6).encode(["chair", "leg"]))
    long = model(ByteTokenizer(30).encode(["chair", "leg"]))
    assert short.values.shape == (2, 6, 16)
    assert torch.allclose(short.values[short.mask], long.values[long.mask], atol=1e-10)
    assert long.mask.sum(-1).tolist() == [6, 4]


def test_a_text_is_read_in_both_directions_and_in_order() -> None:
    model, tokenizer = encoder(), ByteTokenizer(4)
    ab, ac, ba = (model(tokenizer.encode([text])).values[0] for text in ("ab", "ac", "ba"))
    assert not torch.allclose(ab[1], ac[1])
    assert not torch.allclose(ab.sum(0), ba.sum(0))


def test_an_empty_text_still_has_a_start() -> None:
    ids = ByteTokenizer(5).encode([""])
    assert (ids != PAD).sum() == 1
    assert encoder()(ids).values.isfinite().all()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A T5 encoder of random weights over four words, as transformers saves one."""
    transformers = pytest.importorskip("transformers", reason="needs quintet[text]")
    tokenizers = pytest.importorskip("tokenizers", reason="needs quintet[text]")
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "chair": 4, "table": 5}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(tmp_path)
    config = transformers.T5Config(
        vocab_size=8, d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    transformers.T5EncoderModel(config).save_pretrained(tmp_path)
    return tmp_path


def test_a_frozen_encoder_reads_a_folder_on_disk(folder: Path) -> None:
    frozen = FrozenText(folder, length=5)
    actual = frozen(["a chair", "a"])
    assert actual.values.shape == (2, 5, 12)
    assert actual.mask.sum(-1).tolist() == [2, 1]
    assert not actual.values[~actual.mask].any()
    assert not actual.values.requires_grad
    assert torch.allclose(actual.values, FrozenText(folder, length=5)(["a chair", "a"]).values)
    assert not torch.allclose(actual.values[0], frozen(["a table"]).values[0])


def test_a_frozen_encoder_takes_no_pickle(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="safetensors"):
        FrozenText(folder)


def test_a_folder_without_an_encoder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path.name} is not a text encoder"):
        FrozenText(tmp_path)


def test_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"quintet\[text\]"):
        FrozenText(tmp_path)
