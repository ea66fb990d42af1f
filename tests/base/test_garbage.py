"""The garbage collector is off in a block, and afterwards as it was."""

import gc

import pytest

from brimful.base.garbage import collector_off


def test_it_is_on_again_after_the_block_and_after_one_that_failed() -> None:
    with collector_off():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), collector_off():
        raise ImportError
    assert gc.isenabled()


def test_where_it_was_off_it_stays_off() -> None:
    gc.disable()
    try:
        with collector_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
