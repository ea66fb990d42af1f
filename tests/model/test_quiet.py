"""transformers' progress bars stay away while brimful loads and saves, and come back afterwards;
what libraries compile when they are imported is compiled when it is called.
"""

from typing import Any

import pytest
import torch
from fixture_types import Make
from transformers.utils import logging as transformers_logging

from brimful.base.types import JsonDict
from brimful.model.quiet import compiled_when_called, without_progress_bars


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


def test_functions_are_compiled_once_and_only_when_they_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[tuple[str, JsonDict]] = []

    def compile_(function: Make, **settings: Any) -> Make:
        compiled.append((function.__name__, settings))
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    with compiled_when_called():

        @torch.compile
        def doubled(number: int) -> int:
            return 2 * number

        @torch.compile(dynamic=False)
        def halved(number: int) -> float:
            return number / 2

    assert torch.compile is compile_
    assert not compiled
    assert (doubled(3), doubled(4), halved(3)) == (6, 8, 1.5)
    assert compiled == [("doubled", {}), ("halved", {"dynamic": False})]
