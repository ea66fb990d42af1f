"""Whatever a recipe, an override, a data file or a model's config holds, it is accepted or refused
with one message.
"""

import pytest

import malformed


@pytest.mark.long_but("recipe", "examples")
@pytest.mark.parametrize("kind", malformed.KINDS)
def test_what_is_malformed_is_accepted_or_refused_with_a_message(kind: str) -> None:
    """A seeded share; `benchmarks/malformed.py` draws a thousand."""
    counts = malformed.outcomes(kind, 15, number=1)
    assert sum(counts.values()) >= 10
    assert set(counts) <= {"accepted", "refused"}
