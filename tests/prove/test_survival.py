"""A run that is killed with SIGKILL and continued by the same command ends with the same weights."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.prove.record import HELD
from brimful.prove.survival import survives
from brimful.prove.workplace import TrialFailed, Workplace

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.mark.long
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
    place: Workplace, toy: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    written = place.write_recipe

    def with_another_seed(self: Workplace, name: str, recipe: Mapping[str, Any]) -> Any:
        return written(name, {**recipe, "seed": len(name)})

    monkeypatch.setattr(Workplace, "write_recipe", with_another_seed)

    with refuses(TrialFailed, names=["other weights"]):
        survives(place, "documents", toy)


@pytest.mark.long
def test_a_run_whose_tokens_do_not_fit_the_disk_is_killed_and_continued(
    place: Workplace, toy: Mapping[str, Any]
) -> None:
    """Its data lie in eight files, whose tokens take 65 KB in all and are gone through twice; the
    tokens of three files fit the limit.
    """
    rows = map(json.loads, (place.folder / toy["data"]["path"]).read_text().splitlines())
    texts = [row["text"][start : start + 500] for row in rows for start in (0, 500)][:160]
    files = place.folder / "files"
    files.mkdir()
    for number in range(8):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[number::8]]
        (files / f"part-{number}.jsonl").write_text("".join(lines))
    data = {**toy["data"], "path": "files", "cache_gib": 2.6e-5, "shuffled_files": 2}

    outcome = survives(place, "documents", {**toy, "data": data})

    assert outcome.status == HELD
    told = json.loads((place.runs / "documents" / "data.json").read_text())
    (note,) = [each for each in told["notes"] if each.startswith("B214")]
    assert "training tokens of 8 files, " in note
    counts = told["splits"]["train"]
    assert 2 * counts["tokens"] > 2.6e-5 * 2**30, "more than fits"
    assert 0.9 * counts["tokens"] < 120 * 4 * 64, "about an epoch"
