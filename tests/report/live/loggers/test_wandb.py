"""W&B: without credentials nothing is asked, the files are written offline."""

from pathlib import Path

import pytest
from fixture_types import Captured

from brimful.report.live.logger import LoggedRun, logging_listener

pytest.importorskip("wandb", reason="needs the extra wandb")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
RUN = "fedcba9876543210fedcba9876543210"


def _log(tmp_path: Path) -> list[str]:
    notes: list[str] = []
    with logging_listener(["wandb"], LoggedRun(tmp_path, RUN), notes.append) as listen:
        listen({"kind": "start", "step": 0, "resumed": False})
        listen({"kind": "step", "step": 1, "loss": 2.0})
    return notes


def test_without_a_key_the_files_are_written_offline_and_one_note_says_how_to_send_them(
    offline: None, tmp_path: Path, capfd: Captured
) -> None:
    (note,) = _log(tmp_path)
    assert "wandb login" in note
    assert f"wandb sync {tmp_path}/wandb/offline-run-*" in note
    assert len(list(tmp_path.glob(f"wandb/offline-run-*/run-{RUN}.wandb"))) == 1
    assert capfd.readouterr() == ("", "")
