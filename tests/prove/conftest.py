"""A folder to prove things in, with recipes so small that a trial takes seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from brimful.prove.material import write_material
from brimful.prove.trials import DOCUMENTS
from brimful.prove.workplace import Workplace


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A workplace on this CPU, with its data."""
    folder = tmp_path / "proof"
    write_material(folder)
    return Workplace(folder, "cpu")


@pytest.fixture
def toy() -> Mapping[str, Any]:
    """The recipe of the first trial, one block of it, in fp32."""
    return DOCUMENTS | {
        "model": {"architecture": "llama", "layers": 1, "heads": 2, "width": 32},
        "batch": {"sequences": 4},
        "plan": {"precision": "fp32", "threads": 1, "compile": False},
    }
