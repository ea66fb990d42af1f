"""Random damages change what they hit, and what came of them is judged right."""

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from corruption import (
    BAD,
    DAMAGES,
    REWRITES,
    Baseline,
    attempt,
    damage,
    files_of,
)
from damaged_runs import Reply, Run, kept, prepare, quickened, rates_of

NUM_TRIALS = 24
"""Of each run; `python benchmarks/corruption.py` does more, on runs of every kind."""


@pytest.mark.long
def test_no_damage_of_a_run_folder_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path))  # set back at the end
    with quickened():
        runs = prepare(tmp_path / "made", "documents")
        assert len(runs) == 2
        gc.collect()
        gc.freeze()  # planning collects garbage, and looks through less of it then
        try:
            _require_no_silence(runs)
        finally:
            gc.unfreeze()


def test_every_process_of_a_campaign_plans_by_the_same_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = iter([{"fp32": 1.0}, {"fp32": 2.0}])
    monkeypatch.setattr(
        "brimful.hardware.calibrate.measure_matrix_rates", lambda *_: next(measured)
    )
    assert [rates_of(tmp_path) for _ in range(2)] == [{"fp32": 1.0}] * 2


@pytest.mark.parametrize(
    ("trained", "outcome"),
    [
        ("the model is that of step 6: the checkpoint of step 3, the best, is lost", "told"),
        ("B301: a damaged checkpoint was put in quarantine (step 3)", "refused"),
    ],
)
def test_another_model_after_the_advice_is_right_only_where_it_is_said_that_the_best_is_lost(
    trained: str, outcome: str, tmp_path: Path
) -> None:
    folder = tmp_path / "documents-finished" / "documents-finished"
    folder.mkdir(parents=True)
    (folder / "a").write_text("a")
    run = _Unrepaired(tmp_path, "documents-finished", trained)
    trial = attempt(run, Baseline({"evaluate": Reply(0, {"loss": 1}, "")}), random.Random(0))
    assert trial.outcome == outcome


@dataclass(frozen=True)
class _Unrepaired(Run):
    """Refused, and after the advised training another model."""

    printed: str

    def look(self) -> dict[str, Reply]:
        return {"evaluate": Reply(2, {}, "run the command that trained it again")}

    def train(self, name: str = "", *options: str) -> Reply:
        return Reply(0, {}, self.printed)

    def users(self) -> dict[str, Reply]:
        return {"evaluate": Reply(0, {"loss": 2}, "")}


def _require_no_silence(runs: list[Run]) -> None:
    trials = []
    for run in runs:
        baseline = Baseline.of(run)
        trials += [
            attempt(run, baseline, random.Random(f"{run.name} {seed}"))
            for seed in range(NUM_TRIALS)
        ]
        with kept(run):  # and the judge is not blind
            (run.folder / "metrics.jsonl").write_text('{"kind": "step", "step": 1, "loss": 1.0}\n')
            (run.folder / "run.json").unlink()
            assert not baseline.is_same("report", run.look()["report"])

    assert [trial for trial in trials if trial.outcome in BAD] == []
    assert {trial.outcome for trial in trials} >= {"same", "told", "repaired"}


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
def test_every_rewrite_changes_the_content(
    rewrite: Callable[[bytes, random.Random], bytes],
) -> None:
    for content in (b"x", b'{"loss": 1.25}\n' * 9, bytes(range(1, 200)) * 50):
        assert rewrite(content, random.Random(0)) != content


def test_a_damage_hits_one_file_and_every_file_in_its_turn(tmp_path: Path) -> None:
    names = ["a.json", "b/c.bin", "b/d.txt"]
    (tmp_path / "b").mkdir()
    hit, done = set(), set()
    for seed in range(80):
        for name in names:
            (tmp_path / name).write_text(f"{name} 123")
        assert len(files_of(tmp_path)) == len(names)
        file, kind = damage(tmp_path, random.Random(seed))
        path = tmp_path / file
        assert not path.exists() or path.read_text("latin-1") != f"{file} 123"
        hit.add(file)
        done.add(kind.partition(" ")[0])

    assert hit == set(names)
    assert done == set(DAMAGES)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(0, {"loss": 1}, ""), "same"),
        (Reply(0, {"loss": 2}, ""), "silent"),
        (Reply(0, {}, ""), "silent"),
        (Reply(0, {"loss": 2}, "1 record damaged"), "told"),
        (Reply(0, {"loss": 2}, "nothing lost in 2 ms"), "silent"),
        (Reply(1, {"loss": 1}, ""), "silent"),
        (Reply(2, {}, "brimful: it is damaged"), "refused"),
        (Reply(None, {}, "Traceback"), "traceback"),
    ],
)
def test_an_outcome_is_judged_by_answers_and_by_what_is_told(reply: Reply, outcome: str) -> None:
    undamaged = Reply(0, {"loss": 1}, "nothing lost in 1 ms")
    baseline = Baseline({"evaluate": undamaged})

    assert baseline.judge("evaluate", reply) == outcome
