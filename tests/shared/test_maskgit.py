"""Masked generators: masks, orders, digits, and what generation promises whatever the room."""

import json
from copy import deepcopy
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from quintet.engine.config import ConfigError
from quintet.image.maskgit.config import MaskGitConfig
from quintet.image.maskgit.model import MaskGit
from quintet.image.maskgit.sample import Flags
from quintet.nn.attention import Context
from quintet.nn.quantisers.config import CodebookConfig
from quintet.nn.quantisers.digits import MAX_DIGIT, digits_of
from quintet.shared.generation.generator import CASTS, CastWeights, sample_keys
from quintet.shared.generation.sampling import settings_of
from quintet.shared.maskgit.config import DecodingConfig
from quintet.shared.maskgit.decoding import (
    Decoder,
    Decoding,
    generate_ids,
    halton_ranks,
)
from quintet.shared.maskgit.model import random_mask

SMALL = MaskGitConfig(
    grid=(4, 6), digits=(8, 5), dim=32, layers=2, heads=2, head_dim=16, text_length=24
)


@pytest.fixture
def model() -> MaskGit:
    """With weights that are not zero anywhere, so that every input counts."""
    torch.manual_seed(0)
    model = MaskGit(SMALL).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return model


@pytest.mark.parametrize(
    ("config", "digits"),
    [
        (CodebookConfig(levels=(8, 8, 8, 5, 5, 5)), (512, 125)),
        (CodebookConfig(levels=(8, 8, 5, 5)), (64, 25)),
        (CodebookConfig(levels=(8, 8, 8)), (512,)),
        (CodebookConfig(quantiser="lfq", codebook_bits=18), (512, 512)),
        (CodebookConfig(quantiser="bsq", codebook_bits=9), (512,)),
        (CodebookConfig(quantiser="vq", codebook_bits=12), (4096,)),
        (CodebookConfig(levels=(2000, 3)), (2000, 3)),
        (CodebookConfig(levels=(8,) * 18), (512,) * 6),
    ],
)
def test_digits_are_few_and_small(config: CodebookConfig, digits: tuple[int, ...]) -> None:
    assert digits_of(config) == digits
    assert config.quantiser == "vq" or max(digits) <= max(MAX_DIGIT, *config.levels)


def test_codes_that_do_not_fit_into_62_bits_are_refused() -> None:
    digits = digits_of(CodebookConfig(levels=(8,) * 21))
    with pytest.raises(ConfigError, match=r"at most 2 \*\* 62 codes"):
        replace(SMALL, digits=digits)


