"""A run goes on with other versions only as far as that is known to work, and says so."""

from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRecipe
from rich.console import Console

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_journal, read_json, write_json_atomically
from brimful.chains.checks import (
    changed_versions,
    describe_changes,
    refuse_breaking_versions,
)
from brimful.chains.pipeline import train
from brimful.hardware.environment import describe_environment
from brimful.hardware.probe import cpu_device

QUIET = Console(quiet=True)


def _trained_with(folder: Path, *, brimful: str | None = None, **packages: str) -> None:
    """Let a run's last session have had other versions."""
    values = read_json(folder / "environment.json")
    values["packages"] |= packages
    values["brimful"] = brimful or values["brimful"]
    write_json_atomically(folder / "environment.json", values)


def _told(folder: Path) -> list[str]:
    """What the journal says of other versions."""
    messages = [str(each.get("message")) for each in read_journal(folder / "metrics.jsonl")]
    return [message for message in messages if "other versions" in message]


def test_what_may_round_otherwise_is_told_and_what_breaks_is_refused_unless_accepted(
    tiny: MakeRecipe,
) -> None:
    folder = train(tiny("training.steps=6"), QUIET).folder
    before = sorted(path.name for path in folder.iterdir())
    _trained_with(folder, torch="2.1.0", transformers="3.0.2")
    longer, accepted = tiny("training.steps=8"), ["training.steps"]

    advice = "--accept-change versions.transformers"
    with pytest.raises(RunFolderError, match=r"transformers: 3\.0\.2 -> ") as caught:
        train(longer, QUIET, accept=accepted)
    assert str(caught.value).endswith(advice)
    assert "torch" not in str(caught.value)
    assert sorted(path.name for path in folder.iterdir()) == before

    train(longer, QUIET, accept=[*accepted, advice.split()[1]])
    told = _told(folder)
    assert len(told) == 1
    assert "torch 2.1.0 -> " in told[0]

    train(tiny("training.steps=9"), QUIET, accept=accepted)  # by now with the same versions
    assert _told(folder) == told


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({"brimful": "999.1"}, True),
        ({"brimful": "0.0.1"}, False),
        ({"peft": "99.0.0"}, True),
        ({"torch": "99.0.0+cu999"}, False),
        ({}, False),
    ],
)
def test_an_older_brimful_and_other_major_versions_of_the_models_are_known_to_break(
    tmp_path: Path, changes: dict[str, str], is_refused: bool
) -> None:
    device = cpu_device()
    write_json_atomically(tmp_path / "environment.json", describe_environment(device))
    _trained_with(tmp_path, **changes)
    assert changed_versions(tmp_path, device).keys() == changes.keys()
    if not is_refused:
        refuse_breaking_versions(tmp_path, device, [])
        return
    with pytest.raises(RunFolderError):
        refuse_breaking_versions(tmp_path, device, [])
    refuse_breaking_versions(tmp_path, device, ["versions"])


def test_a_run_without_an_environment_or_a_package_that_is_new_is_no_change(tmp_path: Path) -> None:
    device = cpu_device()
    assert changed_versions(tmp_path, device) == {}
    write_json_atomically(tmp_path / "environment.json", {"brimful": "", "packages": {}})
    assert changed_versions(tmp_path, device) == {}


def test_another_kind_of_device_also_draws_other_dropout(snapshot: Any) -> None:
    changes = {"torch": ("2.12.0", "2.13.0"), "device": ("cuda", "cpu")}
    assert [describe_changes(changes), describe_changes({})] == snapshot
