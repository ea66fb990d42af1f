"""The page of a proof says what held, what did not, and how good predictions were."""

from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from brimful.prove.page import sentences, write_page
from brimful.prove.record import FAILED, HELD, SKIPPED, Measured, Outcome, ProofRecord
from brimful.prove.trials import TRAINING, Trial

GIB = 2**30


def _measured(key: str, predicted: float, measured: float) -> Measured:
    return Measured(
        key=key, predicted=predicted, low=0.9 * predicted, high=1.2 * predicted, measured=measured
    )


def _trials(*names: str) -> list[Trial]:
    return [Trial(name, TRAINING, f"Training {name}", lambda _place: Outcome()) for name in names]


def _record(folder: Path) -> ProofRecord:
    record = ProofRecord(folder, {"device": "NVIDIA <H200>", "torch": "2.13.0"})
    record.add(
        "a",
        Outcome(
            status=HELD,
            what="20 steps",
            seconds=61.0,
            facts={"micro_batch": 4, "tokens_per_s": 12_345.0, "mfu": 0.31},
            measured=(
                _measured("peak_memory_bytes", 10.0 * GIB, 9.5 * GIB),
                _measured("step_time_s", 0.5, 0.7),
            ),
        ),
    )
    measured = (_measured("peak_memory_bytes", 10.0 * GIB, 13.0 * GIB),)
    record.add("b", Outcome(status=FAILED, what="peak memory above it", measured=measured))
    record.add("c", Outcome(status=SKIPPED, what="no room"))
    return record


def test_sentences_count_what_held_and_judge_predictions(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert sentences(_record(tmp_path), _trials("a", "b", "c", "d")) == snapshot


def test_the_page_shows_every_trial_and_every_measurement(tmp_path: Path) -> None:
    text = write_page(tmp_path, _record(tmp_path), _trials("a", "b", "c", "d")).read_text()

    assert "Does it hold on NVIDIA &lt;H200&gt;?" in text
    for shown in (
        "Training d",
        "not reached",
        "No room",
        "13.0 GiB",
        "outside",
        "+5.3 %",
        "12.35k",
        "31",
    ):
        assert shown in text, shown
    assert "Energy</th>" not in text  # nothing measured it
