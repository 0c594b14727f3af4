"""Phonemes of a text, in IPA, by espeak-ng (`quintet[phonemes]`).

The package espeakng-loader carries the library and its data for a hundred languages; it is called
directly, because wrappers bring a dozen packages for one function. Punctuation stays, for pauses.

A token is what takes time: a phoneme with its marks of stress and length (`ˈaɪ` is one), or a run
of punctuation. The first phoneme of a word begins with a space. Marks and spaces as tokens of their
own would need a frame each, taken from their neighbours.

Ids: each symbol has one in the vocabulary of bytes (ASCII as there, then the IPA extensions of
Unicode, then `MODIFIERS`). The id of a token holds those of its symbols as digits, and its
embedding is the sum of theirs: a stressed vowel shares with the unstressed one, and no language
needs a list of its phonemes. Exports copy this module: it loads no torch.
"""

import ctypes
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from quintet.speech.text.characters import FIRST, VOCABULARY
from quintet.suggest import among

MOST = 7
"""Symbols of a token: so many digits fit into an id of 64 bits."""
IPA = range(0x250, 0x2B0)
MODIFIERS = "ˈˌːˑʰʲʷˠˤˡⁿæçðøħŋœβθχᵻ\u0303\u0329\u032a\u032f\u0325\u030a\u031a\u031d\u033a\u033b"
DROPPED = "\u0361\u200d\u031eᵝ"
"""Ties between symbols, and shades that no language here tells apart."""
_BY_CODE = {ord(symbol): 128 + len(IPA) + place for place, symbol in enumerate(MODIFIERS)}
_SAME = str.maketrans("äéᵊˀεß，、。！？；：—–…", "aeəʔɛs,,.!?;:--.")
_SWITCH = re.compile(r"\([a-z]{2,3}(-[a-z]+)*\)")
"""Marks of words in another language."""
_PUNCTUATION = re.compile(r"([,;:.!?…—–。，、！？；：]+)")
_UTF8, _IPA_MODE, _SEPARATOR = 1, 2, "_"
_FALLBACK = {"zh": "cmn", "no": "nb", "iw": "he"}


def phoneme_ids(tokens: Iterable[str], edges: bool = False) -> list[int]:
    """Ids; ValueError for a symbol without one. `edges` adds a space at both ends."""
    tokens = (" ", *tokens, " ") if edges else tokens
    return [_id(token) for token in tokens]


@cache
def _id(token: str) -> int:
    return pack([FIRST + _code(symbol) for symbol in token])


def _code(symbol: str) -> int:
    code = ord(symbol)
    if code < 128:
        return code
    if code in IPA:
        return 128 + code - IPA.start
    if code in _BY_CODE:
        return _BY_CODE[code]
    raise ValueError(f"the phoneme {symbol!r} U+{code:04X} has no id; report its language")


def pack(symbols: Sequence[int]) -> int:
    """The id of a token; that of a single symbol is its own."""
    return sum(symbol * VOCABULARY**place for place, symbol in enumerate(symbols[:MOST]))


@lru_cache(maxsize=1 << 16)
def phonemes(text: str, language: str) -> tuple[str, ...]:
    """The tokens of the text; joined, they are its IPA with punctuation."""
    espeak = _espeak()
    espeak.espeak_SetVoiceByName(_voice(language).encode())
    tokens: list[str] = []
    for place, part in enumerate(_PUNCTUATION.split(text)):
        if place % 2:
            tokens.append("".join(dict.fromkeys(part.translate(_SAME))))
        else:
            tokens += [token for word in _spoken(espeak, part).split() for token in _tokens(word)]
    return tuple(tokens)


def _tokens(word: str) -> list[str]:
    """Tokens of a word, as espeak divides it."""
    word = normalised(_SWITCH.sub("", word))
    tokens = [token for token in word.split(_SEPARATOR) if token]
    return [f" {tokens[0]}", *tokens[1:]] if tokens else []


def normalised(phonemes: str) -> str:
    """With the symbols that have ids."""
    return "".join(symbol for symbol in phonemes.translate(_SAME) if symbol not in DROPPED)


def _spoken(espeak: Any, text: str) -> str:
    if not text.strip():
        return ""
    content = ctypes.create_string_buffer(text.encode("utf-8"))
    rest = ctypes.c_void_p(ctypes.addressof(content))
    clauses: list[str] = []
    mode = _IPA_MODE | ord(_SEPARATOR) << 8
    while rest.value:
        clauses.append(espeak.espeak_TextToPhonemes(ctypes.byref(rest), _UTF8, mode).decode())
    return " ".join(clauses)


@cache
def _voice(language: str) -> str:
    """The voice of a language tag: `pt-BR` as it is, `fr-fr` as `fr`, `zh-CN` as `cmn`."""
    tag = language.replace("_", "-").lower()
    short = tag.partition("-")[0]
    for name in (tag, short, _FALLBACK.get(short, "")):
        if name and _espeak().espeak_SetVoiceByName(name.encode()) == 0:
            return name
    known = among(tag, _languages())
    raise ValueError(f"espeak-ng does not know the language '{language}'; {known}")


def require_language(language: str) -> None:
    """ValueError with the languages that there are."""
    _voice(language)


def _languages() -> list[str]:
    import espeakng_loader  # pyright: ignore[reportMissingImports]

    dictionaries = Path(espeakng_loader.get_data_path()).glob("*_dict")
    return sorted(path.name.removesuffix("_dict") for path in dictionaries)


@cache
def _espeak() -> Any:
    try:
        import espeakng_loader  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "phonemes need espeakng-loader: pip install 'quintet[phonemes]'"
        ) from error
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    function = library.espeak_TextToPhonemes
    function.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int]
    function.restype = ctypes.c_char_p
    retrieval, no_exit = 1, 0x8000
    data = espeakng_loader.get_data_path().encode()
    if library.espeak_Initialize(retrieval, 0, data, no_exit) < 0:
        raise ImportError("espeak-ng cannot read its data; reinstall espeakng-loader")
    return library
