"""Judges of music: retrieval by counting, and Frechet distances of sets of sounds."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from quintet.engine.errors import RunError
from quintet.judges import vggish
from quintet.judges.media import music
from quintet.judges.media.music import Recording
from quintet.media.audio import write_wav
from quintet.shared.outputs import Caption

RATE = 16_000


def sounds(count, size=0.0, seed=0, seconds=2.0):
    draw = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE)) / RATE
    for _ in range(count):
        chord = draw.uniform(200, 2000, 3)[:, None]
        wav = np.sin(2 * np.pi * chord * time).mean(0) * 0.5
        yield recording(wav + size * draw.normal(size=wav.shape))


def recording(wav, rate=RATE):
    return Recording(np.asarray(wav, np.float32), rate, None)  # type: ignore[arg-type]


# -- retrieval ------------------------------------------------------------------------------


def retrieval(audio, text, k, captions=None):
    """Recall of texts by sounds, and of sounds by texts."""
    return tuple(music._hits(audio, text, k, captions).mean(0))


def test_what_equals_its_own_counterpart_is_found():
    assert retrieval(np.eye(5), 3 * np.eye(5), 1) == (1, 1)


def test_ties_count_against():
    same = np.ones((20, 4))
    assert retrieval(same, same, 1) == (0, 0)
    assert retrieval(same, same, 19) == (0, 0)
    assert retrieval(same, same, 20) == (1, 1)
    draw = np.random.default_rng(0)
    twice = np.repeat(draw.normal(size=(7, 33)), 2, 0)  # equal rows, at any place of a product
    assert retrieval(twice, twice, 1) == (0, 0)
    assert retrieval(twice, twice, 2) == (1, 1)


def test_sounds_with_equal_captions_are_equally_right():
    audio = np.array([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0]])
    text = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert retrieval(audio, text, 1) == (1 / 3, 2 / 3)
    assert retrieval(audio, text, 1, ["a", "a", "b"]) == (1, 1)
    same = np.ones((20, 4))
    assert retrieval(same, same, 1, ["a"] * 10 + ["b"] * 10) == (0, 0)


def test_directions_differ():
    audio = np.array([[1.0, 0.0], [0.9, 0.1]])
    text = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert retrieval(audio, text, 1) == (0.5, 1)
    captions = [Caption(str(number), vector) for number, vector in enumerate(text)]
    judges = (music.RecallAt1OfText(), music.RecallAt1OfAudio(), music.RecallAt1())
    assert [one.mean(one.rows(captions, [*audio])) for one in judges] == [0.5, 1, 0.75]


def test_ranks_are_those_of_sorting_across_chunks(monkeypatch):
    monkeypatch.setattr(music, "_CHUNK", 7)
    draw = np.random.default_rng(0)
    audio = draw.normal(size=(40, 6))
    text = audio + draw.normal(size=(40, 6))
    a, t = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (audio, text))
    for k in (1, 10):
        both = []
        for table in (a @ t.T, t @ a.T):
            order = np.argsort(-table, 1)[:, :k]
            both.append(np.mean([i in row for i, row in enumerate(order)]))
        assert retrieval(audio, text, k) == pytest.approx(tuple(both))
        judge = music.RecallAt1() if k == 1 else music.RecallAt10()
        captions = [Caption(str(number), vector) for number, vector in enumerate(text)]
        assert judge.mean(judge.rows(captions, list(audio))) == pytest.approx(np.mean(both))


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_embeddings_without_a_direction_are_refused(bad):
    rows = np.eye(3)
    rows[1] = bad
    with pytest.raises(RunError, match="zero or not finite"):
        retrieval(np.eye(3), rows, 1)
    with pytest.raises(RunError, match="not pairs"):
        retrieval(np.eye(3), np.eye(3)[:2], 1)


# -- spectrograms ---------------------------------------------------------------------------


def test_windows_are_side_by_side_and_the_rest_is_dropped():
    count = lambda seconds: len(vggish.log_mel_windows(torch.randn(round(seconds * RATE))))
    assert [count(s) for s in (0.2, 0.975, 1.9, 1.935, 10)] == [1, 1, 1, 2, 10]
    wav = torch.randn(3 * RATE, dtype=torch.float64)
    whole, cut = vggish.log_mel_windows(wav), vggish.log_mel_windows(wav[96 * 160 :])
    torch.testing.assert_close(whole[1:], cut[: len(whole) - 1])


def test_silence_is_the_offset_and_a_tone_is_in_its_band():
    silent = vggish.log_mel_windows(torch.zeros(RATE))
    torch.testing.assert_close(silent, torch.full_like(silent, np.log(0.01)))
    wav = torch.sin(2 * torch.pi * 1000 * torch.arange(RATE) / RATE)
    band = int(vggish.log_mel_windows(wav).mean((0, 1)).argmax())
    mel = lambda hz: 1127 * np.log1p(hz / 700)
    centres = np.linspace(mel(125), mel(7500), 66)[1:-1]
    assert band == np.abs(centres - mel(1000)).argmin()


def test_filters_are_triangles_of_height_one_in_mel():
    matrix = vggish.mel_matrix()
    assert matrix.shape == (257, 64)
    assert 0.5 < float(matrix.max()) <= 1
    # Neighbouring triangles add up to one between the first centre and the last.
    inside = matrix.sum(1)[6:230]
    torch.testing.assert_close(inside, torch.ones_like(inside))


# -- distances ------------------------------------------------------------------------------


def distance(judge, references, outputs):
    return judge.distance(judge.features(list(references)), judge.features(list(outputs)))


def test_the_mel_distance_of_a_set_from_itself_is_nothing_and_grows_with_noise():
    judge = music.MelDistance()
    values = [distance(judge, sounds(20), sounds(20, size)) for size in (0, 0.01, 0.05, 0.2)]
    assert values[0] == pytest.approx(0, abs=1e-4)
    assert values == sorted(values)
    assert values[1] > 100 * max(values[0], 1e-6)


def test_sounds_of_any_length_are_in_one_set():
    judge = music.MelDistance()
    mixed = [*sounds(4), *sounds(4, seconds=5), *sounds(2, seconds=0.5)]
    features = judge.features(mixed)
    assert features.shape == (10, 5, 128)
    assert int((~np.isnan(features[..., 0])).sum()) == 4 * 2 + 4 * 5 + 2
    # What is kept of a sound does not depend on the others.
    np.testing.assert_array_equal(judge.features(mixed[:1])[0], features[0, :2])
    assert judge.distance(features, features) == pytest.approx(0, abs=1e-4)


def test_features_of_several_calls_are_those_of_one():
    """Sounds of a folder come in chunks, whose longest differ."""
    judge, draw = music.MelDistance(), np.random.default_rng(0)
    sounds = [recording(0.1 * draw.normal(size=n * RATE)) for n in (1, 2, 5)]
    whole = judge.features(sounds)
    apart = judge.joined([judge.features(sounds[:2]), judge.features(sounds[2:])])
    np.testing.assert_array_equal(apart, whole)


def test_other_rates_and_sets_too_small_are_refused():
    judge = music.MelDistance()
    with pytest.raises(RunError, match="16000 Hz"):
        judge.features([recording(np.ones(RATE), 24_000)])
    one = judge.features(list(sounds(1, seconds=1)))
    with pytest.raises(RunError, match="two windows"):
        judge.distance(one, one)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QUINTET_JUDGES", str(tmp_path))
    music._network.cache_clear()
    yield tmp_path
    music._network.cache_clear()


def test_without_weights_a_sentence_says_where_they_go(folder):
    problem = music.AudioDistance().problem()
    assert problem is not None
    assert "VGGish" in problem
    assert str(folder / "vggish") in problem
    assert music.MelDistance().problem() is None


def test_parameters_have_the_names_and_shapes_of_the_port():
    with torch.device("meta"):
        state = vggish.VGGish().state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items() if "weight" in name}
    assert shapes == {
        "features.0.weight": (64, 1, 3, 3),
        "features.3.weight": (128, 64, 3, 3),
        "features.6.weight": (256, 128, 3, 3),
        "features.8.weight": (256, 256, 3, 3),
        "features.11.weight": (512, 256, 3, 3),
        "features.13.weight": (512, 512, 3, 3),
        "embeddings.0.weight": (4096, 12288),
        "embeddings.2.weight": (4096, 4096),
        "embeddings.4.weight": (128, 4096),
    }


def test_the_audio_distance_is_on_the_embeddings_of_the_file(folder):
    torch.manual_seed(0)
    save_file(vggish.VGGish().state_dict(), folder / "vggish.safetensors")
    judge = music.AudioDistance()
    assert judge.problem() is None
    assert len(judge.facts()["weights"]) == 16
    features = judge.features(list(sounds(3)))
    assert features.shape == (3, 2, 128)
    assert judge.distance(features, features) == pytest.approx(0, abs=1e-6)


def test_recordings_are_read_at_the_rate_of_the_network(tmp_path):
    write_wav(tmp_path / "a.wav", next(iter(sounds(1))).wav, 8000)
    one = music.read(tmp_path / "a.wav")
    assert (one.rate, len(one.wav)) == (RATE, 4 * RATE)
    assert "16000 Hz" in music.preparation()["rate"]
