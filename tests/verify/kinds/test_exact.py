import pytest
from fixture_types import Refuses

from brimful.verify.kinds.exact import VERIFIER, normal_form


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (" Ho  Chi\nMinh ", "ho chi minh"),
        ("“Yes.”", "yes"),
        ("**B**", "b"),
        ("Straße", "strasse"),
        ("ＡＢ", "ab"),
        ("a.b", "a.b"),
    ],
)
def test_the_normal_form_keeps_what_tells_texts_apart(text: str, normal: str) -> None:
    assert normal_form(text) == normal


def test_a_reference_longer_than_any_final_answer_is_refused(refuses: Refuses) -> None:
    with refuses(ValueError, names=["1,001"]):
        VERIFIER.check("x" * 1001)
