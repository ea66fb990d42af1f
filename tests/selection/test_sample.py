"""A sample goes through JSON and back unchanged, and nothing else passes for one."""

import json
import math
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.errors import RunFolderError
from brimful.base.types import JsonDict
from brimful.selection.sample import JudgedSample


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"value": None, "status": "unparsed", "extracted": "", "detail": "no final answer"},
        {
            "value": "x + 1",
            "logprob": -0.25,
            "fate": "kept",
            "contaminated_by": "test 3",
            "seed": 2**63 - 1,
        },
        {"completion": "half a pair \ud800, a line\u2028break, \x00", "finish": "length"},
        {"value": math.inf, "logprob": -math.inf},
    ],
)
def test_a_sample_comes_back_as_it_was(sample: Any, changes: JsonDict) -> None:
    written = sample(4, **changes)

    line = json.dumps(written.to_json(), allow_nan=False)
    assert "\n" not in line
    assert JudgedSample.from_json(json.loads(line), "here") == written


def test_nan_comes_back_as_nan(sample: Any) -> None:
    record = json.loads(json.dumps(sample(value=math.nan).to_json(), allow_nan=False))

    assert record["value"] is None
    value = JudgedSample.from_json(record, "here").value
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"number": -1}, "number is -1"),
        ({"number": True}, "number is True"),
        ({"status": "right"}, "status is 'right'"),
        ({"fate": "lost"}, "fate is 'lost'"),
        ({"completion": None}, "completion is None"),
        ({"finish": "enough"}, "finish is 'enough'"),
        ({"extra": 1}, "missing or unknown extra"),
    ],
)
def test_what_is_no_sample_is_refused_with_its_place_and_field(
    sample: Any, changes: JsonDict, named: str, refuses: Refuses
) -> None:
    with refuses(RunFolderError, names=["line 3", str(named)]):
        JudgedSample.from_json(sample().to_json() | changes, "a file, line 3")


def test_a_missing_field_is_named(sample: Any, refuses: Refuses) -> None:
    record = sample().to_json()
    del record["path"]

    with refuses(RunFolderError):
        JudgedSample.from_json(record, "here")
