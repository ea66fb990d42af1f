import os
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.verify import landlock, seccomp


def status_of(action: "object") -> int:
    """Exit status of a forked process that runs an action."""
    child = os.fork()
    if child == 0:
        try:
            action()  # type: ignore[operator]
        except PermissionError:
            os._exit(13)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(autouse=True)
def _offered() -> None:
    if landlock.version() < landlock.OLDEST:
        pytest.skip("this kernel offers no Landlock, or too old a version")


@pytest.mark.parametrize(
    ("name", "mode", "refused"),
    [
        ("read/a", "r", False),
        ("read/a", "w", True),
        ("read/new", "w", True),
        ("write/a", "r+", False),
        ("write/new", "w", False),
        ("other/a", "r", True),
    ],
)
def test_files_open_as_the_rules_say(tmp_path: Path, name: str, mode: str, refused: bool) -> None:
    for folder in ("read", "write", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_text("text")
    rules = landlock.ruleset([tmp_path / "read", tmp_path / "absent"], [tmp_path / "write"])

    def attempt() -> None:
        seccomp.forbid_privileges()
        landlock.restrict_self(rules)
        (tmp_path / name).open(mode).close()

    assert status_of(attempt) == (13 if refused else 0)
    os.close(rules)


def test_an_old_version_is_not_taken(monkeypatch: pytest.MonkeyPatch, refuses: Refuses) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 2)

    with refuses(OSError, names=["version 2"]):
        landlock.ruleset([], [])
