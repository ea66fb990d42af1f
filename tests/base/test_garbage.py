"""The garbage collector is off in a block, and afterwards as it was."""

import gc
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize("made_with", ["nanobind", "pybind11_builtins"])
def test_what_was_set_aside_is_freed_at_the_end_where_nanobind_lists_what_is_left(
    made_with: str, tmp_path: Path
) -> None:
    (tmp_path / "extension.py").write_text(
        f"kind = type('meta', (type,), {{'__module__': {made_with!r}}})"
    )
    program = (
        "import atexit, gc; from brimful.base.garbage import importing\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "with importing('extension'): import extension"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert ended.stdout.strip() == str(made_with != "nanobind")
