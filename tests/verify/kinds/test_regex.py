import pytest

from brimful.verify.kinds.regex import VERIFIER


def test_a_pattern_that_does_not_end_is_given_up() -> None:
    assert VERIFIER.verify is not None
    verdict = VERIFIER.verify("a" * 900, r"(a|a?|aa)*(b|c)\1")
    assert (verdict.status, verdict.detail) == ("unparsed", "the pattern takes too long")


@pytest.mark.parametrize("reference", ["(", "[a", "a{2,1}", "(?P<x", "*"])
def test_what_is_no_pattern_is_refused_with_the_reason(reference: str) -> None:
    with pytest.raises(ValueError, match=r"is not a regular expression: .+ at position \d"):
        VERIFIER.check(reference)
