"""English text -> words that a character-level checkpoint can say.

The shipped checkpoint knows the letters, the space and `' . , ? ! - ;`. This front end turns
everything else into those: numbers, money, times, dates, ordinals, units, addresses,
abbreviations, acronyms and symbols become words (`spoken_numbers` has the rules for digits),
accented and foreign letters become plain ones (`anyascii`). Nothing that can be named is dropped
silently: a character without a spelling is read by its Unicode name.

It is pure text to text and imports neither torch nor vLLM.
"""

from __future__ import annotations

import re
import unicodedata

from anyascii import anyascii

from voxnative.spoken_numbers import NUMBER_RULES, spell_digits
from voxnative.text_rules import Rule, closing_stop, longest_first

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


def _abbreviation(match: re.Match[str]) -> str:
    name = match[1].lower()
    may_close = name in ("etc", "a.m", "p.m") or not match.string[match.end() :].strip()
    return ABBREVIATIONS[name] + (closing_stop(match) if may_close else "")


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
        return f" {spell_digits(str(unicodedata.digit(char)))} "
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


RULES: tuple[Rule, ...] = (
    (
        re.compile(r"https?://\S+|\bwww\.\S+|\b[\w.+-]+@[\w-]+\.[\w.-]+|\b[\w-]+\.(?:com|org|net|io|dev)\b\S*"),
        _url,
    ),
    *NUMBER_RULES,
    (
        re.compile(
            rf"\b({longest_first(ABBREVIATIONS)})\.(?=\W|$)",
            re.IGNORECASE,
        ),
        _abbreviation,
    ),
    (re.compile(r"\b([A-Z]{2,})(s?)\b"), _acronym),
    (re.compile(r"(?<![\w'.])([B-HJ-Zb-hj-z])(?![\w'])"), lambda m: LETTER_NAMES[m[1].lower()]),
)  # fmt: skip
