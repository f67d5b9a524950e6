"""Step `corpus`: write the sentences that the teacher will read.

Three sources, mixed by a seed so that every run gives the same files:

* WordNet's example sentences (natural, complete sentences and phrases);
* WordNet's definitions (rare words, technical prose);
* templates with spelled-out numbers, names, dates, greetings and very short lines.

A share of the short lines is joined in pairs, so that the student also hears a full stop
inside an utterance. Held-out lines are drawn from the examples and templates first and are
excluded, as sentences, from everything that follows.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

from templates import REPLIES, template_lines
from tqdm import tqdm

WORDNET_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
SAYABLE = re.compile(r"^[A-Za-z][A-Za-z ,;.!?'-]*$")


def read_wordnet(folder: Path) -> tuple[list[str], list[str]]:
    """Read the example sentences and the definitions of a WordNet 3 database.

    Args:
        folder: directory holding `data.noun`, `data.verb`, `data.adj`, `data.adv`.

    Returns:
        Examples and definitions, cleaned, in file order, without repetitions.

    Raises:
        FileNotFoundError: a database file is missing; says which package brings it.
    """
    examples: dict[str, None] = {}
    definitions: dict[str, None] = {}
    for name in WORDNET_FILES:
        path = folder / name
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: install WordNet 3 (Debian: wordnet-base)")
        for line in path.read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue  # licence header
            gloss = line.split("|", 1)[1]
            for quoted in re.findall(r'"([^"]+)"', gloss):
                if text := clean_line(quoted):
                    examples[text] = None
            definition = re.sub(r'"[^"]*"?', "", gloss).split(";")[0]
            if text := clean_line(definition):
                definitions[text] = None
    return list(examples), list(definitions)


def clean_line(raw: str) -> str | None:
    """Tidy one gloss fragment; None where it holds anything but plain words."""
    text = re.sub(r"\([^)]*\)", " ", raw).replace("`", "'").replace("--", ", ")
    text = re.sub(r"\s+", " ", text).strip(" ;:,.-'")
    text = re.sub(r"\s+([,;.!?])", r"\1", text)
    if (
        not text
        or not SAYABLE.match(text)
        or re.search(r"[A-Z]{2}|[,;.!?]{2}|\b[b-hj-zB-HJ-Z]\b(?!')", text)
    ):
        return None
    if text[-1] not in ".!?":
        text += "."
    return text[0].upper() + text[1:]


def n_words(text: str) -> int:
    """Count whitespace-separated words."""
    return len(text.split())


def words_of(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return re.findall(r"[a-z']+", text.lower())


def fit_for_recognition(text: str, counts: Counter) -> bool:
    """True for a line of words a small recogniser can know: 4 to 13, each in ten lines or more.

    A rare word measures the recogniser's vocabulary, not the speech. Only the text decides.
    """
    return (
        4 <= n_words(text) <= 13
        and "-" not in text
        and all(counts[word] >= 10 for word in words_of(text))
    )


def has_digit_string(text: str) -> bool:
    """True where single digits follow one another: a recogniser may group them in any way."""
    digit = "(zero|one|two|three|four|five|six|seven|eight|nine)"
    return re.search(rf"\b{digit} {digit}\b", text.lower()) is not None


def sentence_key(text: str) -> str:
    """Letters only: what makes two lines the same sentence."""
    return re.sub(r"[^a-z]", "", text.lower())


def build_corpus(
    examples: list[str],
    definitions: list[str],
    n_train: int,
    n_heldout: int,
    min_words: int,
    max_words: int,
    pair_share: float,
    seed: int,
) -> tuple[list[str], list[str]]:
    """Mix the sources into training and held-out lines.

    Args:
        examples, definitions: cleaned lines of `read_wordnet`.
        n_train, n_heldout: lines wanted; fewer come back where the sources run dry.
        min_words, max_words: length of a single line; pairs may reach twice `max_words`.
        pair_share: share of the training lines that are two short sentences.
        seed: of the only random generator used.

    Returns:
        (training lines, held-out lines); no held-out sentence occurs in a training line.
    """
    rng = random.Random(seed)
    examples = [text for text in examples if min_words <= n_words(text) <= max_words]
    definitions = [text for text in definitions if min_words <= n_words(text) <= max_words]
    templates = template_lines(rng, max(40, (n_train + n_heldout) // 6))
    for lines in (examples, definitions, templates):
        rng.shuffle(lines)

    counts = Counter(word for text in examples + definitions for word in set(words_of(text)))
    fit_for_test = [text for text in examples if fit_for_recognition(text, counts)]
    n_templates = n_heldout // 10
    heldout = fit_for_test[: n_heldout - n_templates]
    heldout += [text for text in templates if text not in REPLIES and not has_digit_string(text)][
        :n_templates
    ]
    taken = {sentence_key(text) for text in heldout}

    pool: list[str] = []
    for text in interleave(examples, definitions, templates, rng=rng):
        key = sentence_key(text)
        if key not in taken:
            taken.add(key)
            pool.append(text)
    train: list[str] = []
    waiting: str | None = None
    for text in pool:
        if len(train) >= n_train:
            break
        if n_words(text) <= max_words * 2 // 3 and rng.random() < 2 * pair_share:
            if waiting is None:
                waiting = text
            else:
                train.append(f"{waiting} {text}")
                waiting = None
        else:
            train.append(text)
    rng.shuffle(heldout)
    return train, heldout


def interleave(
    examples: list[str], definitions: list[str], templates: list[str], rng: random.Random
):
    """Yield examples, templates and definitions in the ratio 5 : 1 : 2 until each runs dry."""
    sources = [iter(examples), iter(templates), iter(definitions)]
    weights = [5.0, 1.0, 2.0]
    while sources:
        i = rng.choices(range(len(sources)), weights)[0]
        try:
            yield next(sources[i])
        except StopIteration:
            del sources[i], weights[i]


def write_phonemes(path: Path) -> None:
    """Write the pronunciation of `NAME.txt` to `NAME.phonemes`: the teacher needs no eSpeak."""
    target = path.with_suffix(".phonemes")
    if not target.exists():
        from phonemes import phonemize

        lines = path.read_text().splitlines()
        target.write_text(
            "\n".join(phonemize(line) for line in tqdm(lines, desc=f"phonemes of {path.stem}"))
            + "\n"
        )


def run(settings, work: Path) -> dict:
    """Write `corpus/train.txt` and `corpus/heldout.txt` under `work`; skip where they exist."""
    folder = work / "corpus"
    train_path, heldout_path = folder / "train.txt", folder / "heldout.txt"
    if not (train_path.exists() and heldout_path.exists()):
        c = settings.corpus
        examples, definitions = read_wordnet(Path(c.wordnet_dir))
        train, heldout = build_corpus(
            examples,
            definitions,
            c.n_train,
            c.n_heldout,
            c.min_words,
            c.max_words,
            c.pair_share,
            c.seed,
        )
        folder.mkdir(parents=True, exist_ok=True)
        heldout_path.write_text("\n".join(heldout) + "\n")
        train_path.write_text("\n".join(train) + "\n")
    if settings.teacher.engine == "kokoro":
        for path in (train_path, heldout_path):
            write_phonemes(path)
    train, heldout = train_path.read_text().splitlines(), heldout_path.read_text().splitlines()
    return {
        "train_lines": len(train),
        "heldout_lines": len(heldout),
        "train_words": sum(map(n_words, train)),
    }
