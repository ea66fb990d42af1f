import pytest
from fixture_types import Refuses

from brimful.data.units import UNITS
from brimful.verify.kinds.quantity import VERIFIER
from brimful.verify.verifier import Verdict


def _verdict(answer: str, reference: str) -> Verdict:
    assert VERIFIER.verify is not None
    return VERIFIER.verify(answer, reference)


def test_equal_quantities_have_one_value_so_that_they_vote_together() -> None:
    assert {_verdict(answer, "2 h").value for answer in ("2 h", "120 min", "7,200 seconds")} == {
        "7200 s"
    }


def test_every_unit_is_one_of_itself() -> None:
    for unit in UNITS:
        assert _verdict(f"<answer>1.0005 {unit.plural}</answer>", f"1 {unit.symbol}").is_correct, (
            unit.name
        )


def test_a_word_with_two_meanings_takes_that_of_the_reference() -> None:
    assert _verdict("8 ounces", "1 cup").is_correct
    assert _verdict("16 ounces", "1 lb").is_correct


def test_huge_quantities_are_no_trouble() -> None:
    assert _verdict("1e999 km", "1e999 km").value == "1.000E+1002 m"
    assert _verdict("1e999999999 km", "1 m").status == "wrong"


@pytest.mark.parametrize(
    "reference",
    ["120", "5 smoots", "min", 7],
)
def test_a_reference_needs_a_number_and_a_known_unit(reference: object, refuses: Refuses) -> None:
    with refuses(ValueError):
        VERIFIER.check(reference)
