"""How verbs load what they need."""

import gc
import sys
from collections.abc import Iterator

import pytest
import torch

from brimful.cli.output import loading


@pytest.fixture
def before_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that did not import torch yet."""
    gc.unfreeze()
    monkeypatch.delitem(sys.modules, "torch")
    yield
    gc.freeze()


@pytest.mark.usefixtures("before_torch")
def test_while_torch_loads_garbage_is_not_looked_for_and_later_not_in_what_was_loaded() -> None:
    with loading():
        assert not gc.isenabled()
        sys.modules["torch"] = torch
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000


@pytest.mark.usefixtures("before_torch")
def test_a_verb_without_torch_looks_for_garbage_everywhere_also_after_an_error() -> None:
    with pytest.raises(ImportError), loading():
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_where_torch_is_loaded_already_nothing_changes() -> None:
    frozen = gc.get_freeze_count()
    with loading():
        assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen  # what was frozen before may have been freed
