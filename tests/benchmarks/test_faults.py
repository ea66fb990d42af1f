"""The catalog of faults names tests that there are, and its page says what they gave."""

import json
import xml.etree.ElementTree as ET

import pytest
from named_tests import exists
from syrupy.assertion import SnapshotAssertion

from faults import PAGE, Case, Result, page, read_cases, results_of, row_of
from record import RECORDS

NUM_CASES = 63

REPORT = """
<testsuites><testsuite>
  <testcase classname="tests.base.test_a" name="test_one[x]" time="1.5"/>
  <testcase classname="tests.base.test_a" name="test_one[y]" time="0.5"/>
  <testcase classname="tests.test_b" name="test_two" time="1"><skipped message="why"/></testcase>
  <testcase classname="tests.test_b" name="test_three" time="1"><failure/></testcase>
</testsuite></testsuites>
"""
RESULTS = results_of(ET.fromstring(REPORT))  # noqa: S314  # the text above


def test_every_case_has_tests_that_exist_or_a_reason() -> None:
    cases = read_cases()

    assert len(cases) == NUM_CASES
    assert [case.fault for case in cases if bool(case.tests) == bool(case.not_here)] == []
    named = {test for case in cases for test in case.tests}
    assert sorted(test for test in named if not exists(test)) == []


def test_parameters_of_a_test_add_up_and_one_that_did_not_run_did_not_pass() -> None:
    assert RESULTS["base/test_a.py::test_one"] == Result(2, 2, 2.0)
    assert RESULTS["test_b.py::test_two"] == Result(1, 0, 1.0)
    assert RESULTS["test_b.py::test_three"] == Result(1, 0, 1.0)


@pytest.mark.parametrize(
    ("tests", "held"),
    [
        (("base/test_a.py::test_one",), True),
        (("base/test_a.py::test_one", "test_b.py::test_two"), False),
        (("test_b.py::test_three",), False),
        (("test_b.py::test_that_never_ran",), False),
    ],
)
def test_a_case_holds_where_all_of_its_tests_pass(tests: tuple[str, ...], held: bool) -> None:
    row = row_of(Case("a fault", "an outcome", tests), RESULTS)

    assert row["held"] is held


def test_the_page_says_what_held_what_failed_and_what_was_not_tried(
    snapshot: SnapshotAssertion,
) -> None:
    rows = [
        row_of(
            Case("a kill", "it goes on", ("a::b",), note="by hand"), {"a::b": Result(3, 3, 2.0)}
        ),
        row_of(Case("a flood", "it swims", ("a::c",)), {"a::c": Result(2, 1, 1.0)}),
        row_of(Case("two GPUs", "it runs", not_here="there is one"), {}),
    ]

    text = page({"cases": rows, "date": "2026-11-23", "device": "a CPU"})

    assert text == snapshot


def test_the_page_is_that_of_the_record_and_the_record_has_every_case() -> None:
    record = json.loads((RECORDS / "faults.json").read_text(encoding="utf-8"))

    assert PAGE.read_text(encoding="utf-8") == page(record)
    assert [row["fault"] for row in record["cases"]] == [case.fault for case in read_cases()]
