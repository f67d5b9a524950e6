"""Templates: spelled-out numbers, names, times and the short replies a voice agent gives."""

from __future__ import annotations

import random

from num2words import num2words


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    "Alice Anna Ben Carol Charles Daniel David Emma Eric Frank George Grace Hannah Harry "
    "Helen Henry Ivan Jack James Jane John Julia Karen Kate Kevin Laura Linda Lucas Lucy "
    "Maria Mark Martin Mary Michael Nancy Nina Oliver Oscar Paul Peter Rachel Richard Robert "
    "Rose Ruth Sam Sarah Simon Sofia Susan Thomas Tom Victor William"
)
PLACES = _words(
    "London Paris Berlin Madrid Rome Vienna Dublin Boston Chicago Denver Dallas Seattle Texas "
    "Florida Canada Mexico Brazil India China Japan Korea Egypt Kenya Norway Sweden Finland "
    "Poland Greece Turkey Australia California"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words(
    "January February March April May June July August September October November December"
)
THINGS = _words(
    "apples books boxes cars chairs coins cups days dollars euros files flowers hours houses "
    "letters lines meters miles minutes pages people pieces points rooms seats seconds steps "
    "stones students tickets tons trees weeks windows words years"
)

REPLIES = (
    "Hello.",
    "Hello there.",
    "Hi there!",
    "Good morning.",
    "Good evening.",
    "Good night.",
    "Thank you.",
    "Thank you very much.",
    "You are welcome.",
    "Yes.",
    "No.",
    "Yes, please.",
    "No, thank you.",
    "Of course.",
    "Sure.",
    "Okay.",
    "All right.",
    "I see.",
    "I am sorry.",
    "Excuse me.",
    "One moment, please.",
    "Please wait.",
    "Please hold the line.",
    "How are you?",
    "How can I help you today?",
    "What is your name?",
    "Where are you?",
    "What time is it?",
    "See you later.",
    "Goodbye.",
    "Welcome.",
    "Welcome back!",
    "Hello world.",
    "This is a test.",
    "Let me check that for you.",
    "I do not know.",
    "That is right.",
    "That is wrong.",
    "Well done!",
    "Congratulations!",
    "Happy birthday!",
    "Are you sure?",
    "Why not?",
    "Stop.",
    "Go ahead.",
    "Look out!",
    "Come in.",
    "Sit down.",
    "Never mind.",
    "It does not matter.",
    "Not yet.",
    "Maybe later.",
    "Nice to meet you.",
    "Have a nice day.",
    "Have a good weekend!",
    "Please try again.",
    "Can you hear me?",
    "I can hear you.",
)

FRAMES = (
    "{name} has {n} {things}.",
    "{name} bought {n} {things} in {place}.",
    "The meeting is at {hour} {minute} on {day}.",
    "It costs {n} dollars and {small} cents.",
    "{name} was born in {year}.",
    "In {year} {name} moved to {place}.",
    "The {ordinal} of {month} is a {day}.",
    "Please call {digits}.",
    "My number is {digits}.",
    "Your code is {digits}.",
    "About {n} percent of the {things} are gone.",
    "The temperature is {small} degrees in {place}.",
    "{name} and {other} met in {place}.",
    "The train to {place} leaves at {hour} {minute}.",
    "Room {n} is on the {ordinal} floor.",
    "{name} said hello to {other}.",
    "There are {n} {things} between {place} and {other_place}.",
    "{n} plus {small} is {sum}.",
    "{name} will arrive on {day} at {hour} o'clock.",
    "{name} is {small} years old.",
    "{small} point {digit} percent.",
    "Version {digit} point {small} is ready.",
    "{n}.",
    "{name}.",
    "{digits}.",
    "Good morning, {name}.",
    "Thank you, {name}.",
    "Is {name} at home?",
    "Where is {name}?",
    "{day}, {month} {ordinal}.",
    "From {place} to {other_place}.",
    "{name} waited for {n} {things}, and then {other} came.",
    "Dear {name}, thank you for your letter.",
    "One euro is {digit} point {small} dollars.",
)


def spell(number: int, to: str = "cardinal") -> str:
    """Spell a number without hyphens or commas ("twenty one")."""
    return num2words(number, to=to).replace("-", " ").replace(",", "")


def fill(frame: str, rng: random.Random) -> str:
    """Fill one frame with random names and numbers and capitalise it."""
    n = rng.choice(
        (
            rng.randint(0, 20),
            rng.randint(0, 99),
            rng.randint(0, 999),
            rng.randint(0, 9999),
            100 * rng.randint(1, 90),
        )
    )
    small, minute = rng.randint(1, 99), rng.randint(1, 59)
    line = frame.format(
        name=rng.choice(NAMES),
        other=rng.choice(NAMES),
        place=rng.choice(PLACES),
        other_place=rng.choice(PLACES),
        day=rng.choice(DAYS),
        month=rng.choice(MONTHS),
        things=rng.choice(THINGS),
        n=spell(n),
        small=spell(small),
        sum=spell(n + small),
        digit=spell(rng.randint(0, 9)),
        hour=spell(rng.randint(1, 12)),
        minute=("oh " if minute < 10 else "") + spell(minute),
        year=spell(rng.randint(1700, 2099), "year"),
        ordinal=spell(rng.randint(1, 31), "ordinal"),
        digits=" ".join(spell(rng.randint(0, 9)) for _ in range(rng.randint(3, 7))),
    )
    return line[0].upper() + line[1:]


def template_lines(rng: random.Random, n: int) -> list[str]:
    """Return the fixed replies and about `n` filled frames, without repetitions."""
    lines = dict.fromkeys(REPLIES)
    for _ in range(n):
        lines[fill(rng.choice(FRAMES), rng)] = None
    return list(lines)
