"""Form KC."""

from brimful.data.preprocessing.nfkc import STEP


def test_wide_circled_and_bold_letters_become_plain_ones() -> None:
    assert STEP("ｆｕｌｌ ② 𝐛𝐨𝐥𝐝 ﬁ") == "full 2 bold fi"


def test_letters_and_their_marks_become_one_code_point() -> None:
    assert STEP("Vie\u0323\u0302t") == "Việt"
