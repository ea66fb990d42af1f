"""Emoji as words."""

import pytest

from brimful.data.preprocessing.emoji_words import STEP


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("😂", "face with tears of joy"),
        ("nice😂day", "nice face with tears of joy day"),
        ("nice 😂 day", "nice face with tears of joy day"),
        ("😂😂 ok", "face with tears of joy face with tears of joy ok"),
        ("👍🏽", "thumbs up sign"),
        ("👨\u200d👩\u200d👧 ok", "man woman girl ok"),
        ("❤\ufe0f", "heavy black heart"),
        ("🇻🇳!", "flag vn !"),
    ],
)
def test_pictures_become_their_names(text: str, words: str) -> None:
    assert STEP(text) == words


@pytest.mark.parametrize(
    "text", ["plain :)", "© ™ → 1\ufe0f\u20e3", "Việt", "می\u200dخواهم", "\U0001f3fd"]
)
def test_what_is_no_picture_stays(text: str) -> None:
    assert STEP(text) == text
