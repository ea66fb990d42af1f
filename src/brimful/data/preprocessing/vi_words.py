"""Vietnamese words: the syllables of a word joined by `_` (`sinh viên` becomes `sinh_viên`), as
PhoBERT was pre-trained on.

Vietnamese writes a space between syllables, not between words. PhoBERT (Nguyen and Nguyen 2020)
read text that VnCoreNLP's RDRSegmenter had cut into words after placing tone marks in one way. Here
underthesea cuts (Apache-2.0, a conditional random field that lies in its package, so nothing is
downloaded and no Java runs): fine-tuning PhoBERT on UIT-VSFC with it gave 93.97 % where VnCoreNLP
gave 94.00 % and syllables 93.59 % (undertheseanlp/underthesea#760, measured there). Two things are
done otherwise than in underthesea's default:

- tone marks are placed as VnCoreNLP does (`hoà`, not `hòa`), where underthesea's own way is the
  opposite one, and finds fewer words by it;
- only what begins with a letter or digit is joined: its labels also join signs and emoji, which
  VnCoreNLP does not.
"""

import functools
import re
from collections.abc import Callable

LIBRARIES = ("underthesea", "underthesea-core")
"""Distributions that decide what comes out; their versions are stored with a run."""
EXTRA = "vietnamese"

_TONES = {
    "òa": "oà",
    "óa": "oá",
    "ỏa": "oả",
    "õa": "oã",
    "ọa": "oạ",
    "òe": "oè",
    "óe": "oé",
    "ỏe": "oẻ",
    "õe": "oẽ",
    "ọe": "oẹ",
} | {
    "ùy": "uỳ",
    "úy": "uý",
    "ủy": "uỷ",
    "ũy": "uỹ",
    "ụy": "uỵ",
    "Ủy": "Uỷ",
}
"""What VnCoreNLP 1.2 replaces (wordsegmenter/Utils.java)."""
_MOVED = re.compile("|".join(_TONES))


def STEP(text: str) -> str:  # noqa: N802 - looked up by this name
    """The words of a text, one space between them, the syllables of each joined by `_`; the text
    should be in form C (step nfc before).
    """
    placed = _MOVED.sub(lambda vowels: _TONES[vowels[0]], text)
    return " ".join(map(_joined, _segmenter()(placed, use_token_normalize=False)))


def _joined(word: str) -> str:
    """`Hà Nội` becomes `Hà_Nội`; `@ tên` stays two words."""
    syllables = word.split()
    return ("_" if all(syllable[0].isalnum() for syllable in syllables) else " ").join(syllables)


@functools.cache
def _segmenter() -> Callable[..., list[str]]:
    # Of an extra, a third of a second.
    from underthesea import word_tokenize  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415

    found: Callable[..., list[str]] = word_tokenize
    return found
