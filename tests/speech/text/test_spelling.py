"""From written texts to ids: English as words, phonemes, and long texts in parts."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quintet.speech.data import Buckets, SpeechFolder, collate
from quintet.speech.text import phonemes as ipa
from quintet.speech.text.characters import FIRST, PAD, VOCABULARY, byte_ids, clean
from quintet.speech.text.embedding import TokenEmbedding, unpack
from quintet.speech.text.english import cardinal, ordinal, spelled_out, year
from quintet.speech.text.phonemes import MOST, pack
from quintet.speech.text.spelling import num_ids, passages, spell, to_ids
from quintet.speech.voicebox.config import VoiceBoxConfig
from speech.small import MODEL, small_buckets
from speech.test_corpora import record, write

# -- English ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I have 3 cats and 21 dogs.", "I have three cats and twenty-one dogs."),
        ("1,234,567", "one million two hundred thirty-four thousand five hundred sixty-seven"),
        ("in 1984 and 1905", "in nineteen eighty-four and nineteen oh five"),
        ("in 1900 and 2005", "in nineteen hundred and two thousand five"),
        ("the 1st, 22nd, 30th and 12th", "the first, twenty-second, thirtieth and twelfth"),
        ("It costs $42.50.", "It costs forty-two dollars fifty cents."),
        ("$1 and £0.05 and €3 million", "one dollar and five pence and three million euros"),
        ("at 9:05 or 12:00", "at nine oh five or twelve o'clock"),
        ("pi is 3.14", "pi is three point one four"),
        ("50% & more", "fifty percent and more"),
        ("Dr. Lee met Mrs. Fox", "doctor Lee met missus Fox"),
        ("in No. 7, etc.", "in number seven, et cetera."),
        ("No. I said no.", "No. I said no."),
        ("agent 007", "agent zero zero seven"),
        ("nothing to do", "nothing to do"),
    ],
)
def test_numbers_and_abbreviations_become_words(text, words):
    assert spelled_out(text) == words


@given(st.integers(0, 10**15 - 1))
def test_every_number_has_words_and_no_digits(number):
    for words in (cardinal(number), ordinal(number)):
        assert not any(letter.isdigit() for letter in words)
    assert spelled_out(spelled_out(str(number))) == spelled_out(str(number))


def test_a_second_opinion_on_numbers():
    num2words = pytest.importorskip("num2words").num2words
    for number in [*range(1200), 10**6 + 1, 123_456_789]:
        plain = num2words(number).replace(" and ", " ").replace(",", "")
        assert cardinal(number) == plain
        plain = num2words(number, to="ordinal").replace(" and ", " ").replace(",", "")
        assert ordinal(number) == plain
    assert year(1984) == num2words(1984, to="year")


def test_a_model_spells_out_only_english():
    config = VoiceBoxConfig(**MODEL, spell_out=True)
    assert spell("42", config) == spell("42", config, "en-GB") == "forty-two"
    assert spell("42", config, "de") == "42"
    assert to_ids("42", config).tolist() == byte_ids("forty-two")


def test_bytes_are_the_default():
    config = VoiceBoxConfig(**MODEL)
    assert to_ids("Dr. 42", config, "en").tolist() == byte_ids("Dr. 42")


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("text", ["Dr. 42", "größer", "été"])
def test_ids_are_counted_as_they_are_made(text, edges):
    config = VoiceBoxConfig(**MODEL | {"spell_out": True, "edges": edges})
    for language in ("", "en", "de"):
        assert num_ids(text, config, language) == len(to_ids(text, config, language))


# -- phonemes -----------------------------------------------------------------------------------


def test_every_symbol_has_its_own_id_in_the_vocabulary_of_bytes():
    symbols = [chr(code) for code in (*range(128), *ipa.IPA)] + list(ipa.MODIFIERS)
    ids = ipa.phoneme_ids(symbols)
    assert len(set(ids)) == len(symbols) == 256
    assert max(ids) < VoiceBoxConfig().vocabulary
    assert min(ids) == FIRST
    with pytest.raises(ValueError, match=r"U\+4E16"):
        ipa.phoneme_ids("世")


@given(st.lists(st.integers(FIRST, VOCABULARY - 1), min_size=1, max_size=MOST))
def test_the_id_of_a_token_holds_its_symbols(symbols):
    unpacked = unpack(torch.tensor([pack(symbols)]))
    assert unpacked[0, : len(symbols)].tolist() == symbols
    assert not unpacked[0, len(symbols) :].any()
    assert pack(symbols[:1]) == symbols[0]


def test_symbols_beyond_the_most_are_left_out():
    assert pack([2] * (MOST + 1)) == pack([2] * MOST) < 2**63


def test_the_embedding_of_a_token_is_the_sum_of_its_symbols():
    embedding = TokenEmbedding(VoiceBoxConfig(**MODEL, phonemes="en-us"), 4)
    stressed, plain = ipa.phoneme_ids(["ˈa", "a"])
    vectors = embedding(torch.tensor([[stressed, plain, PAD]]))[0]
    (mark,) = embedding(torch.tensor(ipa.phoneme_ids(["ˈ"])))
    torch.testing.assert_close(vectors[0], vectors[1] + mark)
    assert not vectors[2].any()
    of_bytes = TokenEmbedding(VoiceBoxConfig(**MODEL), 4)
    ids = torch.arange(VOCABULARY)
    assert torch.equal(of_bytes(ids), of_bytes.weight)


def test_a_missing_package_is_named(monkeypatch):
    ipa._espeak.cache_clear()
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(ImportError, match=r"quintet\[phonemes\]"):
        ipa.phonemes("a text that is in no cache", "en-us")


class TestEspeak:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("espeakng_loader")
        ipa._espeak.cache_clear()

    @pytest.mark.parametrize(
        ("text", "language", "expected"),
        [
            ("Hello world, a test!", "en-us", " h/ə/l/ˈoʊ/ w/ˈɜː/l/d/,/ ɐ/ t/ˈɛ/s/t/!"),
            ("Guten Morgen...", "de_DE", " ɡ/ˈuː/t/ə/n/ m/ˈɔ/ɾ/ɡ/ə/n/."),
            ("你好，世界。", "zh-CN", " n/i2/χ/ˈɑu2/,/ s./ˈi.5/ tɕ/ˈiɛ5/."),
            ("Что?! iPhone", "ru", " ʃ/t/o/?!/ ˈaɪ/ f/ˈəʊ/n"),
            ("les enfants", "fr", " l/e-/z/ ɑ̃/f/ˈɑ̃"),
            ('"', "en-us", ""),
        ],
    )
    def test_a_token_is_a_phoneme_or_a_run_of_punctuation(self, text, language, expected):
        tokens = ipa.phonemes(text, language)
        assert "/".join(tokens) == expected
        assert len(ipa.phoneme_ids(tokens, edges=True)) == len(tokens) + 2

    def test_an_unknown_language_is_named(self):
        with pytest.raises(ValueError, match="'xq'"):
            ipa.phonemes("hello", "xq")

    def test_the_metadata_decides_on_the_language_of_a_recording(self, tmp_path):
        languages = {"a": "en", "b": "de", "c": ""}
        for name in languages:
            record(tmp_path, f"{name}.wav")
        rows = [
            f'{{"file_name": "{name}.wav", "text": "die", "language": "{language}"}}'
            for name, language in languages.items()
        ]
        write(tmp_path / "metadata.jsonl", "\n".join(rows))
        config = VoiceBoxConfig(**MODEL, phonemes="en-us")
        buckets = Buckets(small_buckets(valid_fraction=0.0).config, config)
        data = SpeechFolder(tmp_path, buckets, "train", 0)
        items = [data.keyed(index, None) for index in range(3)]
        batch = collate(items, buckets)
        assert batch["texts"] == ["die"] * 3
        expected = [ipa.phonemes("die", language) for language in ("en", "de", "en-us")]
        assert expected[0] != expected[1]
        for row, count, sounds in zip(batch["ids"], batch["num_tokens"], expected):
            assert row[: int(count)].tolist() == ipa.phoneme_ids(sounds)
        assert data.size(1)[1] == len(expected[1])


# -- long texts ---------------------------------------------------------------------------------


def test_a_short_text_stays_whole():
    assert [tuple(part) for part in passages("One. Two. Three.", 16)] == [("One. Two. Three.", 0.0)]


def test_sentences_are_spoken_together_as_long_as_they_fit():
    parts = passages("Dr. J. Fox ran. He fell! Why? Nobody, not even he, ever knew it.", 26)
    assert [part.text for part in parts] == [
        "Dr. J. Fox ran. He fell!",
        "Why?",
        "Nobody, not even he,",
        "ever knew it.",
    ]
    assert [part.pause for part in parts] == [0.35, 0.35, 0.12, 0.0]


@given(st.text(st.characters(categories=["L", "P", "Zs"]), min_size=1), st.integers(4, 40))
def test_parts_hold_the_whole_text_within_the_limit(text, limit):
    try:
        whole = clean(text)
    except ValueError:
        return
    parts = passages(text, limit)
    assert all(0 < len(part.text.encode()) <= limit for part in parts)
    assert "".join("".join(part.text for part in parts).split()) == "".join(whole.split())
