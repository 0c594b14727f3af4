"""The two towers: what an embedding depends on, and the calls that users know."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from quintet.engine.config import ConfigError, from_json, to_json
from quintet.engine.keys import fold, keyed_normal
from quintet.music.config import MusicDataConfig, MusicLossConfig
from quintet.music.mulan.config import MuLaNConfig, MuLaNRecipe
from quintet.music.mulan.model import MuLaN
from quintet.music.mulan.towers import standardised
from quintet.nn.contrastive import contrastive_loss

SMALL: dict[str, Any] = {
    "n_fft": 512,
    "hop_length": 160,
    "n_mels": 32,
    "patch_size": (8, 8),
    "dim": 32,
    "layers": 2,
    "heads": 2,
    "head_dim": 16,
    "text_length": 24,
    "text_dim": 32,
    "text_layers": 1,
    "text_heads": 2,
    "text_head_dim": 16,
    "dim_latent": 16,
    "quantiser_depth": 2,
    "quantiser_bits": 4,
}


HIDDEN = MusicLossConfig()


def build(**changes: Any) -> MuLaN:
    """A model whose residual branches have left zero, so that attention counts."""
    torch.manual_seed(0)
    model = MuLaN(**{**SMALL, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def sounds(count: int, samples: int) -> Tensor:
    return torch.randn(count, samples, generator=torch.Generator().manual_seed(3)) * 0.1


def keys_of(count: int) -> Tensor:
    return torch.tensor([fold("sound", i) for i in range(count)])


# -- padding --------------------------------------------------------------------------------


@given(length=st.integers(1, 9000), pad=st.integers(0, 6000))
@settings(deadline=None, max_examples=20)
def test_padding_changes_no_embedding(length: int, pad: int) -> None:
    model, wavs = build(), sounds(2, length)
    alone = model.embed_audio(wavs)
    padded = model.embed_audio(F.pad(wavs, (0, pad)), torch.full((2,), length))
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)


@given(length=st.integers(1, 9000), pad=st.integers(0, 6000))
@settings(deadline=None, max_examples=20)
def test_padding_changes_nothing_of_what_is_hidden(length: int, pad: int) -> None:
    model, wavs, keys = build(), sounds(2, length), keys_of(2)
    alone = model.audio(wavs, None, model.audio.draws(keys, length, HIDDEN))
    wide = F.pad(wavs, (0, pad))
    draws = model.audio.draws(keys, length + pad, HIDDEN)
    padded = model.audio(wide, torch.full((2,), length), draws)
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)


def test_neighbours_change_no_embedding() -> None:
    model, wavs = build(), sounds(3, 8000)
    lengths = torch.tensor([8000, 4100, 2500])
    together = model.embed_audio(wavs, lengths)
    for wav, length, row in zip(wavs, lengths, together):
        torch.testing.assert_close(model.embed_audio(wav[:length]), row, rtol=0, atol=1e-5)


def test_what_a_text_is_padded_to_changes_nothing() -> None:
    short, long = build(), build(text_length=60)
    texts = ["a slow melody", "drums"]
    torch.testing.assert_close(short.embed_text(texts), long.embed_text(texts), rtol=0, atol=1e-5)


def test_loudness_changes_no_embedding() -> None:
    """Down to the floor of silence."""
    model, wavs = build(), sounds(2, 8000)
    assert (model.embed_audio(wavs) * model.embed_audio(wavs * 3)).sum(1).min() > 0.999


def test_a_spectrogram_is_standardised_over_what_is_seen() -> None:
    mels = torch.randn(2, 4, 10) * 5 - 7
    seen = torch.arange(10) < torch.tensor([[10], [6]])
    actual = standardised(mels, seen)
    torch.testing.assert_close(actual[1, :, :6], standardised(mels[1:, :, :6], None)[0])
    assert actual[1, :, 6:].eq(0).all()
    assert standardised(torch.full((1, 4, 10), -11.0), None).eq(0).all()


# -- what is hidden -------------------------------------------------------------------------


def test_a_static_share_of_the_patches_is_kept() -> None:
    model = build(patch_dropout=0.5)
    wavs, keys = sounds(3, 16000), keys_of(3)
    seen = model.audio.patches(wavs, None, model.audio.draws(keys, 16000, HIDDEN))
    whole = model.audio.patches(wavs, None, None)
    assert whole.values.shape[1] == 13 * 4
    assert seen.values.shape[1] == 32  # 26, in multiples of 8
    assert seen.indices is not None
    assert all(len(set(row.tolist())) == 32 for row in seen.indices)
    assert not seen.indices[0].sort().values.equal(seen.indices[1].sort().values)


def test_short_sounds_keep_the_same_share_and_no_padding() -> None:
    model = build(patch_dropout=0.5)
    lengths = torch.tensor([16000, 5000])
    draws = model.audio.draws(keys_of(2), 16000, HIDDEN)
    seen = model.audio.patches(sounds(2, 16000), lengths, draws)
    assert seen.mask is not None
    assert seen.indices is not None
    assert seen.mask.sum(1).tolist() == [32, 8]  # of 52 and 16
    assert (seen.indices[1][seen.mask[1]] < 16).all()


def test_the_gradient_of_the_heights_does_not_depend_on_which_thread_comes_first() -> None:
    tower = build().audio
    cells = torch.randint(0, 999, (64, 200))
    weights = torch.randn(64, 200, tower.freq_embed.shape[1])
    torch.set_num_threads(2)
    try:
        sums = [(tower.freq_embedding(cells, 0) * weights).sum() for _ in range(10)]
        first, *others = (torch.autograd.grad(total, tower.freq_embed)[0] for total in sums)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(first, other) for other in others)


def test_bands_are_hidden_in_training_alone() -> None:
    model, losses = build(patch_dropout=0.0), MusicLossConfig(time_masks=4, freq_masks=4)
    wavs = sounds(4, 7680)  # a whole number of patches
    draws = model.audio.draws(keys_of(4), 7680, losses)
    assert (model.audio.patches(wavs, None, draws).values == 0).float().mean() > 0.1
    assert model.audio.patches(wavs, None, None).values.ne(0).all()
    model.train()
    assert model.embed_audio(wavs).equal(model.embed_audio(wavs))


# -- calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["softmax", "decoupled", "sigmoid"])
def test_the_call_that_users_know_gives_a_loss_that_trains_every_parameter(kind: str) -> None:
    model = build(loss=kind)
    loss = model(wavs=sounds(4, 8000), raw_texts=["one", "two", "three", "four"])
    loss.backward()
    assert loss.ndim == 0
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert (model.bias is not None) is (kind == "sigmoid")


def test_ids_and_strings_are_two_ways_to_say_the_same() -> None:
    model, wavs = build().eval(), sounds(2, 8000)
    ids, _ = model.tokenize(["one", "two"])
    assert model(wavs=wavs, texts=ids[:, :8]).equal(model(wavs=wavs, raw_texts=["one", "two"]))
    assert model.get_text_latents(ids).equal(model.embed_text(["one", "two"]))
    with pytest.raises(ValueError, match="either raw_texts"):
        model.get_text_latents()


def test_the_loss_is_that_of_the_embeddings() -> None:
    model, wavs = build().eval(), sounds(3, 8000)
    actual = model(wavs, None, model.tokenize(["a", "b", "c"])[0])
    torch.testing.assert_close(actual.audio, model.get_audio_latents(wavs))
    loss = model(wavs=wavs, raw_texts=["a", "b", "c"])
    torch.testing.assert_close(loss, contrastive_loss("softmax", actual.pairs))
    assert actual.audio.norm(dim=1).tolist() == pytest.approx([1, 1, 1])


def test_similarities_are_cosines_of_sounds_and_texts() -> None:
    model, wavs = build(), sounds(3, 8000)
    table = model.similarity(wavs, ["a", "b"])
    assert table.shape == (3, 2)
    assert table.abs().max() <= 1 + 1e-6
    one = model.embed_audio(wavs[1]) @ model.embed_text("b")
    torch.testing.assert_close(table[1, 1], one)


@pytest.mark.parametrize(
    "wavs", [torch.zeros(3, 2, 100), torch.zeros(2, 0), torch.ones(2, 9).int()]
)
def test_what_is_no_batch_of_sounds_is_refused(wavs: Tensor) -> None:
    with pytest.raises(ValueError, match="mono audio"):
        build().embed_audio(wavs)


def test_a_model_comes_back_from_its_folder(tmp_path: Path) -> None:
    model, wavs = build(loss="sigmoid").eval(), sounds(2, 8000)
    again = MuLaN.from_pretrained(model.save_pretrained(tmp_path / "m"))
    assert again.embed_audio(wavs).equal(model.embed_audio(wavs))
    assert again.quantize_latents(model.embed_audio(wavs)).shape == (2, 2)
    assert from_json(MuLaNConfig, to_json(model.config)) == model.config


# -- the quantiser --------------------------------------------------------------------------


class EndOfStep:
    skipped = torch.zeros(())

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def noise(self, like: Tensor, name: str) -> Tensor:
        return keyed_normal(like, fold(name))


def test_the_quantiser_comes_to_write_embeddings_and_moves_none() -> None:
    model, wavs = build(quantiser_depth=4, quantiser_bits=4), sounds(32, 2000)
    text = model.tokenize([f"sound {i}" for i in range(32)])[0]
    before = model.embed_audio(wavs)
    for _ in range(40):
        actual = model(wavs, None, text)
        model.commit(EndOfStep())
    assert not actual.quantiser_error.requires_grad
    assert model.embed_audio(wavs).equal(before)
    codes = model.quantize_latents(before)
    assert codes.shape == (32, 4)
    assert 0 <= int(codes.min()) <= int(codes.max()) < 16
    assert model.quantiser is not None
    after = F.normalize(model.quantiser.ids_to_values(codes), dim=-1)
    assert (after @ before.T).argmax(1).tolist() == list(range(32))
    assert (after * before).sum(1).mean() > 0.95


def test_a_first_pass_without_gradients_leaves_no_statistics() -> None:
    model = build()
    assert model.quantiser is not None
    with torch.no_grad():
        model(sounds(2, 2000), None, model.tokenize(["a", "b"])[0])
    assert all(not level.new_counts.any() for level in model.quantiser.quantisers)  # type: ignore[union-attr]


def test_a_model_without_a_quantiser_says_so() -> None:
    with pytest.raises(ValueError, match="quantiser_depth"):
        build(quantiser_depth=0).quantize_latents(torch.zeros(1, 16))


def test_the_temperature_is_held_within_its_limits() -> None:
    model = build()
    with torch.no_grad():
        model.log_temperature.fill_(-9.0)
    model.commit(EndOfStep())
    assert model.log_temperature.exp().item() == pytest.approx(0.01)


# -- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"patch_size": (7, 8)}, "patch_size"),
        ({"head_dim": 6}, "head_dim"),
        ({"patch_dropout": 1.0}, "patch_dropout"),
        ({"temperature": 0.001}, "temperature"),
        ({"f_min": 9000.0}, "f_min"),
        ({"layers": 0}, "layers"),
        ({"vocab_size": 100}, "vocab_size"),
    ],
)
def test_a_setting_that_cannot_be_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        dataclasses.replace(MuLaNConfig(**SMALL), **changes)


def test_model_and_data_must_agree_on_the_rate() -> None:
    with pytest.raises(ConfigError, match="sample_rate"):
        MuLaNRecipe(sounds=MusicDataConfig(sample_rate=8000))


@pytest.mark.slow
def test_it_compiles_in_one_piece() -> None:
    import warnings

    model, wavs = build(), sounds(2, 8000)
    text, draws = model.tokenize(["a", "b"])[0], model.audio.draws(keys_of(2), 8000, HIDDEN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its own
        compiled = torch.compile(model.forward, fullgraph=True, dynamic=False)
        for lengths in (None, torch.tensor([8000, 5000])):
            quick = compiled(wavs, lengths, text, None, draws)
            plain = model.forward(wavs, lengths, text, None, draws)
            torch.testing.assert_close(quick.audio, plain.audio, rtol=0, atol=1e-5)
