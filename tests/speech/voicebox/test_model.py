"""VoiceBox: what it may see, what it may not, and how it speaks."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from quintet.engine.config import ConfigError
from quintet.nn.alignment import inside
from quintet.nn.griffin_lim import GriffinLim
from quintet.speech.features import log_mel
from quintet.speech.text.characters import UNKNOWN
from quintet.speech.voicebox import inference
from quintet.speech.voicebox.backbone import sinusoidal_embedding
from quintet.speech.voicebox.config import VoiceBoxConfig, VoiceBoxLossConfig
from quintet.speech.voicebox.durations import (
    fully_visible,
    masked_frames,
    round_durations,
    voice_of,
)
from quintet.speech.voicebox.inference import (
    Segment,
    Solver,
    align_reference,
    infill,
    infill_layout,
    noise_keys,
    segment_layout,
    splice,
    split_reference,
)
from quintet.speech.voicebox.masking import draw, span_mask
from quintet.speech.voicebox.measures import copied, interpolated, mean_error, true_durations
from quintet.speech.voicebox.model import VoiceBox, counts, total_loss
from speech.small import MODEL, voicebox

RATE, HOP = 8_000, 128
LOSSES = VoiceBoxLossConfig()
QUICK = Solver(2, "euler", 0.0, 1.0)


def sounds(*lengths: int) -> Tensor:
    torch.manual_seed(1)
    actual = torch.zeros(len(lengths), max(lengths))
    for row, length in zip(actual, lengths):
        row[:length] = 0.3 * torch.randn(length)
    return actual


def batch(model: VoiceBox, *lengths: int, texts: tuple[str, ...] = ()) -> tuple:
    audio, ends = sounds(*lengths), torch.tensor(lengths)
    ids, tokens = model.tokenize(texts or ["ba", "kitu"][: len(lengths)])
    frames = model.features.num_frames(ends)
    size = (int(model.features.num_frames(torch.tensor([audio.shape[1]]))), model.config.n_mels)
    return audio, ends, ids, tokens, draw(torch.arange(len(lengths)), frames, size, LOSSES)


# -- what is seen ---------------------------------------------------------------------------------


def test_padding_changes_nothing(model):
    audio, ends, ids, tokens, draws = batch(model, 4_000, 6_000)
    one = model(audio, ends, ids, tokens, draws)
    wider, more = torch.zeros(2, 9_000), torch.zeros(2, 9, dtype=torch.int64)
    wider[:, :6_000], more[:, :4] = audio, ids
    frames = model.features.num_frames(ends)
    longer = draw(torch.arange(2), frames, (int(9_000 // HOP + 1), 20), LOSSES)
    longer.noise[:, 47:] = 1e3
    two = model(wider, ends, more, tokens, longer)
    for first, second in zip(one, two):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


def test_recordings_without_padding_need_no_mask(model):
    audio, ends, ids, tokens, draws = batch(model, 6_000, 6_000)
    masked, bare = (model(audio, ends, ids, tokens, draws, padded) for padded in (True, False))
    for first, second in zip(masked, bare):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
    audio, ends, ids, tokens, draws = batch(model, 4_000, 6_000)
    masked, bare = (model(audio, ends, ids, tokens, draws, padded) for padded in (True, False))
    assert not torch.isclose(masked.flow, bare.flow), "or this test could not fail"


def test_samples_of_a_batch_know_nothing_of_each_other(model):
    whole = model(*batch(model, 4_000, 6_000))
    audio, ends, ids, tokens, draws = batch(model, 4_000, 6_000)
    rows = (slice(0, 1), slice(1, 2))
    parts = [
        model(audio[r], ends[r], ids[r], tokens[r], type(draws)(*(d[r] for d in draws)))
        for r in rows
    ]
    for index, value in enumerate(whole):
        torch.testing.assert_close(parts[0][index] + parts[1][index], value, rtol=1e-4, atol=1e-4)


def test_the_context_is_the_clean_audio_outside_of_the_hole(model):
    x1 = model.features(sounds(5_000))
    frames = torch.tensor([x1.shape[1]])
    infill_mask = span_mask(frames, 0.5, torch.tensor([0.4]), x1.shape[1])
    layout = infill_layout(model, x1, frames, *model.tokenize(["kitu"]), infill_mask)
    assert torch.equal(layout.context[~infill_mask], x1[~infill_mask])
    assert not layout.context[infill_mask].any()
    actual = infill(model, layout, QUICK, noise_keys(0, 1, torch.device("cpu")))
    assert torch.equal(actual[~infill_mask], x1[~infill_mask])
    assert not torch.isclose(actual[infill_mask], x1[infill_mask]).all()


def test_nothing_of_what_is_to_be_found_leaks(model):
    """What is in the hole may be anything: characters, context and speech stay the same."""
    x1 = model.features(sounds(5_000))
    frames = torch.tensor([x1.shape[1]])
    infill_mask = span_mask(frames, 0.5, torch.tensor([0.4]), x1.shape[1])
    other = torch.where(infill_mask[..., None], 100 * torch.randn_like(x1), x1)
    keys = noise_keys(0, 1, torch.device("cpu"))
    actual = []
    for rows in (x1, other):
        layout = infill_layout(model, rows, frames, *model.tokenize(["kitubala"]), infill_mask)
        actual.append((*layout[:-1], infill(model, layout, QUICK, keys)))
    for first, second in zip(*actual):
        assert torch.equal(first, second)
    beside = torch.where(infill_mask[..., None], x1, x1 + 1)
    changed = infill_layout(model, beside, frames, *model.tokenize(["kitubala"]), infill_mask)
    assert not torch.equal(changed.context, actual[0][1]), "or this test could not fail"


def test_in_training_the_hole_is_hidden_from_the_backbone(model):
    """Only the target depends on what is in it: the velocity for a given state does not."""
    audio, ends, _, _, draws = batch(model, 4_000, 6_000)
    x1, mask = model.features(audio), inside(model.features.num_frames(ends), 47)
    infill_mask = draws.infill_mask & mask
    other = torch.where(infill_mask[..., None], x1 + 5, x1)
    frame_ids, state = torch.full(mask.shape, UNKNOWN), torch.randn_like(x1)
    first, second = (
        model.velocity(
            state,
            draws.time,
            model.mask_context(rows, infill_mask, mask),
            infill_mask,
            frame_ids,
            mask,
        )
        for rows in (x1, other)
    )
    assert torch.equal(first, second)


def test_text_that_is_dropped_is_not_seen(model):
    audio, ends, ids, tokens, draws = batch(model, 4_000, 6_000)
    for all_of_it in (True, False):
        text_dropped = draws._replace(text_dropped=torch.full_like(draws.text_dropped, all_of_it))
        flows = [model(audio, ends, i, tokens, text_dropped).flow for i in (ids, ids.flip(1))]
        assert (flows[0] == flows[1]) == all_of_it


# -- what is drawn --------------------------------------------------------------------------------


def test_draws_belong_to_their_key_whatever_the_padding():
    frames = torch.tensor([30, 40])
    one = draw(torch.tensor([5, 6]), frames, (40, 3), LOSSES)
    two = draw(torch.tensor([6, 5]), frames.flip(0), (50, 3), LOSSES)
    assert torch.equal(one.time, two.time.flip(0))
    assert torch.equal(one.noise, two.noise.flip(0)[:, :40])
    assert torch.equal(one.infill_mask, two.infill_mask.flip(0)[:, :40])


def test_holes_are_one_span_of_the_share_that_is_asked_for():
    frames = torch.full((500,), 100)
    actual = draw(torch.arange(500), frames, (120, 1), VoiceBoxLossConfig(mask_fraction=(0.3, 0.6)))
    widths = actual.infill_mask.sum(1)
    whole = widths == 100
    assert 0.1 < whole.float().mean() < 0.3, "as drop_context says"
    assert widths[~whole].min() >= 30
    assert widths[~whole].max() <= 60
    assert (actual.infill_mask.int().diff(dim=1).abs().sum(1) <= 2).all()
    assert not actual.infill_mask[:, 100:].any()


# -- durations ------------------------------------------------------------------------------------


def test_whole_frames_add_up_and_keep_every_character():
    lengths = torch.tensor([[1.5, 1.0, 2.5, 1.0], [0.4, 3.0, 0.0, 0.0]])
    assert round_durations(lengths)[0].tolist() == [2, 1, 2, 1]
    totals = torch.tensor([12, 5])
    assert round_durations(lengths, totals).sum(1).equal(totals)


def test_characters_are_heard_whole_or_not():
    durations, infill_mask = torch.tensor([[2, 3, 1, 0]]), torch.zeros(1, 6, dtype=torch.bool)
    infill_mask[0, 2:4] = True
    assert masked_frames(durations, infill_mask).tolist() == [[0, 2, 0, 0]]
    assert fully_visible(durations, infill_mask).tolist() == [[True, False, True, True]]


def test_a_voice_is_the_mean_and_deviation_of_what_is_heard():
    frames = torch.tensor([[1.0, 3.0, 100.0], [5.0, 7.0, 9.0]])[..., None]
    visible = torch.tensor([[True, True, False], [False] * 3])
    assert voice_of(frames, visible).tolist() == [[2.0, 1.0], [0.0, 0.0]]
    assert voice_of(frames[:1, :0], visible[:1, :0]).tolist() == [[0.0, 0.0]]


@torch.no_grad()
def test_durations_follow_the_voice_of_the_reference(model):
    nn.init.normal_(model.durations.proj_voice.weight)
    nn.init.normal_(model.durations.proj_out.weight)
    references = [
        align_reference(model, model.features(sound[None])[0], None)
        for sound in sounds(6_000, 6_000)
    ]
    lengths = [
        segment_layout(model, [Segment(model.encode("kitubala"), reference)]).infill_mask.sum()
        for reference in (*references, None)
    ]
    assert len(set(map(int, lengths))) == 3


def test_dropout_of_durations_is_drawn_by_key_and_only_in_training():
    durations = VoiceBox(**MODEL, duration_dropout=0.5).durations
    nn.init.normal_(durations.proj_out.weight)
    ids, count = torch.randint(2, 200, (2, 7)), torch.tensor([7, 7])
    heard = (
        torch.zeros(2, 7),
        torch.zeros(2, 7, dtype=torch.bool),
        torch.zeros(2, 2 * MODEL["n_mels"]),
    )
    first, other = torch.tensor([1, 2]), torch.tensor([1, 3])

    def predicted(keys: Tensor | None) -> Tensor:
        return durations(ids, count, *heard, keys)

    assert torch.equal(predicted(first), predicted(first))
    assert torch.equal(predicted(first)[0], predicted(other)[0])
    assert not torch.equal(predicted(first)[1], predicted(other)[1])
    whole = predicted(None)
    assert not torch.equal(predicted(first), whole)
    durations.eval()
    assert torch.equal(predicted(first), whole)


def test_a_filled_hole_keeps_the_length_of_the_recording(model):
    x1 = model.features(sounds(5_000, 5_000))
    frames = torch.tensor([40, 25])
    infill_mask = span_mask(frames, 0.5, torch.tensor([0.0, 0.99]), 40)
    layout = infill_layout(model, x1, frames, *model.tokenize(["kitu", "ba"]), infill_mask)
    assert layout.durations.sum(1).equal(frames)
    assert ((layout.frame_ids > 0) == inside(frames, 40)).all()


def test_new_speech_lasts_as_long_as_it_is_asked_to(model):
    reference = align_reference(model, model.features(sounds(3_000))[0], model.encode("bate"))
    assert reference.durations.sum() == len(reference.frames)
    line = Segment(model.encode("kitu"), reference, None, 17)
    layout = segment_layout(model, [line, Segment(model.encode("so"))])
    assert layout.infill_mask.sum(1)[0] == 17
    assert layout.num_frames[0] == len(reference.frames) + 17
    assert torch.equal(layout.context[0, : len(reference.frames)], reference.frames)
    assert layout.infill_mask.sum(1)[1] == layout.num_frames[1] >= 2


def test_what_is_cut_out_leaves_the_rest_where_it_was(model):
    reference = align_reference(model, model.features(sounds(6_000))[0], model.encode("kitubala"))
    before, after = split_reference(reference, 10, 30)
    assert torch.equal(before.frames, reference.frames[:10])
    assert torch.equal(after.frames, reference.frames[30:])
    for piece in (before, after):
        assert piece.durations.sum() == len(piece.frames)


def test_true_durations_follow_the_marks():
    ends, tokens = torch.tensor([[0.1, 0.25, 0.0]]), torch.tensor([2])
    assert true_durations(ends, tokens, torch.tensor([27]), 100.0).tolist() == [[10, 17, 0]]


# -- what it is measured against ------------------------------------------------------------------


def test_copying_and_interpolating_know_only_the_frames_beside_the_hole():
    rows = torch.arange(8.0)[None, :, None] ** 2
    infill_mask = torch.tensor([[False, False, True, True, True, True, False, False]])
    assert copied(rows, infill_mask)[0, :, 0].tolist() == [0, 1, 1, 1, 36, 36, 36, 49]
    assert interpolated(rows, infill_mask)[0, 2:6, 0].tolist() == [8, 15, 22, 29]
    assert mean_error(interpolated(rows, infill_mask), rows, infill_mask).item() == pytest.approx(
        sum(abs(a - b) for a, b in zip((8, 15, 22, 29), (4, 9, 16, 25))) / 4
    )
    first = torch.tensor([[True, True, False]])
    assert copied(rows[:, :3], first)[0, :, 0].tolist() == [4, 4, 4]


# -- sampling -------------------------------------------------------------------------------------


def test_speech_from_text_is_the_same_for_a_seed_and_differs_between_seeds(model):
    say = lambda seed: model.sample(texts=["kitu", "so"], steps=2, seed=seed)
    one, again, other = say(3), say(3), say(4)
    assert [len(sound) for sound in one] == [len(sound) for sound in other]
    assert all(torch.equal(a, b) for a, b in zip(one, again))
    assert not torch.equal(one[0], other[0])
    assert all(sound.isfinite().all() for sound in one)


def test_a_text_is_spoken_alike_whatever_is_beside_it(model):
    alone = model.sample(texts=["so"], steps=2, cond_scale=1.0)[0]
    beside = model.sample(texts=["so", "kitubala"], steps=2, cond_scale=1.0)[0]
    assert len(alone) == len(beside)
    assert (alone - beside).abs().max() < 0.05 * alone.abs().max()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("method", ["midpoint", pytest.param("adaptive", marks=pytest.mark.slow)])
def test_speech_for_several_is_that_of_each_but_for_rounding(
    model, method: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model, solver = deepcopy(model).to(device), Solver(2, method)._asdict()
    frames = nn.Identity()  # instead of a vocoder: those of the network
    texts = ["so", "kitubala", "ba", "kitu bala so", "ba so ki", "ki"]
    voices = [None, sounds(4_000)[0], None, sounds(2_000)[0], None, None]
    calls = [
        {
            "texts": [text],
            "cond": None if voice is None else [voice],
            "cond_texts": [None],
            "language": "",
            "seconds": 0.4 if number == 4 else None,
            "seed": number,
            "vocoder": frames,
            **solver,
        }
        for number, (text, voice) in enumerate(zip(texts, voices))
    ]
    rows: list[int] = []
    solve = inference.infill
    monkeypatch.setattr(
        inference, "infill", lambda *args: (rows.append(len(args[1].context)), solve(*args))[1]
    )
    at_once = inference.speak_together(model, calls)
    assert {*rows} == {1} if method == "adaptive" else max(rows) > 1
    assert sum(rows) == len(calls)
    for call, (sound,) in zip(calls, at_once):
        (alone,) = model.sample(**call)
        assert sound.shape == alone.shape
        assert (sound - alone).abs().max() < 1e-4
    monkeypatch.setattr(inference, "MOST_FRAMES", 1)
    rows.clear()
    one_by_one = inference.speak_together(model, calls)
    assert {*rows} == {1}
    assert all(torch.equal(a, model.sample(**call)[0]) for call, (a,) in zip(calls, one_by_one))


@pytest.mark.parametrize("transcript", [None, "bate"])
def test_a_voice_speaks_on_and_only_what_is_new_comes_back(model, transcript):
    prompt = sounds(4_000)[0]
    actual = model.sample(
        cond=[prompt], texts=["kitu"], cond_texts=[transcript], seconds=0.4, steps=2
    )[0]
    assert len(actual) == pytest.approx(0.4 * RATE, abs=HOP)
    louder = model.sample(
        cond=[prompt * 3], texts=["kitu"], cond_texts=[transcript], seconds=0.4, steps=2
    )
    assert not torch.equal(actual, louder[0]), "it listens to the voice"


def test_a_hole_is_filled_with_and_without_a_text(model):
    audio = sounds(5_000)
    mask = torch.zeros(1, 40, dtype=torch.bool)
    mask[0, 10:20] = True
    for texts in (["kitu"], None):
        (actual,) = model.sample(cond=audio, cond_mask=mask, texts=texts, steps=2)
        assert len(actual) == 39 * HOP
    two = mask.clone()
    two[0, 30:] = True
    with pytest.raises(ValueError, match="several spans"):
        model.sample(cond=audio, cond_mask=two, texts=["kitu"])
    assert len(model.sample(cond=audio, cond_mask=two, steps=1)) == len(audio)
    assert len(model.sample(cond=audio, steps=1)) == len(audio)
    with pytest.raises(ValueError, match="one for each frame"):
        model.sample(cond=audio, cond_mask=mask[:, :20], texts=["kitu"])


@pytest.mark.parametrize("transcript", [None, "kitubala"])
def test_an_edited_recording_is_untouched_outside_of_the_span(model, transcript):
    audio = sounds(8_000)[0]
    actual = model.edit(audio, 0.4, 0.6, "so", transcript, seconds=0.3, solver=QUICK)
    assert len(actual) == pytest.approx(8_000 + 0.1 * RATE, abs=2 * HOP)
    left, right = 3_200 - HOP, 8_000 - 4_800 - HOP
    assert torch.equal(actual[:left], audio[:left])
    assert torch.equal(actual[len(actual) - right :], audio[8_000 - right :])


def test_times_outside_of_a_recording_are_refused(model):
    with pytest.raises(ValueError, match="times inside of it"):
        model.edit(sounds(8_000)[0], 0.5, 1.5, "so")


def test_a_pasted_piece_fades_in_and_out():
    audio, sound = torch.zeros(100), torch.ones(120)
    actual = splice(audio, sound, (3, 5, 7), 10)
    assert len(actual) == 120
    assert actual[30:70].eq(1).all()
    assert actual[25:31].diff().ge(0).all()
    assert actual[70:76].diff().le(0).all()
    assert not actual[:25].any()
    assert not actual[75:].any()


def test_a_text_that_cannot_be_in_a_recording_is_refused(model):
    with pytest.raises(ValueError, match="is it the text of this recording"):
        model.sample(cond=[sounds(500)[0]], texts=["so"], cond_texts=["kitubalakitubala"])


# -- other kinds of frames and texts --------------------------------------------------------------


def test_latents_are_taken_and_given_back(tmp_path):
    model = voicebox(features="latents", n_mels=6)
    latents = torch.randn(2, 30, 6)
    assert model(latents, texts=["kitu", "so"]).isfinite()
    assert model.sample(texts=["kitu"], steps=2)[0].shape[1] == 6
    with pytest.raises(ValueError, match=r"latents \(b, t, 6\)"):
        model(sounds(4_000))


def test_ids_for_each_frame_need_no_aligner():
    model = voicebox(text="given", vocabulary=9)
    assert model.aligner is None
    ids = torch.randint(2, 9, (1, 40))
    assert model(sounds(5_000), ids).isfinite()
    assert model(sounds(5_000)).isfinite()
    mask = torch.zeros(1, 40, dtype=torch.bool)
    mask[0, 5:9] = True
    assert len(model.sample(cond=sounds(5_000), texts=ids, cond_mask=mask, steps=2)[0]) > 0
    with pytest.raises(ValueError, match="takes ids"):
        model(sounds(5_000), texts=["so"])


def test_a_plain_call_gives_a_loss_that_can_be_learned_from():
    model = VoiceBox(**voicebox().config.__dict__)
    loss = model(sounds(4_000, 6_000), texts=["ba", "kitu"])
    loss.backward()
    assert loss.isfinite()
    assert model(sounds(4_000)).isfinite(), "without a text as well"
    with pytest.raises(ValueError, match=r"sounds \(b, n\)"):
        model(torch.zeros(4_000))


def test_a_model_comes_back_from_its_folder(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = VoiceBox.from_pretrained(tmp_path)
    one, two = (m.sample(texts=["so"], steps=2)[0] for m in (model, again))
    assert torch.equal(one, two)


def test_losses_are_weighed_by_their_counts(model):
    audio, ends, ids, tokens, draws = batch(model, 4_000, 6_000)
    actual = model(audio, ends, ids, tokens, draws)
    over = counts(draws, model.features.num_frames(ends), tokens)
    assert over.frames == 32 + 47
    assert over.tokens == 6
    zero = torch.zeros(())
    alone = actual._replace(alignment=zero, binarization=zero, duration=zero)
    assert total_loss(alone, over) == actual.flow / over.masked


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 15}, "even"),
        ({"kernel": 4}, "odd"),
        ({"duration_dim": 100}, "multiple of 64"),
        ({"vocabulary": 100}, "258 or more"),
        ({"hop_length": 600}, "half of n_fft"),
        ({"text": "spoken"}, "one of"),
    ],
)
def test_a_configuration_that_cannot_be_says_why(changes, message):
    with pytest.raises(ConfigError, match=message):
        VoiceBoxConfig(**changes)


# -- frames ---------------------------------------------------------------------------------------


def test_mels_survive_griffin_lim():
    """On built-in speech, within 0.15 of a logarithm on average."""
    from quintet.speech import voices

    mel = log_mel(24_000, 1024, 256, 100)
    wav = torch.from_numpy(voices.speak(voices.compose(3), 24_000))[None]
    log_mels = mel(wav)
    again = mel(GriffinLim(mel)(log_mels, wav.shape[1]))
    assert (again - log_mels).abs().mean() < 0.15


def test_frames_of_built_in_speech_are_about_one():
    from quintet.speech import voices

    model = VoiceBox(dim=16, depth=1, heads=1, head_dim=16)
    wavs = [torch.from_numpy(voices.speak(voices.compose(i), 24_000)) for i in range(8)]
    rows = torch.cat([model.features(wav[None])[0] for wav in wavs])
    assert abs(rows.mean()) < 0.2
    assert 0.8 < rows.std() < 1.2


def test_times_are_told_apart():
    actual = sinusoidal_embedding(torch.tensor([0.0, 0.001, 0.5, 1.0]))
    assert torch.cdist(actual, actual).fill_diagonal_(1).min() > 0.1
