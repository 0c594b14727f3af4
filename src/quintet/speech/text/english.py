"""Numbers and abbreviations of English texts as words.

A table of our own instead of a package: where numbers stand in a text (years, prices, ordinals,
clock times) has to be found here anyway, and the words that a model was trained on must not change
with the version of a package.
"""

import re

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = {"trillion": 10**12, "billion": 10**9, "million": 10**6, "thousand": 1000, "hundred": 100}
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
ABBREVIATIONS = {
    "Mr": "mister",
    "Mrs": "missus",
    "Ms": "miz",
    "Dr": "doctor",
    "Prof": "professor",
    "St": "saint",
    "Jr": "junior",
    "Sr": "senior",
    "Rev": "reverend",
    "Gen": "general",
    "Col": "colonel",
    "Capt": "captain",
    "Lt": "lieutenant",
    "Sgt": "sergeant",
    "Co": "company",
    "Ltd": "limited",
    "No": "number",
    "vs": "versus",
    "etc": "et cetera",
    "e.g": "for example",
    "i.e": "that is",
}
CURRENCIES = {"$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny")}
SYMBOLS = {"%": " percent", "&": " and ", "+": " plus ", "=": " equals ", "@": " at "}

_ABBREVIATION = re.compile(
    r"\b(" + "|".join(sorted(map(re.escape, ABBREVIATIONS), key=len, reverse=True)) + r")\."
)
_MONEY = re.compile(r"([$€£])(\d[\d,]*)(?:\.(\d\d))?(?!\d)(?:\s+(thousand|[mb]illion|trillion))?")
_CLOCK = re.compile(r"\b([01]?\d|2[0-3]):([0-5]\d)\b")
_ORDINAL = re.compile(r"\b(\d[\d,]*)(?:st|nd|rd|th)\b")
_DECIMAL = re.compile(r"(\d[\d,]*)\.(\d+)")
_YEAR = re.compile(r"\b(1[1-9]\d\d|20\d\d)\b(?![,.]\d)")
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+|\d+")


def spelled_out(text: str) -> str:
    """ "Dr. Lee paid $4.50 in 1984" -> "doctor Lee paid four dollars fifty cents in nineteen …".

    A number of four digits from 1100 to 2099 is read as a year.
    """
    text = _ABBREVIATION.sub(_abbreviation, text)
    text = _MONEY.sub(_money, text)
    text = _CLOCK.sub(lambda match: _pair(int(match[1]), int(match[2]), "o'clock"), text)
    text = _ORDINAL.sub(lambda match: ordinal(_int(match[1])), text)
    text = _DECIMAL.sub(lambda match: f"{cardinal(_int(match[1]))} point {digits(match[2])}", text)
    text = _YEAR.sub(lambda match: year(int(match[1])), text)
    text = _NUMBER.sub(_number, text)
    for symbol, word in SYMBOLS.items():
        text = text.replace(symbol, word)
    return " ".join(text.split())


def cardinal(number: int) -> str:
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = TENS[number // 10 - 2], number % 10
        return f"{tens}-{ONES[ones]}" if ones else tens
    name, scale = next((name, scale) for name, scale in SCALES.items() if number >= scale)
    rest = f" {cardinal(number % scale)}" if number % scale else ""
    return f"{cardinal(number // scale)} {name}{rest}"


def ordinal(number: int) -> str:
    words = cardinal(number)
    start = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[start:]
    if last.endswith("y"):
        return f"{words[:-1]}ieth"
    return words[:start] + ORDINALS.get(last, last + ("h" if last.endswith("t") else "th"))


def year(number: int) -> str:
    """1984, 1900, 1905; 2000 to 2009 are cardinals."""
    return cardinal(number) if number % 1000 < 10 else _pair(*divmod(number, 100), "hundred")


def _pair(high: int, low: int, even: str) -> str:
    """Two numbers below 100; `even` stands for a second one of 0."""
    if not low:
        return f"{cardinal(high)} {even}"
    return f"{cardinal(high)} {'oh ' if low < 10 else ''}{cardinal(low)}"


def digits(text: str) -> str:
    return " ".join(ONES[int(digit)] for digit in text)


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _number(match: re.Match[str]) -> str:
    text = match[0]
    long = len(text) > 15 or (text.startswith("0") and len(text) > 1)
    return digits(text) if long else cardinal(_int(text))


def _abbreviation(match: re.Match[str]) -> str:
    word = ABBREVIATIONS[match[1]]
    # "No." is a number before digits only, and the point of the last word ends its sentence.
    if match[1] == "No" and not re.match(r"\s*\d", match.string[match.end() :]):
        return match[0]
    return word if match.string[match.end() :].strip() else f"{word}."


def _money(match: re.Match[str]) -> str:
    one, part = CURRENCIES[match[1]]
    whole, cents, scale = _int(match[2]), int(match[3] or 0), match[4]
    if scale:
        point = f" point {digits(match[3])}" if match[3] else ""
        return f"{cardinal(whole)}{point} {scale} {one}s"
    words = [f"{cardinal(whole)} {one}{'' if whole == 1 else 's'}"] if whole or not cents else []
    parts = "pence" if part == "penny" else f"{part}s"
    words += [f"{cardinal(cents)} {part if cents == 1 else parts}"] if cents else []
    return " ".join(words)
