"""Where a mirror may lie."""

import os
import time
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RunFolderError
from brimful.mirror import place as module
from brimful.mirror.files import Files
from brimful.mirror.place import Place, within_limit


def _run_folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "tiny"


def test_a_place_is_the_runs_name_in_the_mirror_and_is_made_without_anything_above_it(
    tmp_path: Path,
) -> None:
    place = Place.of(str(tmp_path / "drive"), _run_folder(tmp_path))
    place.make(Files())

    assert place.folder == tmp_path / "drive" / "tiny"
    assert place.folder.is_dir()
    assert place.same_disk

    (tmp_path / "runs").mkdir()
    (tmp_path / "large").mkdir()
    _run_folder(tmp_path).symlink_to(tmp_path / "large")
    assert Place.of(str(tmp_path / "drive"), _run_folder(tmp_path)).folder == place.folder


@pytest.mark.parametrize(
    ("mirror", "told"),
    [
        ("runs", "holds the run itself"),
        ("runs/tiny", "within each other"),
        ("runs/tiny/mirror", "within each other"),
        ("missing/drive", "is the drive mounted"),
        ("file", "is a file"),
    ],
)
def test_a_mirror_that_protects_nothing_or_has_no_place_is_refused(
    tmp_path: Path, mirror: str, told: str, refuses: Refuses
) -> None:
    (tmp_path / "file").write_text("")
    with refuses(RunFolderError, names=[told, "run.mirror=PATH"]):
        Place.of(str(tmp_path / mirror), _run_folder(tmp_path))


@pytest.mark.parametrize("mirror", ["~nobody-of-that-name/x", "loop", "a\0b", "missing/drive"])
def test_a_path_that_leads_nowhere_is_refused_in_one_sentence(tmp_path: Path, mirror: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(
        RunFolderError,
        match=(
            r"^run\.mirror=.* cannot be used: .*[^.?]\. Choose another folder with run\.mirror=PATH"
        ),
    ):
        Place.of(
            mirror if mirror.startswith("~") else str(tmp_path / mirror), _run_folder(tmp_path)
        )


def test_a_mirrored_run_that_would_hold_the_run_folder_is_refused(
    tmp_path: Path, refuses: Refuses
) -> None:
    with refuses(RunFolderError):
        Place.of(str(tmp_path), tmp_path / "tiny" / "deeper" / "tiny")


def test_a_drive_that_is_not_mounted_any_more_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    drive, real = tmp_path / "drive", os.path.ismount
    drive.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: Path(path) == drive or real(path))
        place = Place.of(str(drive), _run_folder(tmp_path))
        place.require_there()
    with refuses(OSError):
        place.make(Files())
    assert list(drive.iterdir()) == []


def test_a_mirror_is_written_to_before_it_is_relied_on(tmp_path: Path, refuses: Refuses) -> None:
    class ReadOnly(Files):
        def write(self, descriptor: int, data: bytes) -> None:
            raise OSError(30, "Read-only file system")

    place = Place.of(str(tmp_path / "drive"), _run_folder(tmp_path))
    place.require_writable(Files())
    assert list(place.root.iterdir()) == []
    with refuses(RunFolderError, names=["run.mirror"]):
        place.require_writable(ReadOnly())


def test_a_mirror_that_gives_no_answer_at_the_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    class Hanging(Files):
        def sync(self, descriptor: int) -> None:
            time.sleep(0.3)

    monkeypatch.setattr(module, "START_LIMIT_S", 0.05)
    with refuses(RunFolderError):
        Place.of(str(tmp_path), _run_folder(tmp_path)).require_writable(Hanging())


def test_a_call_that_hangs_is_left_behind_and_one_that_fails_says_so(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    def fail() -> None:
        raise TimeoutError("no")

    assert within_limit("drive", lambda: 7) == 7
    with pytest.raises(OSError, match=r"^no$"):
        within_limit("drive", fail)
    monkeypatch.setattr(module, "START_LIMIT_S", 0.02)
    with refuses(RunFolderError):
        within_limit("drive", lambda: time.sleep(0.2))
