"""Form C."""

from brimful.data.preprocessing.nfc import STEP


def test_letters_and_their_marks_become_one_code_point() -> None:
    assert STEP("Vie\u0323\u0302t") == "Việt"


def test_what_only_looks_different_stays() -> None:
    assert STEP("ｆｕｌｌ ②") == "ｆｕｌｌ ②"
