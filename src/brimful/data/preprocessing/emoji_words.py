"""Emoji as words: they carry the tone of a comment, but many vocabularies hold none and read all of
them as one unknown token.

A picture becomes its name in the Unicode Character Database in small letters, such as `face with
tears of joy`, whatever the language of the text. Skin tones and the joiners of pictures go, the
parts of a joined picture are named one after the other; a flag becomes `flag vn`.
"""

import unicodedata

import regex  # type: ignore[import-untyped]

_PICTURE = (
    r"[\p{Extended_Pictographic}&&[\u2600-\U0010FFFF]--\p{Emoji_Modifier}]"
    r"[\p{Emoji_Modifier}\uFE0F\u200D]*"
)
_EMOJI = regex.compile(rf"\p{{Regional_Indicator}}{{2}}|{_PICTURE}", regex.V1)
_RUN = regex.compile(rf" ?(?:(?:\p{{Regional_Indicator}}{{2}}|{_PICTURE}) ?)+", regex.V1)
_FLAG_A = ord("\N{REGIONAL INDICATOR SYMBOL LETTER A}")


def STEP(text: str) -> str:  # noqa: N802 - looked up by this name
    """The text with names in place of emoji, a space before and behind. One that this Python's
    character database does not know stays.
    """
    if text.isascii():
        return text
    spaced: str = _RUN.sub(
        lambda run: _spaced(run[0], is_first=run.start() == 0, is_last=run.end() == len(text)), text
    )
    return spaced


def _spaced(run: str, *, is_first: bool, is_last: bool) -> str:
    words = " ".join(map(_name, _EMOJI.findall(run)))
    return f"{'' if is_first else ' '}{words}{'' if is_last else ' '}"


def _name(emoji: str) -> str:
    if _FLAG_A <= ord(emoji[0]) < _FLAG_A + 26:
        return f"flag {''.join(chr(ord(letter) - _FLAG_A + ord('a')) for letter in emoji)}"
    return unicodedata.name(emoji[0], emoji).lower()
