from importlib.util import find_spec

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.verify.verifier import load_verifier


def test_without_math_verify_the_verifier_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    import sys

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "brimful.verify.kinds.math", raising=False)
    with refuses(RequestError):
        load_verifier("math")


@pytest.mark.skipif(
    find_spec("math_verify") is None,
    reason="math-verify is not installed (extra math)",
)
@pytest.mark.parametrize(
    "reference", ["\\frac{1}{2}", "$x^2$", "So \\boxed{5}.", 5, "\\text{east}"]
)
def test_expressions_are_references(reference: object) -> None:
    load_verifier("math").check(reference)


@pytest.mark.skipif(
    find_spec("math_verify") is None,
    reason="math-verify is not installed (extra math)",
)
@pytest.mark.parametrize(
    "reference",
    ["\\frac{", "two apples", "x" * 301],
)
def test_what_is_no_expression_is_refused(reference: str, refuses: Refuses) -> None:
    with refuses(ValueError):
        load_verifier("math").check(reference)
