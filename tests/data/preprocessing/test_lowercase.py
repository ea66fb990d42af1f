"""Small letters."""

from brimful.data.preprocessing.lowercase import STEP


def test_capitals_become_small_also_beyond_ascii() -> None:
    assert STEP("WIN Đồng ÀÉ 5") == "win đồng àé 5"
