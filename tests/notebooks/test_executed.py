"""Every notebook runs from top to bottom on a CPU, with nothing downloaded, and shows what its text
promises.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NAMES = (
    *("tour", "gpt-from-scratch", "code-lora", "okadfa"),
    *("moderation", "reasoning-rft", "preferences"),
)
MOST_LINES = 20
"""Of a training cell's output, once it has ended."""
CELL_S = 400.0
"""A cell may take: long beyond what it needs, as tests share their machine."""


def _outputs(notebook: Any, call: str) -> list[Any]:
    """Of the cell that makes a call."""
    (cell,) = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code"
        and f"nb.{call}(" in cell.source
        and not cell.source.startswith("# @title")
    ]
    found: list[Any] = cell.outputs
    return found


@pytest.mark.parametrize(
    ("code", "contact"),
    [
        ("import socket; socket.create_connection(('192.0.2.1', 443))", "192.0.2.1"),
        (
            "import urllib.request; urllib.request.urlopen('https://huggingface.example')",
            "huggingface.example",
        ),
    ],
)
def test_a_process_that_tries_to_reach_another_machine_is_refused_and_written_down(
    code: str, contact: str, contacts: Path
) -> None:
    tried = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert f"the tests allow no connection to {contact}" in tried.stderr
    assert contacts.read_text().splitlines() == [contact]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long_but("gpt-from-scratch")
def test_a_notebook_runs_from_top_to_bottom(
    name: str, notebooks: Path, contacts: Path, tmp_path: Path
) -> None:
    notebook = nbformat.read(notebooks / f"{name}.ipynb", 4)
    _mount(notebook, tmp_path / "drive")
    NotebookClient(
        notebook, timeout=CELL_S, resources={"metadata": {"path": str(notebooks)}}
    ).execute()

    assert contacts.read_text() == "", "nothing may be downloaded"
    (training,) = _outputs(notebook, "train")
    shown = training["data"]["text/plain"]
    assert ": finished step " in shown
    assert len(shown.splitlines()) <= MOST_LINES
    assert 'role="progressbar"' in training["data"]["text/html"]
    assert "in the mirror" in training["data"]["text/html"]
    assert any((tmp_path / "drive").rglob("model/config.json")), "the mirror holds the finished run"
    (device,), (plan,) = _outputs(notebook, "gpu"), _outputs(notebook, "plan")
    assert ", this machine, and others" in device["data"]["text/html"]
    assert "micro_batch" in plan["data"]["text/html"]
    (report,) = _outputs(notebook, "report")
    assert report["data"]["text/html"].startswith("<iframe title=")
    assert re.search(r"\.zip", "".join(str(output) for output in _outputs(notebook, "download")))
    assert _outputs(notebook, "push") == [], "nothing is sent unless a name is given"
    _check_examples(name, _outputs(notebook, "examples"))


def _mount(notebook: Any, place: Path) -> None:
    """A folder in place of Google Drive, which is mounted only in Colab; the cell that asks for it
    is run, too.
    """
    place.mkdir()
    (cell,) = [cell for cell in notebook.cells if "MIRROR = nb.drive()" in cell.source]
    cell.source += f"\nassert MIRROR is None\nMIRROR = {str(place)!r}\n"


def _check_examples(name: str, outputs: list[Any]) -> None:
    text = "\n".join(output["data"]["text/plain"] for output in outputs)
    expected = {
        "tour": ("Bits per byte", "Bigram", "What it writes"),
        "gpt-from-scratch": ("Bits per byte", "The city of", "goes on"),
        "code-lora": (
            "code-syntax",
            "before tuning",
            "after tuning",
            "checks whether a number is prime",
        ),
        "okadfa": (
            "Mean cosine with backpropagation",
            "Mean cosine of kernel attention with softmax attention",
            "orthogonality violation",
        ),
        "moderation": ("F1 of spam", "free prize, call now", "label spam"),
        "reasoning-rft": ("| base |", "| rft-1 |", "Answers to unit-conversion"),
        "preferences": ("before tuning", "after tuning", "Tell me about the lake."),
    }[name]
    assert [word for word in expected if word not in text] == []
