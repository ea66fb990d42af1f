"""A run that is killed with SIGKILL and continued by the same command ends with the same weights."""

from collections.abc import Mapping
from typing import Any

import pytest

from brimful.prove.record import HELD
from brimful.prove.survival import survives
from brimful.prove.workplace import TrialFailed, Workplace

pytestmark = pytest.mark.usefixtures("warm_processes")


def test_a_run_is_killed_continued_exported_and_used(
    place: Workplace, toy: Mapping[str, Any]
) -> None:
    outcome = survives(place, "documents", toy)

    assert outcome.status == HELD
    assert 20 <= outcome.facts["killed_after_step"] < outcome.facts["steps"] == 120
    assert (place.exported("documents") / "config.json").exists()
    output = place.output_of("documents").read_text()
    assert output.count("$ brimful run") == 2
    assert "resum" in output or "continu" in output


def test_a_run_that_ends_with_other_weights_has_failed(
    place: Workplace, toy: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = place.write_recipe

    def with_another_seed(self: Workplace, name: str, recipe: Mapping[str, Any]) -> Any:
        return written(name, {**recipe, "seed": len(name)})

    monkeypatch.setattr(Workplace, "write_recipe", with_another_seed)

    with pytest.raises(TrialFailed, match="other weights"):
        survives(place, "documents", toy)
