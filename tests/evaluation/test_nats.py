"""Nats per window are kept beside the scores and come back."""

import math
from pathlib import Path

import numpy as np
import pytest

from brimful.base.errors import RunFolderError
from brimful.evaluation.nats import Nats, path_of, read_nats, write_nats


def _nats(*nats: float) -> Nats:
    """Of windows with 1, 2, ... tokens."""
    return Nats(np.array(nats), np.arange(1, len(nats) + 1))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_nats(tmp_path, "validation", _nats(1.5, 2.25))

    found = read_nats(tmp_path, "validation")

    assert found is not None
    assert (found.nats_N.tolist(), found.tokens_N.tolist()) == ([1.5, 2.25], [1, 2])
    assert read_nats(tmp_path, "test") is None


def test_nats_that_are_not_finite_are_not_kept(tmp_path: Path) -> None:
    write_nats(tmp_path, "validation", _nats(1.5, 2.25))
    write_nats(tmp_path, "validation", _nats(1.5, math.nan))

    assert read_nats(tmp_path, "validation") is None


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"nats": [1.0]}',
        '{"nats": [1.0], "tokens": [1, 2]}',
        '{"nats": ["x"], "tokens": [1]}',
        "{",
    ],
)
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    path = path_of(tmp_path, "validation")
    path.parent.mkdir()
    path.write_text(content)

    with pytest.raises(RunFolderError, match="validation-nats"):
        read_nats(tmp_path, "validation")
