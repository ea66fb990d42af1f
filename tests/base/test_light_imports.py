"""transformers is imported with less, and works as if it had been imported by itself."""

import functools
import importlib
import subprocess
import sys

import pytest

from brimful.base.light_imports import imported_when_called, keep_torch_out

IMPORTED = """
import functools, sys
before = functools.lru_cache
from brimful.base.light_imports import import_transformers
import_transformers()
assert functools.lru_cache is before
assert "scipy.optimize" not in sys.modules

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import import_utils
kept = import_utils.create_import_structure_from_path.cache_info()
assert kept.misses == kept.currsize < kept.hits + 10, kept  # no folder was read twice

from transformers.loss.loss_for_object_detection import linear_sum_assignment
assert [each.tolist() for each in linear_sum_assignment([[1, 0], [0, 1]])] == [[0, 1], [1, 0]]
import scipy.optimize
assert scipy.optimize.linear_sum_assignment is not linear_sum_assignment
"""


@pytest.mark.long
def test_no_folder_is_read_twice_and_what_was_left_out_comes_when_it_is_called() -> None:
    subprocess.run([sys.executable, "-c", IMPORTED], check=True)


def test_a_function_is_that_of_its_module_once_it_is_called() -> None:
    sys.modules.pop("colorsys", None)
    with imported_when_called("colorsys", "rgb_to_hls"):
        from colorsys import rgb_to_hls
    assert "colorsys" not in sys.modules
    assert rgb_to_hls(1, 0, 0) == (0, 0.5, 1)
    assert importlib.import_module("colorsys").rgb_to_hls is not rgb_to_hls


def test_what_is_imported_already_stays() -> None:
    with imported_when_called("functools", "cache"):
        from functools import cache
    assert cache is functools.cache


def test_a_module_that_fails_in_the_block_leaves_nothing_behind() -> None:
    sys.modules.pop("colorsys", None)
    with pytest.raises(ImportError), imported_when_called("colorsys", "rgb_to_hls"):
        from colorsys import nothing_like_this  # type: ignore[attr-defined]  # noqa: F401
    assert "colorsys" not in sys.modules


NO_TORCH = """
import sys
from brimful.base.light_imports import keep_torch_out
keep_torch_out()
from transformers import AutoTokenizer
assert sys.modules["torch"] is None
"""


def test_tokenizers_are_imported_without_torch_and_without_a_notice() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NO_TORCH], check=True, capture_output=True, text=True
    )
    assert ended.stdout + ended.stderr == ""


def test_torch_that_is_imported_stays() -> None:
    torch = importlib.import_module("torch")
    keep_torch_out()
    assert sys.modules["torch"] is torch
