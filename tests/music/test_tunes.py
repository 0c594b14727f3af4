"""The built-in music: what the captions say is what is heard."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.music import tunes
from quintet.music.instruments import VOICES, hit, note
from quintet.music.tunes import ATTRIBUTES, HELD_OUT, PHRASES, compose, describe, play, prompts

RATE = 16_000
numbers = st.integers(0, 10**6)


def spectrum(sound: np.ndarray) -> np.ndarray:
    """Energy at each hertz, of length one."""
    power = np.abs(np.fft.rfft(sound, RATE)) ** 2
    return power / np.linalg.norm(power)


# -- what is composed -----------------------------------------------------------------------


def test_held_out_pieces_have_attributes_and_captions_that_all_differ():
    held = [compose(2 * index + 1) for index in range(HELD_OUT)]
    assert len({tune.labels for tune in held}) == HELD_OUT >= 1001
    assert len({tune.captions[0] for tune in held}) == HELD_OUT


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), numbers)
def test_what_is_held_out_is_never_heard_in_training(seed, index):
    held = {compose(2 * k + 1, seed).labels for k in range(0, HELD_OUT, 97)}
    assert compose(2 * index, seed).labels not in held


def test_every_value_of_every_attribute_is_played_about_as_often_as_the_others():
    for parity in (0, 1):
        labels = np.array([compose(2 * index + parity).labels for index in range(1500)])
        for column, values in enumerate(ATTRIBUTES.values()):
            counts = np.bincount(labels[:, column], minlength=len(values))
            assert counts.min() > 0.6 * 1500 / len(values)


@given(numbers, st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_a_piece_is_a_function_of_its_number_and_the_seed(number, seed):
    assert compose(number, seed) == compose(number, seed)
    assert compose(number, seed).seed != compose(number + 1, seed).seed


@given(numbers)
@settings(max_examples=100, deadline=None)
def test_every_caption_says_every_attribute_and_no_other_value(number):
    tune = compose(number)
    assert len(set(tune.captions)) == len(tune.captions) >= 4
    for caption in tune.captions:
        for attribute, value in tune.values.items():
            values = {
                v for v, phrases in PHRASES[attribute].items() if any(w in caption for w in phrases)
            }
            assert values == {value}, (attribute, caption)


def test_captions_are_short_enough_for_the_smallest_text_tower():
    assert max(len(text) for k in range(3000) for text in compose(k).captions) <= 112


def test_words_of_one_value_are_in_no_word_of_another():
    phrases = [(a, v, w) for a, values in PHRASES.items() for v, ws in values.items() for w in ws]
    for attribute, value, word in phrases:
        for other in phrases:
            assert word not in other[2] or other[:2] == (attribute, value)


def test_phrases_say_one_value_and_nothing_else():
    assert set(prompts("tempo")) == set(ATTRIBUTES["tempo"])
    assert prompts("tempo")["slow"] == "a slow melody"
    assert prompts("instrument")["strings"] == "a melody on strings"
    assert describe({}) == "a melody"
    sentences = [sentence for name in ATTRIBUTES for sentence in prompts(name).values()]
    assert len(set(sentences)) == sum(map(len, ATTRIBUTES.values()))


def test_all_attributes_are_said_in_a_sentence_that_people_would_write():
    values = dict(zip(ATTRIBUTES, ("strings", "slow", "minor", "even", "low", "kit")))
    assert describe(values) == (
        "a slow minor melody on strings, low-pitched, in even notes, with a drum kit"
    )


# -- what is heard --------------------------------------------------------------------------


@given(numbers, st.floats(0.1, 6), st.sampled_from([8_000, 16_000, 22_050, 44_100]))
@settings(max_examples=60, deadline=None)
def test_a_piece_is_sound_of_the_length_asked_for(number, seconds, rate):
    actual = play(compose(number), seconds, rate)
    assert actual.dtype == np.float32
    assert actual.shape == (round(seconds * rate),)
    assert np.isfinite(actual).all()
    assert np.abs(actual).max() <= 1


@given(numbers)
@settings(max_examples=25, deadline=None)
def test_no_piece_is_silent_and_hardly_any_is_clipped(number):
    actual = play(compose(number), 4, RATE)
    assert np.sqrt(np.mean(actual**2)) > 0.01
    assert np.mean(np.abs(actual) >= 1) < 1e-3


@given(numbers, st.floats(0.5, 3))
@settings(max_examples=25, deadline=None)
def test_a_longer_piece_begins_as_a_shorter_one_does(number, seconds):
    tune = compose(number)
    short, long = play(tune, seconds, RATE), play(tune, 5, RATE)
    np.testing.assert_allclose(short, long[: len(short)], atol=1e-6)


def test_no_two_pieces_are_alike_even_of_the_same_attributes():
    first = compose(0)
    cycle = 2 * (len(tunes.COMBINATIONS) - HELD_OUT)
    again = compose(cycle)
    assert first.labels == again.labels
    assert not np.array_equal(play(first, 2, RATE), play(again, 2, RATE))


def test_instruments_differ_in_their_spectrum_or_their_course():
    sounds = {name: note(name, 262.0, 0.6, RATE)[:9_000] for name in VOICES}

    def picture(sound: np.ndarray) -> np.ndarray:
        frames = np.resize(sound, 9_000).reshape(9, 1_000) * np.hanning(1_000)
        power = np.abs(np.fft.rfft(frames)).reshape(-1)
        return power / np.linalg.norm(power)

    pictures = np.stack([picture(sound) for sound in sounds.values()])
    alike = pictures @ pictures.T - np.eye(len(pictures))
    assert alike.max() < 0.97, alike.round(2)


@pytest.mark.parametrize("name", list(VOICES))
def test_every_instrument_plays_in_tune(name):
    for hertz in (110.0, 440.0, 987.8):
        actual = spectrum(note(name, hertz, 1.0, RATE)[:RATE])
        near = [actual[round(hertz * k) - 12 : round(hertz * k) + 13].max() for k in (0.5, 1, 2, 3)]
        assert max(near) > 0.05, name


def test_registers_lie_apart():
    low, middle, high = (tunes.REGISTERS[name] for name in ("low", "middle", "high"))
    assert middle - low >= 12 <= high - middle


@pytest.mark.parametrize("drums", ["none", "kick", "shaker", "kit"])
def test_beats_come_at_the_tempo(drums):
    """The loudness of a piece repeats after a beat, and of a faster one sooner."""
    for tempo in tunes.TEMPI:
        tune = next(t for t in map(compose, range(0, 4000, 2)) if t.tempo == tempo)
        tune = replace(tune, drums=drums, instrument="marimba", rhythm="even")
        loud = np.abs(play(tune, 10, RATE)).reshape(-1, 160).mean(1)
        loud -= loud.mean()
        beat = 100 * 60 / tune.bpm
        likeness = [float(loud[:-k] @ loud[k:]) for k in range(1, 120)]
        assert likeness[round(beat) - 1] > 0.4 * float(loud @ loud)
        between = likeness[round(beat / 4) - 1]
        assert between < likeness[round(beat) - 1]


def test_drums_are_heard():
    tune = replace(compose(0), drums="none")
    without = play(tune, 3, RATE)
    for drums in ("kick", "shaker", "kit"):
        assert np.abs(play(replace(tune, drums=drums), 3, RATE) - without).max() > 0.05


@pytest.mark.parametrize("name", ["kick", "snare", "shaker"])
def test_a_stroke_ends_in_silence(name):
    actual = hit(name, RATE)
    assert abs(actual[-1]) < 1e-3 < np.abs(actual).max()


def test_ten_seconds_are_played_in_a_few_milliseconds():
    pieces = [compose(2 * index) for index in range(60)]
    for tune in pieces[:20]:
        play(tune, 10, RATE)  # tables are made once
    spent: list[float] = []
    for tune in pieces:
        begin = time.process_time()
        play(tune, 10, RATE)
        spent.append(time.process_time() - begin)
    assert np.median(spent) < 0.02
