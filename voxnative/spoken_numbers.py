"""Numbers, money, times, dates, ordinals, units and telephone numbers as English words.

`num2words` spells the numbers themselves; the rules find them in a text, in order.
"""

from __future__ import annotations

import re

from num2words import num2words

from voxnative.text_rules import Rule, closing_stop, longest_first

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
HALF_DAYS = {"a": "ay em", "p": "pee em"}
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_UNIT_NAMES = longest_first(UNITS)


def spell_number(number: str) -> str:
    """Read a number, decimal places digit by digit: "1.50" is "one point five zero"."""
    whole, _, places = number.replace(",", "").partition(".")
    words = _cardinal(int(whole)) if len(whole) <= 15 else spell_digits(whole)
    return f"{words} point {spell_digits(places)}" if places else words


def _cardinal(number: int) -> str:
    return num2words(number).replace("-", " ").replace(",", "")


def spell_digits(digits: str) -> str:
    """Read digits one by one: "007" is "zero zero seven"."""
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
    return f"{spoken} {_half_day(half)}{closing_stop(match)}" if half else spoken


def _half_day(half: str) -> str:
    return HALF_DAYS[half[0].lower()]


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
    return ", ".join(spell_digits(group) for group in match[0].split("-"))


def _number(match: re.Match[str]) -> str:
    number = match[0]
    bare = number.isdigit()
    if bare and len(number) > 1 and number[0] == "0":
        return f" {spell_digits(number)} "
    if bare and len(number) == 4 and 1100 <= int(number) <= 2099 and int(number) % 1000:
        return f" {_year(int(number))} "
    if bare and len(number) >= 7:
        return f" {spell_digits(number)} "
    return f" {spell_number(number)} "


def _decade(tens: str) -> str:
    year = int(tens) * 10
    words = _year(year) if len(tens) == 3 else _cardinal(year)
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


NUMBER_RULES: tuple[Rule, ...] = (
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
        lambda m: f"{_cardinal(int(m[1]))} {_half_day(m[2])}{closing_stop(m)}",
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
)  # fmt: skip
