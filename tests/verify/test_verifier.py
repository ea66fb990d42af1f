"""What every verifier promises. Those that need a package which is not installed are skipped."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from fixture_types import Refuses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brimful.base.errors import RequestError
from brimful.verify.judge import judge
from brimful.verify.sandbox import Sandbox
from brimful.verify.verifier import Verdict, Verifier, load_verifier, verifier_names

QUESTION = "Write <answer>7</answer>, #### 7 or \\boxed{7}. What is 2 + 3?"
ODD = [
    "",
    " ",
    "\0",
    "\ud800",
    "nan",
    "<answer>nan</answer>",
    "<answer>inf</answer>",
    "<answer>1e999</answer>",
    "<answer>1e-999</answer>",
    f"<answer>{'9' * 900}</answer>",
    f"\\boxed{{{'9' * 250}}}",
    f"<answer>{'9' * 2000}</answer>",
    "<answer>",
    "</answer>",
    "<answer></answer>",
    "<answer>1</answer><answer>2</answer>",
    "<answer><answer></answer></answer>",
    QUESTION,
    f"{QUESTION} <answer>",
    "\\boxed{",
    "\\boxed{}}",
    "\\boxed{\\",
    "#### ",
    "The answer is",
    "The answer is .",
    "```",
    "```python\n",
    "```\n1\n```",
    "東京",
    "<answer>🙂</answer>",
    "<answer>%s %d {0}</answer>",
    "<answer>٣</answer>",
]
LONG = [
    "x" * 10**6,
    "<answer>" * 125_000,
    "\\boxed{" * 142_857,
    "the answer is " * 71_000,
    "\n####" * 200_000,
    "9" * 10**6,
    f"<{' ' * 10**6}",
    "import \n" * 140_000,
]
MARKED = st.builds(
    lambda form, text: form.replace("TEXT", text),
    st.sampled_from(
        [
            "TEXT",
            "<answer>TEXT</answer>",
            "TEXT\n#### TEXT",
            "\\boxed{TEXT}",
            "The answer is TEXT.",
            "```\nTEXT\n```",
            "    return TEXT",
        ]
    ),
    st.text(max_size=30) | st.text("0123456789.,-+e/x^%$ {}\\ab", max_size=12),
)


@pytest.fixture(params=verifier_names())
def verifier(request: pytest.FixtureRequest) -> Verifier:
    try:
        return load_verifier(request.param)
    except RequestError as error:
        pytest.skip(str(error))


def _said(verifier: Verifier) -> Callable[[str, Any], Any]:
    """The verdict, or the program of an answer."""
    return verifier.verify or verifier.program  # type: ignore[return-value]


def test_every_example_has_its_status_and_its_reference_is_accepted(
    verifier: Verifier, sandbox: Sandbox
) -> None:
    for example in verifier.examples:
        verifier.check(example.reference)
    verdicts = judge(
        verifier,
        [example.answer for example in verifier.examples],
        [example.reference for example in verifier.examples],
        sandbox,
    )
    found = [
        (example.answer, verdict and verdict.status)
        for example, verdict in zip(verifier.examples, verdicts, strict=True)
    ]
    assert found == [(example.answer, example.status) for example in verifier.examples]
    for verdict in verdicts:
        assert verdict is not None
        _is_sound(verdict)


def test_every_verifier_shows_right_wrong_and_unparsed_answers(verifier: Verifier) -> None:
    assert len(verifier.examples) >= 8
    assert {example.status for example in verifier.examples} == {"correct", "wrong", "unparsed"}
    assert verifier.description.endswith(".")
    assert (verifier.verify is None) != (verifier.program is None)


def test_no_verifier_is_upset_by_what_a_model_wrote(verifier: Verifier) -> None:
    said, reference = _said(verifier), verifier.examples[0].reference
    for answer in ODD:
        verdict = said(answer, reference)
        assert verdict == said(answer, reference), "a verdict is the same every time"
        if verifier.verify is not None:
            _is_sound(verdict)
            assert not verdict.is_correct or verifier is load_verifier("marked")  # form alone


@given(answer=MARKED)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_verifier_is_upset_by_any_text(verifier: Verifier, answer: str) -> None:
    verdict = _said(verifier)(answer, verifier.examples[0].reference)
    if verifier.verify is not None:
        _is_sound(verdict)


def test_a_megabyte_is_read_in_a_second_of_the_processor(verifier: Verifier) -> None:
    said, reference = _said(verifier), verifier.examples[0].reference
    for answer in LONG:
        started_s = time.process_time()
        said(answer, reference)
        assert time.process_time() - started_s < 1, answer[:20]


@pytest.mark.parametrize("reference", ["", " ", None, True, []])
def test_a_reference_that_says_nothing_is_refused_with_a_reason(
    verifier: Verifier, reference: object
) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        verifier.check(reference)


def test_an_unknown_verifier_is_named_with_the_nearest(refuses: Refuses) -> None:
    with refuses(RequestError, names=["'numbr'", "'number'"]):
        load_verifier("numbr")


def _is_sound(verdict: Verdict) -> None:
    assert (verdict.value is None) == (verdict.status == "unparsed") == (not verdict.extracted)
    assert bool(verdict.detail) == (not verdict.is_correct)
    assert isinstance(verdict.value, float | str | None)
    json.dumps(verdict.value, allow_nan=False)