def test_embeddings_and_head_take_a_code_apart_alike(model: MaskGit) -> None:
    """And put it together again: the digits of fsq are its levels, least significant first."""
    codes = torch.arange(40)[None]
    assert torch.equal(model.head.join(model.head.split(codes)), codes)
    expected = model.digit_embed[0][codes % 8] + model.digit_embed[1][codes // 8]
    torch.testing.assert_close(model.embed(codes), expected)
    assert torch.equal(model.embed(torch.tensor([[-1]]))[0, 0], model.mask_embed)


def test_the_loss_is_that_of_the_joint_distribution(model: MaskGit) -> None:
    """Two softmaxes, the second given the first, sum to one over all codes."""
    ids = torch.full((40, 24), 3)
    ids[:, 5] = torch.arange(40)
    masked = torch.zeros(40, 24, dtype=torch.bool)
    masked[:, 5] = True
    model.head.label_smoothing = 0.0
    losses = model(ids, masked)
    assert (-losses.loss_sum).exp().sum().item() == pytest.approx(1, abs=1e-5)
    assert losses.masked.tolist() == [1] * 40


def test_ids_that_are_masked_are_not_seen(model: MaskGit) -> None:
    ids = torch.randint(40, (2, 24))
    masked = torch.rand(2, 24) < 0.5
    other = torch.where(masked, (ids + 7) % 40, ids)
    hidden = [model.hidden(torch.where(masked, -1, each), None) for each in (ids, other)]
    assert torch.equal(*hidden)
    moved = ids.clone()
    moved[:, 0] = (ids[:, 0] + 1) % 40
    assert not torch.allclose(model.hidden(ids, None)[:, 5], model.hidden(moved, None)[:, 5])


def test_positions_differ_although_all_ids_are_masked(model: MaskGit) -> None:
    hidden = model.hidden(torch.full((1, 24), -1), None)[0]
    assert (torch.cdist(hidden, hidden) + torch.eye(24) > 1e-3).all()


def test_masks_follow_the_cosine_and_the_key_of_their_sample() -> None:
    keys = sample_keys(0, range(4000), "maskgit")
    masked = random_mask(keys, (4, 6))
    assert masked.float().mean().item() == pytest.approx(2 / torch.pi, abs=0.02)
    assert masked.any(1).all()
    assert torch.equal(masked[7:9], random_mask(keys[7:9], (4, 6)))
    assert not torch.equal(masked[0], masked[1])


def test_the_first_frames_of_a_share_of_clips_are_given() -> None:
    keys = sample_keys(0, range(2000), "maskgit")
    masked = random_mask(keys, (5, 2, 2), prefix=0.5).unflatten(1, (5, 4))
    whole = random_mask(keys, (5, 2, 2)).unflatten(1, (5, 4))
    changed = (masked != whole).flatten(1).any(1)
    assert 0.3 < changed.float().mean().item() < 0.5
    assert not masked[changed][:, 0].any()
    assert masked.flatten(1).any(1).all()


@pytest.mark.parametrize("grid", [(8, 8), (16, 16), (3, 5), (5, 8, 8)])
def test_halton_visits_every_cell_once_and_spreads(grid: tuple[int, ...]) -> None:
    ranks = halton_ranks(grid)
    assert sorted(ranks) == list(range(prod(grid)))
    first = [index for index, rank in enumerate(ranks) if rank < len(ranks) // 2]
    quarters = {index * 4 // len(ranks) for index in first}
    assert quarters == {0, 1, 2, 3}


@pytest.mark.by_default("1-halton", "12-confidence", "24-halton")
@pytest.mark.parametrize("order", ["confidence", "halton"])
@pytest.mark.parametrize("steps", [1, 3, 12, 24, 64])
def test_all_ids_are_fixed_and_given_ones_stay(model: MaskGit, order: str, steps: int) -> None:
    ids = torch.randint(40, (5, 24))
    masked = torch.rand(5, 24) < torch.linspace(0, 1, 5)[:, None]
    decoding = Decoding(steps=steps, order=order)  # type: ignore[arg-type]
    made = generate_ids(
        model, torch.where(masked, -1, ids), sample_keys(0, range(5), "maskgit"), None, decoding
    )
    assert ((made >= 0) & (made < 40)).all()
    assert torch.equal(made[~masked], ids[~masked])


def test_a_step_fixes_ids_that_stay_and_the_cosine_of_them(model: MaskGit) -> None:
    decoder = Decoder(model, Decoding(steps=4), 1, None)
    decoder.ids.fill_(-1)
    decoder.free.fill_(24)
    before, left = decoder.ids.clone(), []
    for _ in range(4):
        decoder.step(0)
        known = before >= 0
        assert torch.equal(decoder.ids[known], before[known])
        before = decoder.ids.clone()
        left.append(int((before < 0).sum()))
    assert left == [22, 16, 9, 0]


@pytest.mark.by_default("confidence")
@pytest.mark.parametrize("order", ["confidence", "halton"])
def test_a_sample_does_not_depend_on_its_batch(model: MaskGit, order: str) -> None:
    """50 samples are two blocks; the last ones are the same in a block of their own."""
    texts = [f"number {index}" for index in range(50)]
    settings: dict[str, Any] = {"steps": 6, "order": order, "seed": 3, "return_ids": True}
    together = model.generate(texts, **settings)
    for begin, end in ((0, 1), (7, 10), (41, 50)):
        alone = model.generate(texts[begin:end], first=begin, **settings)
        assert torch.equal(alone, together[begin:end])
    assert not torch.equal(together, model.generate(texts, **settings | {"seed": 4}))
    assert len({tuple(row.flatten().tolist()) for row in together}) == 50


def test_guidance_of_one_is_none_and_more_moves_away_from_no_caption(model: MaskGit) -> None:
    """Greedy and in one step, so that ids follow from the logits alone."""
    settings: dict[str, Any] = {"steps": 1, "temperature": 0.0, "return_ids": True}
    text, bare = ["a caption"], model.generate(None, **settings)
    plain = model.generate(text, cond_scale=1.0, **settings)
    context = model.encode_captions(text)
    cond = model.hidden(torch.full((1, 24), -1), context)
    uncond = model.hidden(torch.full((1, 24), -1), model.encode_text(1))
    logits = [model.head.logits(0, 0, hidden, hidden) for hidden in (cond, uncond)]
    guided = logits[1] + 5.0 * (logits[0] - logits[1])
    assert torch.equal(model.head.split(plain.flatten(1))[0], logits[0].argmax(-1))
    assert torch.equal(model.head.split(bare.flatten(1))[0], logits[1].argmax(-1))
    made = model.generate(text, cond_scale=5.0, **settings)
    assert torch.equal(model.head.split(made.flatten(1))[0], guided.argmax(-1))


def test_an_empty_caption_is_refused(model: MaskGit) -> None:
    with pytest.raises(ValueError, match="a caption is empty: describe what to generate"):
        model.generate(["  "], return_ids=True)


@pytest.mark.parametrize("letter", ["x", "ö"])
def test_a_long_caption_is_cut_as_in_training_with_a_line(
    letter: str, model: MaskGit, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = letter * 24, letter * (23 // len(letter.encode()))
    long, short = (model.generate([text], steps=1, return_ids=True) for text in (whole, cut))
    assert torch.equal(long, short)
    sizes = f"has {len(whole.encode())} bytes; the model reads the first 23, as in training"
    assert capsys.readouterr().err == f"the caption '{whole}…' {sizes}\n"


def test_captions_of_words_are_read(model: MaskGit) -> None:
    torch.manual_seed(0)
    model = type(model)(replace(model.config, text="words", text_length=4))
    made = model.generate(["red star", "star red"], steps=1, cond_scale=1.0, return_ids=True)
    assert made.shape == (2, 4, 6)
    contexts = model.encode_captions(["red star", "star red", "Red  star"]).values
    assert torch.equal(contexts[0], contexts[2])
    assert not torch.equal(contexts[0], contexts[1])
    sizes = model.text_sizes(["a red, star", "a star"])
    assert sizes[:3] == ([4, 2], 3, "words")
    assert sizes.cut_line().startswith("1 of 2 captions have more than 3 words, the longest 4, and")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 0}, "steps must be 1 or more"),
        ({"order": "random"}, "order must be confidence or halton"),
        ({"temperature": -1.0}, "temperature must be 0 or more"),
        ({"cond_scale": float("nan")}, "cond_scale must be finite"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    model: MaskGit, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        model.generate(["a"], return_ids=True, **settings)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_arguments_of_upstream_are_taken_or_refused(model: MaskGit) -> None:
    ids = model.generate(["a"], timesteps=2, seed=1, return_ids=True)
    assert torch.equal(ids, model.generate(["a"], steps=2, seed=1, return_ids=True))
    with pytest.raises(TypeError, match="there is no super-resolution"):
        model.generate(["a"], cond_images=torch.zeros(1), return_ids=True)
    assert MaskGit(SMALL, depth=1, dim_head=8).config.layers == 1
    with pytest.raises(TypeError, match="text_drop"):
        MaskGit(SMALL, cond_drop_prob=0.25)


def test_samples_are_made_as_in_the_evaluations_of_the_run_unless_asked(tmp_path: Path) -> None:
    flags = Flags(order="halton", temperature=0.0)
    given = {"order": "halton", "temperature": 0.0}
    (tmp_path / "config.json").write_text('{"model_type": "an export"}')
    assert settings_of(tmp_path, flags) == given
    generation = DecodingConfig(sampling_steps=9, temperature=0.7, choice_temperature=1.0)
    settings = {"settings": {"generation": asdict(generation)}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    own = {"steps": 9, "choice_temperature": 1.0, "cond_scale": generation.cond_scale}
    assert settings_of(tmp_path, flags) == given | own
    assert settings_of(tmp_path.with_name(f"{tmp_path.name}@best"), flags) == given | own
    assert settings_of(tmp_path, Flags())["temperature"] == 0.7


@pytest.mark.parametrize("order", ["confidence", "halton"])
def test_cast_weights_generate(model: MaskGit, order: Literal["confidence", "halton"]) -> None:
    """As on CUDA, where generation casts them: no layer may meet another dtype than its own."""
    context = model.encode_captions(["number 1", "number 2"])
    context = Context(context.values.bfloat16(), context.mask)
    cast, keys = model.cast_copy(torch.bfloat16), sample_keys(0, range(2), "maskgit")
    ids = generate_ids(cast, model.blank_ids(2), keys, context, Decoding(steps=3, order=order))
    assert int(ids.min()) >= 0


def test_a_kept_decoder_follows_the_weights_and_the_captions(model: MaskGit) -> None:
    """As on CUDA, where it holds the graph of a step."""
    model, kept, keys = deepcopy(model), CastWeights(), sample_keys(0, range(3), "maskgit")

    def made(text: str, kept: CastWeights | None, **settings: Any) -> torch.Tensor:
        context, decoding = model.encode_captions([text] * 3), Decoding(steps=3, **settings)
        network = model if kept is None else kept.of(model, torch.float32)
        return generate_ids(network, model.blank_ids(3), keys, context, decoding, kept)

    first = made("number 1", kept)
    decoder = kept.latest
    for text in ("number 1", "number 2"):
        assert torch.equal(made(text, kept), made(text, None))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    changed = made("number 1", kept)
    assert kept.latest is decoder
    assert torch.equal(changed, made("number 1", None))
    assert not torch.equal(changed, first)
    assert torch.equal(
        made("number 1", kept, order="halton"), made("number 1", None, order="halton")
    )
    assert kept.latest is not decoder


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("order", ["confidence", "halton"])
def test_captured_steps_make_the_ids_of_eager_ones(
    model: MaskGit, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quintet.shared.maskgit import decoding

    model, texts = model.cuda(), [f"number {index}" for index in range(5)]
    settings: dict[str, Any] = {"steps": 8, "order": order, "return_ids": True}
    captured = model.generate(texts, **settings)
    assert torch.equal(captured[3:], model.generate(texts[3:], first=3, **settings))
    assert torch.equal(captured, model.generate(texts, **settings))  # by the graph of that call
    CASTS.clear()
    monkeypatch.setattr(decoding, "CapturedStep", lambda step: step)
    assert torch.equal(captured, model.generate(texts, **settings))
