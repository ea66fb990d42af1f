"""Imports are not interrupted by the search for garbage."""

import gc

import pytest

from brimful.base.importing import importing


def test_garbage_is_looked_for_again_after_the_imports_and_after_one_that_failed() -> None:
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()


def test_where_garbage_is_not_looked_for_it_stays_so() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
