"""English text -> words that a character-level checkpoint can say.

The shipped checkpoint knows the letters, the space and `' . , ? ! - ;`. This front end turns
everything else into those: numbers, money, times, dates, ordinals, units, addresses,
abbreviations, acronyms and symbols become words (`num2words` spells the numbers), accented and
foreign letters become plain ones (`anyascii`). Nothing that can be named is dropped silently:
a character without a spelling is read by its Unicode name.

It is pure text to text and imports neither torch nor vLLM.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

from anyascii import anyascii
from num2words import num2words

SAYABLE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ '.,?!-;")

# Abbreviations end in a full stop that is part of them and ends no sentence.
ABBREVIATIONS = {
    "mr": "mister", "mrs": "missus", "ms": "miz", "dr": "doctor", "prof": "professor",
    "st": "saint", "jr": "junior", "sr": "senior", "gen": "general", "col": "colonel",
    "capt": "captain", "lt": "lieutenant", "sgt": "sergeant", "rev": "reverend",
    "hon": "honorable", "gov": "governor", "sen": "senator", "rep": "representative",
    "etc": "et cetera", "vs": "versus", "e.g": "for example", "i.e": "that is",
    "approx": "approximately", "dept": "department", "est": "established", "fig": "figure",
    "inc": "incorporated", "ltd": "limited", "corp": "corporation", "bros": "brothers",
    "ave": "avenue", "blvd": "boulevard", "rd": "road", "apt": "apartment", "mt": "mount",
    "jan": "January", "feb": "February", "apr": "April", "jun": "June", "jul": "July",
    "aug": "August", "sept": "September", "sep": "September", "oct": "October",
    "nov": "November", "dec": "December", "mon": "Monday", "tue": "Tuesday",
    "wed": "Wednesday", "thu": "Thursday", "fri": "Friday",
    "a.m": "ay em", "p.m": "pee em", "u.s": "you ess", "u.k": "you kay",
    "u.s.a": "you ess ay", "ph.d": "pee aitch dee",
}  # fmt: skip
NUMBERED = re.compile(r"\b(no|nos|vol|ch|pp|p)\.\s*(?=\d)", re.IGNORECASE)
NUMBERED_WORDS = {
    "no": "number ", "nos": "numbers ", "vol": "volume ", "ch": "chapter ", "pp": "pages ",
    "p": "page ",
}  # fmt: skip

# Units after a number: (one, many).
UNITS = {
    "km": ("kilometer", "kilometers"), "m": ("meter", "meters"),
    "cm": ("centimeter", "centimeters"), "mm": ("millimeter", "millimeters"),
    "kg": ("kilogram", "kilograms"), "g": ("gram", "grams"), "mg": ("milligram", "milligrams"),
    "l": ("liter", "liters"), "ml": ("milliliter", "milliliters"), "ft": ("foot", "feet"),
    "mi": ("mile", "miles"), "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"), "mph": ("mile per hour", "miles per hour"),
    "km/h": ("kilometer per hour", "kilometers per hour"), "hz": ("hertz", "hertz"),
    "khz": ("kilohertz", "kilohertz"), "mhz": ("megahertz", "megahertz"),
    "ghz": ("gigahertz", "gigahertz"), "kb": ("kilobyte", "kilobytes"),
    "mb": ("megabyte", "megabytes"), "gb": ("gigabyte", "gigabytes"),
    "tb": ("terabyte", "terabytes"), "ms": ("millisecond", "milliseconds"),
    "s": ("second", "seconds"), "min": ("minute", "minutes"), "h": ("hour", "hours"),
    "hr": ("hour", "hours"), "hrs": ("hour", "hours"), "w": ("watt", "watts"),
    "kw": ("kilowatt", "kilowatts"), "v": ("volt", "volts"),
    "°c": ("degree Celsius", "degrees Celsius"),
    "°f": ("degree Fahrenheit", "degrees Fahrenheit"), "°": ("degree", "degrees"),
}  # fmt: skip

# Money: (one, many, one hundredth, hundredths).
MONEY = {
    "$": ("dollar", "dollars", "cent", "cents"), "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"), "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}  # fmt: skip
SCALES = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion", "tn": "trillion"}

SYMBOLS = {
    "&": "and", "@": "at", "%": "percent", "+": "plus", "=": "equals", "#": "hash", "*": "star",
    "/": "slash", "\\": "backslash", "_": "underscore", "|": "bar", "~": "tilde", "^": "caret",
    "<": "less than", ">": "greater than", "°": "degrees", "×": "times", "÷": "divided by",
    "±": "plus or minus", "≈": "approximately", "≤": "at most", "≥": "at least",
    "≠": "not equal to", "→": "to", "©": "copyright", "®": "registered", "™": "trademark",
    "§": "section", "$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees",
    "½": "one half", "¼": "one quarter", "¾": "three quarters", "²": "squared", "³": "cubed",
    "µ": "micro", "π": "pi", "∞": "infinity", "√": "square root of",
}  # fmt: skip

# Marks that are pauses or typographic variants of what the checkpoint knows.
PAUSES = {
    "—": ", ", "–": ", ", "…": ".", ":": ", ", "(": ", ", ")": ", ", "[": ", ", "]": ", ",
    "{": ", ", "}": ", ", "•": ", ", "·": ", ", "’": "'", "‘": "'", "ʼ": "'", "`": "'", "´": "'",
    "“": " ", "”": " ", '"': " ", "«": " ", "»": " ", "„": " ", "‐": "-", "‑": "-", "−": "-",
    "。": ". ", "，": ", ", "、": ", ", "？": "? ", "！": "! ", "；": "; ", "：": ", ",
    "¿": " ", "¡": " ",
}  # fmt: skip

# Capitals that are words rather than letters to spell.
SPOKEN_ACRONYMS = frozenset(
    (
        "AIDS", "ASAP", "COVID", "FIFA", "GIF", "JPEG", "LASER", "NASA", "NATO", "OPEC",
        "PIN", "RADAR", "RAM", "ROM", "SCUBA", "SIM", "UNICEF",
    )
)  # fmt: skip
LETTER_NAMES = {
    "a": "ay", "b": "bee", "c": "see", "d": "dee", "e": "ee", "f": "eff", "g": "jee",
    "h": "aitch", "i": "eye", "j": "jay", "k": "kay", "l": "ell", "m": "em", "n": "en",
    "o": "oh", "p": "pee", "q": "cue", "r": "are", "s": "ess", "t": "tee", "u": "you",
    "v": "vee", "w": "double you", "x": "ex", "y": "why", "z": "zee",
}  # fmt: skip


# "A" and "I" are words; the other letters are read by name.
LONE_LETTER = re.compile(r"(?<![A-Za-z'])[B-HJ-Zb-hj-z](?![A-Za-z'])")

# What some rule looks for in a text of sayable characters; abbreviations are a matter of their own.
UNUSUAL = (
    re.compile(r"[,;.?!][A-Za-z',;.?!-]"),
    re.compile(r" [ ,;.?!'-]"),
    re.compile(r"-[ -]"),
    re.compile(r"[A-Z][A-Z]"),
    LONE_LETTER,
)


def normalize(text: str) -> str:
    """Spell out `text` for the shipped checkpoint.

    Args:
        text: anything a person writes.

    Returns:
        Text made of `SAYABLE` characters only, with single spaces. A text of nothing but
        blanks and invisible marks comes back empty.
    """
    return _trimmed(text) if is_plain(text) else _spelled_out(text)


def is_plain(text: str) -> bool:
    """Whether no rule has anything to change, as in most sentences of prose.

    All the rules together take longer than the rest of a request's way to the engine.
    """
    return (
        SAYABLE.issuperset(text)
        and not any(pattern.search(text) for pattern in UNUSUAL)
        and not any(_last_word(part).lower() in ABBREVIATIONS for part in text.split(".")[:-1])
    )


def _last_word(text: str) -> str:
    return re.split("[ '-]", text)[-1]


def _spelled_out(text: str) -> str:
    """By all the rules, whether there is something for them or not."""
    text = unicodedata.normalize("NFC", text)
    text = re.sub(r"(?<=\w)[\u2010\u2011\u2212](?=\w)", "-", text)
    text = re.sub(r"(?<=\d)\s*[\u2013\u2014]\s*(?=\d)", " to ", text)
    for pattern, spell in RULES:
        text = pattern.sub(spell, text)
    text = "".join(map(_spell_character, text))
    return _tidy(LONE_LETTER.sub(lambda match: LETTER_NAMES[match[0].lower()], text))


def spell_number(number: str) -> str:
    """Read a number, decimal places digit by digit: "1.50" is "one point five zero"."""
    whole, _, places = number.replace(",", "").partition(".")
    words = _cardinal(int(whole)) if len(whole) <= 15 else _digits(whole)
    return f"{words} point {_digits(places)}" if places else words


def _cardinal(number: int) -> str:
    return num2words(number).replace("-", " ").replace(",", "")


def _digits(digits: str) -> str:
    return " ".join(_cardinal(int(digit)) for digit in digits)


def _year(year: int) -> str:
    return num2words(year, to="year").replace("-", " ")


def _plural(number: str, one: str, many: str) -> str:
    return f"{spell_number(number)} {one if number == '1' else many}"


def _money(match: re.Match[str]) -> str:
    sign, amount, scale = match["sign"], match["amount"], match["scale"]
    one, many, cent, cents = MONEY[sign]
    if scale:
        return f"{spell_number(amount)} {SCALES.get(scale.lower(), scale)} {many}"
    whole, _, places = amount.replace(",", "").partition(".")
    if len(places) not in (0, 2):
        return f"{spell_number(amount)} {many}"
    words = _plural(whole, one, many)
    if places.strip("0"):
        words += f" and {_cardinal(int(places))} {cent if int(places) == 1 else cents}"
    return words


def _time(match: re.Match[str]) -> str:
    hour, minute, half = int(match["hour"]), int(match["minute"]), match["half"] or ""
    if hour > 24 or minute > 59:
        return f"{_cardinal(hour)} {_cardinal(minute)}"
    if minute == 0:
        spoken = f"{_cardinal(hour)}" if half else f"{_cardinal(hour)} o'clock"
    else:
        spoken = f"{_cardinal(hour)} {'oh ' if minute < 10 else ''}{_cardinal(minute)}"
    return f"{spoken} {_half_day(half)}{_closing_stop(match)}" if half else spoken


def _half_day(half: str) -> str:
    return f"{LETTER_NAMES[half[0].lower()]} em"


def _ordinal(match: re.Match[str]) -> str:
    return (
        num2words(int(match[1].replace(",", "")), to="ordinal").replace("-", " ").replace(",", "")
    )


def _iso_date(match: re.Match[str]) -> str:
    year, month, day = (int(part) for part in match.groups())
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0].replace("-", " ")
    return f"{MONTHS[month - 1]} {num2words(day, to='ordinal').replace('-', ' ')}, {_year(year)}"


def _fraction(match: re.Match[str]) -> str:
    top, bottom = int(match[1]), int(match[2])
    if bottom == 2:
        return f"{_cardinal(top)} {'half' if top == 1 else 'halves'}"
    if 3 <= bottom <= 10 and top < bottom:
        part = num2words(bottom, to="ordinal")
        return f"{_cardinal(top)} {part if top == 1 else part + 's'}"
    return f"{_cardinal(top)} slash {_cardinal(bottom)}"


def _telephone(match: re.Match[str]) -> str:
    return ", ".join(_digits(group) for group in match[0].split("-"))


def _number(match: re.Match[str]) -> str:
    number = match[0]
    bare = number.isdigit()
    if bare and len(number) > 1 and number[0] == "0":
        return f" {_digits(number)} "
    if bare and len(number) == 4 and 1100 <= int(number) <= 2099 and int(number) % 1000:
        return f" {_year(int(number))} "
    if bare and len(number) >= 7:
        return f" {_digits(number)} "
    return f" {spell_number(number)} "


def _acronym(match: re.Match[str]) -> str:
    word, plural = match[1], match[2] or ""
    if word in SPOKEN_ACRONYMS or len(word) > 5:
        return word.lower() + plural
    return " ".join(LETTER_NAMES[c] for c in word.lower()) + plural


def _url(match: re.Match[str]) -> str:
    address = re.sub(r"^https?://", "", match[0])
    last = address[-1] if address[-1] in ".,;!?" else ""
    address = address.rstrip(".,;!?/")
    for sign, name in ((".", " dot "), ("@", " at "), ("/", " slash "), ("-", " dash ")):
        address = address.replace(sign, name)
    return address.replace(":", " colon ") + last


def _longest_first(names: Iterable[str]) -> str:
    """Alternatives of a regular expression, longer names before their own beginnings."""
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True))


def _decade(tens: str) -> str:
    year = int(tens) * 10
    words = _year(year) if len(tens) == 3 else _cardinal(year)
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def _closing_stop(match: re.Match[str]) -> str:
    """The full stop of an abbreviation that also ends the sentence."""
    rest = match.string[match.end() :]
    return "." if match[0].endswith(".") and re.match(r"\s+[A-Z]|\s*$", rest) else ""


def _abbreviation(match: re.Match[str]) -> str:
    name = match[1].lower()
    may_close = name in ("etc", "a.m", "p.m") or not match.string[match.end() :].strip()
    return ABBREVIATIONS[name] + (_closing_stop(match) if may_close else "")


def _spell_character(char: str) -> str:
    if char in SAYABLE:
        return char
    if char in PAUSES:
        return PAUSES[char]
    if char in SYMBOLS:
        return f" {SYMBOLS[char]} "
    if char.isspace() or unicodedata.category(char) in ("Cc", "Cf", "Mn", "Me"):
        return " " if char.isspace() else ""  # invisible marks have no sound
    plain = anyascii(char)
    if plain.strip() and all(c in SAYABLE for c in plain):
        return plain
    if char.isdigit():
        return f" {_digits(str(unicodedata.digit(char)))} "
    name = re.sub(r"[^a-z]+", " ", unicodedata.name(char, "unknown character").lower())
    return f" {name} "


def _tidy(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\s+([,.;?!])", r"\1", text)
    text = re.sub(r"[,;]+(?=[,;.?!])", "", text)
    text = re.sub(r"([.?!])[,;]+", r"\1", text)
    text = re.sub(r"([?!])[.?!]+", r"\1", text)
    text = re.sub(r"\.{2,}", ".", text)
    text = re.sub(r"\s+'s\b", "'s", text)
    text = re.sub(r"(?<=[,;])(?=\w)|(?<=[?!])(?=\w)|(?<=\.)(?=[A-Za-z])", " ", text)
    text = re.sub(r"\s*-{2,}\s*|\s-\s|-(?=\s)|(?<=\s)-", ", ", text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\s+([,.;?!])", r"\1", text)
    return _trimmed(text)


def _trimmed(text: str) -> str:
    return text.lstrip(" ,;.").rstrip(" ,;-")


MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_UNIT_NAMES = _longest_first(UNITS)

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
RULES: tuple[Rule, ...] = (
    (
        re.compile(r"https?://\S+|\bwww\.\S+|\b[\w.+-]+@[\w-]+\.[\w.-]+|\b[\w-]+\.(?:com|org|net|io|dev)\b\S*"),
        _url,
    ),
    (re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b"), _iso_date),
    (re.compile(r"(?<![\w.])[-\u2212](?=\d)"), lambda m: "minus "),
    (
        re.compile(
            rf"(?P<sign>[{re.escape(''.join(MONEY))}])\s?(?P<amount>{_NUMBER})"
            r"(?:\s?(?P<scale>million|billion|trillion|thousand|k|m|bn|b|tn)\b)?",
            re.IGNORECASE,
        ),
        _money,
    ),
    (
        re.compile(
            r"\b(?P<hour>\d{1,2}):(?P<minute>\d{2})(?!\d)(?:\s?(?P<half>[ap]\.?m\b\.?))?",
            re.IGNORECASE,
        ),
        _time,
    ),
    (
        re.compile(r"\b(\d{1,2})\s?([ap])\.?m\b\.?", re.IGNORECASE),
        lambda m: f"{_cardinal(int(m[1]))} {_half_day(m[2])}{_closing_stop(m)}",
    ),
    (re.compile(r"\b(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b", re.IGNORECASE), _ordinal),
    (
        re.compile(r"\b(\d{3})0s\b|\b(\d)0s\b|'(\d)0s\b"),
        lambda m: f"{_decade(next(g for g in m.groups() if g))}",
    ),
    (
        re.compile(rf"\b({_NUMBER})\s?({_UNIT_NAMES})(?![\w/])", re.IGNORECASE),
        lambda m: _plural(m[1], *UNITS[m[2].lower()]),
    ),
    (re.compile(r"\b(\d{1,3})/(\d{1,3})\b(?!/)"), _fraction),
    (re.compile(r"(?<![\w-])\d{2,4}(?:-\d{3,4}){1,3}(?![\w-])"), _telephone),
    (re.compile(r"(?<=\d)-(?=\d)"), lambda m: " to "),
    (NUMBERED, lambda m: NUMBERED_WORDS[m[1].lower()]),
    (re.compile(r"#(?=\d)"), lambda m: "number "),
    (re.compile(r"(?<![\d.])\d+(?:\.\d+){2,}"), lambda m: m[0].replace(".", " point ")),
    (re.compile(rf"(?:{_NUMBER})"), _number),
    (
        re.compile(
            rf"\b({_longest_first(ABBREVIATIONS)})\.(?=\W|$)",
            re.IGNORECASE,
        ),
        _abbreviation,
    ),
    (re.compile(r"\b([A-Z]{2,})(s?)\b"), _acronym),
    (re.compile(r"(?<![\w'.])([B-HJ-Zb-hj-z])(?![\w'])"), lambda m: LETTER_NAMES[m[1].lower()]),
)  # fmt: skip
