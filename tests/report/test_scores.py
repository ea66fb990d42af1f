"""The score that counts, and its baselines."""

from fixture_types import MakeRun

from brimful.report.scores import baselines, best_evaluation, main_score
from brimful.runs.folder import read_run


def test_baselines_at_the_top_of_scores_serve_a_split_that_has_none(new_run: MakeRun) -> None:
    scores = {
        "validation": {"loss": 2.0},
        "baselines": {"bigram": {"loss": 3.0, "bits_per_byte": 1.5}},
    }
    assert [score.name for score in baselines(read_run(new_run(scores=scores)))] == ["Bigram"]


def test_a_baseline_with_only_a_loss_gets_its_bits_per_byte_from_the_same_tokens(
    new_run: MakeRun,
) -> None:
    scores = {
        "validation": {
            "loss": 2.0,
            "bits_per_byte": 1.0,
            "baselines": {"bigram": {"loss": 3.0}, "trigram_count": {"loss": 2.5}, "tokens": 9},
        }
    }
    found = baselines(read_run(new_run(scores=scores)))
    assert [(score.name, score.loss, score.bits_per_byte) for score in found] == [
        ("Bigram", 3.0, 1.5),
        ("Trigram count", 2.5, 1.25),
    ]


def test_the_best_evaluation_is_that_of_the_least_objective_where_there_is_one(
    new_run: MakeRun,
) -> None:
    def best_of(*pairs: tuple[float, float | None]) -> int | None:
        records = [
            {"kind": "evaluation", "step": step, "loss": loss, "objective": goal}
            for step, (loss, goal) in enumerate(pairs)
        ]
        found = best_evaluation(
            read_run(new_run(f"run-{len(pairs)}", scores=None, metrics=records))
        )
        return None if found is None else found.step

    assert best_of((0.1, 0.0), (0.5, -0.9), (0.4, -0.9), (0.2, None)) == 1
    assert best_of((0.1, None)) is None
    assert best_of() is None


def test_before_the_final_scores_the_best_evaluation_speaks(new_run: MakeRun) -> None:
    losses = {1: 3.5, 2: 3.1, 3: None, 4: 3.2}
    records = [
        {
            "kind": "evaluation",
            "step": at,
            "split": "validation",
            "loss": loss,
            "bits_per_byte": 1.5,
        }
        for at, loss in losses.items()
    ]
    score = main_score(read_run(new_run(scores=None, metrics=records)))
    assert score is not None
    assert (score.name, score.loss) == ("validation, step 2", 3.1)
