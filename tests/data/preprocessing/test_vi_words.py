"""Vietnamese words."""

import pytest

underthesea = pytest.importorskip(
    "underthesea", reason="underthesea is not installed (extra vietnamese)"
)

from brimful.data.preprocessing.vi_words import STEP  # noqa: E402 - after the skip


def test_syllables_of_a_word_are_joined() -> None:
    expected = "Ông Nguyễn_Khắc_Chúc đang làm_việc tại Đại_học Quốc_gia Hà_Nội ."
    assert STEP("Ông Nguyễn Khắc Chúc  đang làm việc tại Đại học Quốc gia Hà Nội.") == expected


def test_tone_marks_stand_where_phobert_learned_them_so_that_words_are_found() -> None:
    assert STEP("hòa bình") == STEP("hoà bình") == "hoà_bình"


def test_signs_and_emoji_are_joined_with_nothing() -> None:
    assert "_" not in STEP("I @user :D <3 😂😂")


def test_joined_words_stay_joined() -> None:
    assert STEP("sinh_viên") == "sinh_viên"
