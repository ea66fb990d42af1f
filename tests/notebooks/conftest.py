"""Notebooks run in real kernels: at the size of a test, in a folder of their own, and without a
network. The commands that their cells start are forked from a warm process.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture(scope="session")
def shared_cache(new_cache: Callable[[], str]) -> str:
    """Of all notebooks: this machine is measured once, and what several of them read is prepared
    once.
    """
    return new_cache()


@pytest.fixture
def notebooks(
    tmp_path: Path,
    contacts: Path,
    warm_processes: None,
    shared_cache: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A copy of the folder of notebooks, told to run small."""
    monkeypatch.setenv("BRIMFUL_CACHE", shared_cache)
    folder = tmp_path / "notebooks"
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns("text", "*.py", "runs"))
    monkeypatch.setenv("BRIMFUL_NOTEBOOK", "small")
    return folder
