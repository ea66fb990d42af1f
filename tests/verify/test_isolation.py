import sys
from pathlib import Path

import pytest

from brimful.verify import isolation, seccomp


@pytest.mark.skipif(sys.platform != "linux", reason="levels of Linux")
def test_the_probe_takes_the_strongest_level_that_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [level for level in isolation.LEVELS[:2] if isolation.holds(level, tmp_path)]
    assert isolation.best_level(tmp_path) == [*held, "none"][0]

    monkeypatch.setattr(isolation, "holds", lambda level, _: level == "seccomp")
    assert isolation.best_level(tmp_path) == "seccomp"
    monkeypatch.setattr(isolation, "holds", lambda *_: False)
    assert isolation.best_level(tmp_path) == "none"


@pytest.mark.skipif(sys.platform != "linux", reason="levels of Linux")
def test_a_level_that_lets_files_be_opened_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seccomp, "install", lambda _: None)

    assert not isolation.holds("seccomp", tmp_path)


def test_nothing_holds_on_other_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    assert isolation.best_level(tmp_path) == "none"


def test_modules_are_all_of_the_standard_library() -> None:
    assert {name.partition(".")[0] for name in isolation.MODULES} <= sys.stdlib_module_names
    assert set(isolation.COMMON_MODULES) < set(isolation.MODULES)
