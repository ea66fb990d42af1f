"""transformers' progress bars stay away while brimful loads and saves, and come back afterwards."""

import pytest
from transformers.utils import logging as transformers_logging

from brimful.model.quiet import without_progress_bars


@pytest.mark.parametrize("was_on", [True, False])
def test_bars_are_off_inside_and_as_before_outside(was_on: bool) -> None:
    before = transformers_logging.is_progress_bar_enabled()
    try:
        (
            transformers_logging.enable_progress_bar
            if was_on
            else transformers_logging.disable_progress_bar
        )()
        with without_progress_bars():
            assert not transformers_logging.is_progress_bar_enabled()
        assert transformers_logging.is_progress_bar_enabled() is was_on

        with pytest.raises(RuntimeError), without_progress_bars():
            raise RuntimeError
        assert transformers_logging.is_progress_bar_enabled() is was_on
    finally:
        (
            transformers_logging.enable_progress_bar
            if before
            else transformers_logging.disable_progress_bar
        )()
