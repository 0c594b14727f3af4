"""Marks in texts: how they are read, refused, divided into parts, and what durations become."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.speech.text.characters import clean
from quintet.speech.text.markup import Mark, escaped, fixed_seconds, parse, parts_of
from quintet.speech.text.spelling import ids_of, passages
from quintet.speech.text.timing import Span, Timing, shared_out, timed, units_of
from quintet.speech.voicebox.config import VoiceBoxConfig

BYTES = VoiceBoxConfig(edges=False)
EDGES = VoiceBoxConfig(spell_out=True)
RATE = 24_000 / 256


def marks(text: str) -> list[tuple[object, ...]]:
    return [mark[:5] for mark in parse(text).marks]


def test_marks_are_read_with_their_places() -> None:
    text = "ba <break 400ms> do [rate 0.8]ki <break 0.5s>tu[/rate] [length 600ms]la[/length]"
    assert parse(text).text == "ba  do ki tu la"
    assert marks(text) == [
        ("break", 2, 2, 0.4, ()),
        ("rate", 4, 8, 0.8, ()),
        ("break", 6, 6, 0.5, ()),
        ("length", 8, 10, 0.6, ()),
    ]
    assert marks("ba {h ə l oʊ} do") == [("phonemes", 2, 7, 0.0, ("h", "ə", "l", "oʊ"))]


@pytest.mark.parametrize("text", ["x < 3", "[1] a", "a ] b > c }", "a\\b", "5 <6> [ ] <>", "a\n b"])
def test_signs_that_begin_no_mark_are_themselves(text: str) -> None:
    assert parse(text) == (text, (), 1.0, 0.0)


@given(st.text())
def test_an_escaped_text_is_read_as_it_stands(text: str) -> None:
    assert parse(escaped(text)) == (text, (), 1.0, 0.0)


SIGNS = st.text(st.characters(codec="ascii", categories=["L", "Nd"]), min_size=1, max_size=6)
MARKED = st.lists(
    SIGNS
    | st.integers(20, 10_000).map("<break {}ms>".format)
    | st.tuples(st.floats(0.25, 4), SIGNS).map(lambda pair: "[rate {:.3f}]{}[/rate]".format(*pair))
    | st.tuples(st.integers(20, 9000), SIGNS).map(
        lambda pair: "[length {}ms]{}[/length]".format(*pair)
    ),
    min_size=1,
    max_size=8,
)


@given(MARKED, SIGNS, st.integers(8, 40))
def test_parts_have_all_words_and_times_of_a_text(pieces: list[str], word: str, limit: int) -> None:
    marked = parse(" ".join([*pieces, word]))
    parts = parts_of(marked, limit)
    assert [part.marked.text for part in parts] == [p.text for p in passages(marked.text, limit)]
    breaks = [mark for mark in marked.marks if mark.kind == "break"]
    inside = [mark for part in parts for mark in part.marked.marks if mark.kind == "break"]
    lengths = [mark.value for p in parts for mark in p.marked.marks if mark.kind == "length"]
    assert lengths == [mark.value for mark in marked.marks if mark.kind == "length"]
    outside = sum(part.pause for part in parts[:-1] if part.pause not in (0.12, 0.35))
    assert sum(m.value for m in inside) + outside <= sum(m.value for m in breaks) + 1e-9
    if len(parts) == 1:
        assert parts[0].marked.marks == marked.marks
        assert fixed_seconds(parts[0].marked) == fixed_seconds(marked)


def test_a_break_between_sentences_is_the_pause_there() -> None:
    text = "Ba do ki tu. <break 1s> Ki [rate 2]tu ba do. Ma ba[/rate] ki <break 2s> do."
    parts = parts_of(parse(text), 14)
    assert [(part.marked.text, part.pause) for part in parts] == [
        ("Ba do ki tu.", 1.0),
        ("Ki tu ba do.", 0.35),
        ("Ma ba ki do.", 0.0),
    ]
    inside = [[mark[:4] for mark in part.marked.marks] for part in parts]
    assert inside == [[], [("rate", 2, 9, 2.0)], [("rate", 0, 4, 2.0), ("break", 6, 6, 2.0)]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ba <brake 400ms>", "'<brake 400ms>' at character 4 is unknown; marks are <break 400ms>"),
        ("[laughs] ba", r"'[laughs]' at character 1 is unknown"),
        ("a <b and c", "'<' at character 3 is not closed"),
        ("ba {h ə", "'{' at character 4 is not closed"),
        ("[rate 0.8]ba", "'[rate 0.8]' at character 1 has no end; write [/rate]"),
        ("ba[/rate]", "ends no [rate] that is open here; write [rate …] first"),
        ("[rate 2]a[length 1s]b[/rate]c[/length]", "[/length] is first"),
        ("[rate 2] [/rate] a", "has no words"),
        ("[rate 0.2]a[/rate]", "out of bounds; give 0.25 (slow) to 4 (fast)"),
        ("[rate fast]a[/rate]", "has no factor; write it as [rate 0.8]"),
        ("<break 19ms> a", "out of bounds; give 20ms to 10s"),
        ("<break 11s> a", "out of bounds; give 20ms to 10s"),
        ("<break 400> a", "has no time; write it as <break 400ms>"),
        ("<break> a", "has no time"),
        ("[length 1s]a [length 1s]b[/length][/length]", "inside of another length"),
        ("[length 1s]a <break 1s> b[/length]", "inside of a length; write it before or after"),
        ("{} a", "is no list of phonemes"),
        ("{h ☃} a", "has no id"),
        ("a" + "<break 10s>" * 13, "add up to 130 s, more than 120"),
        ("<break 1s>", "the text is empty"),
    ],
)
def test_what_is_malformed_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse(text)
    assert sentence in str(refused.value)


def test_a_length_that_goes_on_after_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="at character 4 goes on after a sentence"):
        parts_of(parse("Ba [length 2s]do ki. Tu la[/length]."), 10)


# -- units and durations --------------------------------------------------------------------------


@pytest.mark.parametrize("config", [BYTES, EDGES])
@pytest.mark.parametrize(
    "text",
    [
        "ba <break 1s> dé, ki",
        "I have [rate 2]3 cats[/rate] and [length 1s]21[/length] dogs. <break 1s>",
        "<break 1s>No. 7 [rate 0.5]is here[/rate]",
    ],
)
def test_units_are_those_of_the_plain_text(text: str, config: VoiceBoxConfig) -> None:
    marked = parse(text)
    ids, timing = units_of(marked, config)
    assert ids == ids_of(clean(marked.text), config)
    assert len(timing.rates) == len(ids)


def test_marks_find_their_words_and_a_break_its_pause() -> None:
    def units(text: str, span: Span) -> str:
        ids = units_of(parse(text), BYTES)[0][span.first : span.last]
        return bytes(number - 2 for number in ids).decode()

    text = "é [length 1s]dé, ki[/length], <break 1s> tu"
    timing = units_of(parse(text), BYTES)[1]
    assert units(text, timing.lengths[0]) == "dé, ki"
    assert units(text, timing.breaks[0]) == ", "
    inserted = units_of(parse("ba<break 1s>do"), BYTES)[1].breaks[0]
    assert (inserted.first, inserted.last) == (2, 2)
    merged = units_of(parse("ba <break 1s>, <break 0.5s> do"), BYTES)[1].breaks
    assert [span.seconds for span in merged] == [1.5]
    product = units_of(parse("[rate 2]ba [rate 1.5]do[/rate][/rate] ki"), BYTES)[1]
    assert product.rates == (2, 2, 2, 3, 3, 1, 1, 1)


def test_a_number_that_is_read_otherwise_alone_keeps_its_place() -> None:
    """ "No." is a number before digits only."""
    ids, timing = units_of(parse("No. <break 1s> 7"), EDGES)
    assert bytes(number - 2 for number in ids).decode() == " No. seven "
    (span,) = timing.breaks
    assert bytes(number - 2 for number in ids[span.first : span.last]) == b". "


def test_letters_are_no_phonemes() -> None:
    with pytest.raises(ValueError, match="this model reads letters; write the word, or train"):
        units_of(parse("{h ə}"), BYTES)


def test_spelled_phonemes_replace_a_word() -> None:
    pytest.importorskip("espeakng_loader")
    config = VoiceBoxConfig(phonemes="en-us", edges=True)
    plain = units_of(parse("say hello <break 1s> to me"), config)[0]
    marked = parse("say {h ə l ˈoʊ} <break 1s> to me")
    ids, timing = units_of(marked, config)
    assert ids[:4] == plain[:4]
    assert len(ids) == len(timing.rates)
    assert marked.marks[0].tokens == ("h", "ə", "l", "ˈoʊ")
    (span,) = timing.breaks
    assert span.first == span.last == 1 + 2 + 4, "an edge, s eɪ, and the word"
    with_comma = units_of(parse("hello, <break 1s> you"), config)[1].breaks[0]
    assert with_comma.last - with_comma.first == 1, "the comma is the pause"
    rated = units_of(parse("say hello [rate 2]to me[/rate]"), config)
    assert rated[0] == ids_of("say hello to me", config), "its stress is that of the whole text"


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40), st.integers(0, 500))
def test_shares_add_up(weights: list[float], total: int) -> None:
    shares = shared_out(weights, total)
    assert sum(shares) == total
    assert min(shares) >= (total >= len(weights))


def test_a_hundred_requests_are_exact_and_leave_the_rest_as_it_was() -> None:
    for number in range(100):
        random = Random(number)
        words = ["".join(random.choices("abdeiklmnost", k=random.randint(1, 9))) for _ in range(6)]
        pause, length = random.randint(100, 900), random.randint(120, 900)
        plain = " ".join(words)
        words[1] = f"[length {length}ms]{words[1]}[/length]"
        words[2] += f" <break {pause}ms>" if number % 2 else f"<break {pause}ms>"
        words[4] = f"[rate {random.uniform(0.5, 2):.2f}]{words[4]}[/rate]"
        ids, timing = units_of(parse(" ".join(words)), BYTES)
        predicted = [random.uniform(1, 20) for _ in ids]
        rounded = [round(value) for value in predicted]
        units, durations, pauses = timed(predicted, rounded, timing, RATE)
        assert bytes(unit - 2 for unit in ids).decode() == plain
        (silent,) = pauses
        assert abs(silent.frames / RATE - pause / 1000) <= 0.5 / RATE + 1e-9
        (span,), (broken,) = timing.lengths, timing.breaks
        frames = dict(zip(units, durations))
        own = sum(frames[unit] for unit in range(span.first, span.last))
        assert abs(own / RATE - length / 1000) <= 0.5 / RATE + 1e-9
        for unit, rate in enumerate(timing.rates):
            in_mark = span.first <= unit < span.last or broken.first <= unit < broken.last
            if rate == 1 and not in_mark:
                assert frames[unit] == rounded[unit]
        rated = [unit for unit, rate in enumerate(timing.rates) if rate != 1]
        asked = sum(predicted[unit] for unit in rated) / timing.rates[rated[0]]
        assert sum(frames[unit] for unit in rated) == max(len(rated), round(asked))
        total = random.randint(400, 900)
        _, durations, pauses = timed(predicted, rounded, timing, RATE, total)
        assert sum(durations) - pauses[0].solved + pauses[0].frames == total


def test_times_that_do_not_fit_are_refused() -> None:
    timing = Timing((1.0,) * 4, (Span(0, 3, 0.02, "[length 20ms]"),))
    with pytest.raises(ValueError, match="too short for its sounds; give 32ms or more"):
        timed([2.0] * 4, [2] * 4, timing, RATE)
    timing = Timing((1.0,) * 4, breaks=(Span(2, 2, 1.0),))
    with pytest.raises(ValueError, match="do not suit the 4 sounds"):
        timed([2.0] * 4, [2] * 4, timing, RATE, 90)


def test_a_pause_is_solved_no_longer_than_in_the_plain_text() -> None:
    timing = units_of(parse("ba <break 1s> do"), BYTES)[1]
    durations = [3, 4, 9, 5, 6]
    units, frames, (pause,) = timed([float(d) for d in durations], durations, timing, RATE)
    assert (units, frames) == ([0, 1, 2, 3, 4], durations)
    assert pause == (7, 9, 94)
    _, frames, (pause,) = timed([float(d) for d in durations], durations, timing, RATE, cut=False)
    assert pause.solved == pause.frames == frames[2] == 94


def test_a_break_at_the_start_takes_in_the_space_after_a_reference() -> None:
    timing = Timing((1.0, 2.0), breaks=(Span(0, 0, 1.0), Span(2, 2, 1.0))).after(1)
    assert timing.rates == (1.0, 1.0, 2.0)
    assert [tuple(span[:2]) for span in timing.breaks] == [(0, 1), (3, 3)]


def test_places_of_marks_rise() -> None:
    text = "[rate 2]a [length 1s]b[/length] c[/rate] <break 1s> d"
    assert all(a.start <= b.start for a, b in pairwise(parse(text).marks))
    assert all(isinstance(mark, Mark) for mark in parse(text).marks)
