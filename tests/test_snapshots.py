"""The fixtures that compare messages with stored texts: what they replace, and that the
class of an error counts.
"""

import os
import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError, RequestError


def test_what_differs_from_run_to_run_is_replaced(
    snapshot: SnapshotAssertion, tmp_path: Path
) -> None:
    lines = [
        f"read {tmp_path}/data.txt and {tmp_path.parent}/elsewhere0/data.txt",
        f"{Path(__file__).parent} on 2026-10-11 and 2026-10-11T10:11:12Z, process {os.getpid()}",
        f"torch 2.99.0+cpu, Python {platform.python_version()}, 3.2 GiB free of 4 GiB; {object()!r}",
    ]
    assert lines == snapshot


def test_numbers_that_only_look_like_it_stay(stable_text: Callable[[str], str]) -> None:
    kept = "page 2026-10 of 12, rank 3.2, torch 2.14, learning rate 1e-3, 3.2 GiB needed, 16:9"
    assert stable_text(kept) == kept


def test_another_class_or_no_error_fails(refuses: Refuses) -> None:
    with refuses(DataError) as caught:
        raise DataError("the stored message")
    assert isinstance(caught.value, DataError)
    with pytest.raises(DataError), refuses(RequestError):
        raise DataError("the stored message")
    with pytest.raises(pytest.fail.Exception), refuses(DataError):
        pass


def test_every_stored_text_is_of_a_test_that_is_there() -> None:
    """`make test` and `make test-long` run a part each, and a part reports no unused ones."""
    stale = [
        f"{stored.name}: {test}"
        for stored in Path(__file__).parent.rglob("__snapshots__/*.ambr")
        for file in [stored.parents[1] / f"{stored.stem}.py"]
        for test in re.findall(r"^# name: (\w+)", stored.read_text("utf-8"), re.MULTILINE)
        if not file.is_file() or f"def {test}(" not in file.read_text("utf-8")
    ]
    assert stale == []
