"""Text to the phoneme alphabet that Kokoro reads (IPA with single letters for diphthongs).

The pronunciation comes from eSpeak NG (en-us) through the copy inside `piper-tts`; the
spelling below is that of Kokoro's vocabulary. Source: `misaki/espeak.py`, `EspeakFallback`
(Apache-2.0), restated for eSpeak's output without tie characters.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

# Order matters: longer spellings first.
REPLACEMENTS = (
    ("ʔˌn\u0329", "tn"),
    ("ʔn\u0329", "tn"),
    ("dʒ", "ʤ"),
    ("tʃ", "ʧ"),
    ("aɪ", "I"),
    ("aʊ", "W"),
    ("eɪ", "A"),
    ("ɔɪ", "Y"),
    ("oʊ", "O"),
    ("əl", "ᵊl"),
    ("ɚɹ", "əɹ"),
    ("ɚ", "əɹ"),
    ("ɜːɹ", "ɜɹ"),
    ("ɜː", "ɜɹ"),
    ("ɪə", "iə"),
    ("ʲ", ""),
    ("ː", ""),
    ("\u0303", ""),
    ("r", "ɹ"),
    ("x", "k"),
    ("ç", "k"),
    ("ɐ", "ə"),
    ("ɬ", "l"),
    ("e", "A"),
    ("o", "ɔ"),
    ("ɾ", "T"),
    ("ʔ", "t"),
)


@cache
def _espeak():
    from piper.phonemize_espeak import EspeakPhonemizer

    return EspeakPhonemizer()


def kokoro_spelling(ipa: str) -> str:
    """Respell eSpeak's IPA for one utterance in Kokoro's alphabet."""
    text = unicodedata.normalize("NFD", ipa).replace("c\u0327", "ç")
    for old, new in REPLACEMENTS:
        text = text.replace(old, new)
    text = re.sub(r"(\S)\u0329", r"ᵊ\1", text)  # syllabic consonants
    return unicodedata.normalize("NFC", text.replace("\u0329", "").replace("-", ""))


def phonemize(text: str) -> str:
    """Return Kokoro's phonemes for one English line.

    Args:
        text: words and punctuation, numbers already spelled out.

    Raises:
        ValueError: the line has no pronunciation (nothing but punctuation).
    """
    sentences = ["".join(parts) for parts in _espeak().phonemize("en-us", text)]
    phonemes = kokoro_spelling(" ".join(sentences)).strip()
    if not any(c.isalpha() for c in phonemes):
        raise ValueError(f"nothing to pronounce in {text!r}")
    return phonemes
