"""A threshold does what its policy says on the examples it was chosen on, and decisions follow
it.
"""

import numpy as np
import pytest
from fixture_types import Refuses
from sklearn.metrics import f1_score, precision_score, recall_score
from syrupy.assertion import SnapshotAssertion

from brimful.base.arrays import Bools, Floats
from brimful.base.errors import RequestError
from brimful.classification.thresholds import (
    Policy,
    _candidates,
    _error_of_difference,
    choose_threshold,
    decide,
    parse_policy,
)


def _random(seed: int, digits: int) -> tuple[Floats, Bools]:
    """Probabilities, with ties where few digits are kept, and whether each example has the label
    (at least one does).
    """
    generator = np.random.default_rng(seed)
    scores_E = generator.random(40).round(digits)
    has_E = generator.random(40) < scores_E
    has_E[0] = True
    return scores_E, has_E


def _every_choice(scores_E: Floats, has_E: Bools) -> Floats:
    """Precision, recall and F1 of every way to split the distinct probabilities, [K, 3]."""
    given = [scores_E >= value for value in np.unique(scores_E)]
    return np.array(
        [
            [
                (has_E & each).sum()
                / np.array([each.sum(), has_E.sum(), (each.sum() + has_E.sum()) / 2])
            ]
            for each in given
        ]
    ).reshape(-1, 3)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("best_f1", Policy("best_f1")),
        (" precision >= 0.9 ", Policy("precision", 0.9)),
        ("recall>=1", Policy("recall", 1.0)),
        ("recall>=.95", Policy("recall", 0.95)),
        ("0.5", Policy("fixed", 0.5)),
        ("1e-3", Policy("fixed", 0.001)),
    ],
)
def test_policies_are_read_and_written_in_one_spelling(text: str, policy: Policy) -> None:
    assert parse_policy(text) == policy
    assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "best",
        "f1",
        "precision",
        "precision>0.9",
        "precision>=",
        "precision>=1.5",
        "recall>=0",
        "0",
        "1",
        "-0.5",
        "90%",
        "nan",
        "1_0",
        "٠.٥",
    ],
)
def test_an_unknown_policy_is_an_error_that_says_what_is_accepted(
    text: str, refuses: Refuses
) -> None:
    with refuses(RequestError):
        parse_policy(text)


@pytest.mark.parametrize("digits", [1, 8], ids=["ties", "distinct"])
@pytest.mark.parametrize("seed", range(8))
def test_each_policy_finds_the_best_of_all_splits(seed: int, digits: int) -> None:
    scores_E, has_E = _random(seed, digits)
    every = _every_choice(scores_E, has_E)
    best = choose_threshold("best_f1", scores_E, has_E)
    precise = choose_threshold("precision>=0.75", scores_E, has_E)
    complete = choose_threshold("recall>=0.9", scores_E, has_E)

    assert best.f1 == pytest.approx(every[:, 2].max())
    precise_enough = every[every[:, 0] >= 0.75]
    assert precise.reached is bool(len(precise_enough))
    assert precise.recall == pytest.approx(
        precise_enough[:, 1].max()
        if len(precise_enough)
        else every[every[:, 0] == every[:, 0].max(), 1].max()
    )
    assert complete.reached
    assert complete.precision == pytest.approx(every[every[:, 1] >= 0.9][:, 0].max())


@pytest.mark.parametrize("policy", ["best_f1", "precision>=0.75", "recall>=0.9", "0.3"])
def test_what_a_threshold_says_of_itself_is_what_it_does(policy: str) -> None:
    scores_E, has_E = _random(3, 2)
    found = choose_threshold(policy, scores_E, has_E)
    given_E = scores_E >= found.value

    assert found.policy == policy
    expected = [
        precision_score(has_E, given_E),
        recall_score(has_E, given_E),
        f1_score(has_E, given_E),
    ]
    assert [found.precision, found.recall, found.f1] == pytest.approx(expected)


def test_thresholds_lie_midway_between_neighbours() -> None:
    found = choose_threshold("best_f1", [0.1, 0.2, 0.6, 0.9], [False, False, True, True])

    assert found.value == pytest.approx(0.4)
    assert found.f1 == 1.0


def test_between_neighbouring_floats_the_higher_one_is_the_threshold() -> None:
    low = 0.6
    high = float(np.nextafter(low, 1))

    assert choose_threshold("best_f1", [low, high], [False, True]).value == high


def test_examples_of_equal_probability_are_never_told_apart(snapshot: SnapshotAssertion) -> None:
    found = choose_threshold("precision>=1", [0.8, 0.8, 0.8, 0.3], [True, False, True, False])

    assert not found.reached
    assert found.precision == pytest.approx(2 / 3)
    assert found.recall == 1.0
    assert found.note == snapshot


def test_among_equal_choices_the_one_nearest_to_a_half_is_taken() -> None:
    """0.55 (one of two) and 0.1 (both of four) have the same F1."""
    found = choose_threshold("best_f1", [0.9, 0.2, 0.2, 0.2], [True, True, False, False])

    assert found.value == pytest.approx(0.55)


def test_a_best_threshold_that_is_partly_luck_leans_to_a_half() -> None:
    """19 positives, of which one lies low, below a negative: a threshold of 0.0112 looks best by
    that one alone, by 0.0014 of F1 with a standard error of 0.037.
    """
    positives, negatives = [0.99] * 17 + [0.6, 0.0113], [0.001] * 200 + [0.0111, 0.02]
    scores, has_label = [*positives, *negatives], [1] * 19 + [0] * 202
    assert choose_threshold("best_f1", scores, has_label).value == pytest.approx(0.0112)
    assert choose_threshold("best_f1", scores, has_label, leans=True).value == 0.5


def test_a_best_threshold_that_many_examples_speak_for_stays() -> None:
    scores, has_label = [0.2] * 300 + [0.9] * 20 + [0.02] * 2000, [1] * 320 + [0] * 2000
    assert choose_threshold("best_f1", scores, has_label, leans=True).value == pytest.approx(0.11)
    assert choose_threshold("precision>=0.9", scores, has_label, leans=True) == choose_threshold(
        "precision>=0.9", scores, has_label
    )


def test_the_error_of_a_difference_of_f1_is_what_the_examples_change() -> None:
    """Each example's influence by finite differences of a weighted F1, squared and summed."""
    random = np.random.default_rng(1)
    scores_E, has_E = random.random(60).round(2), random.random(60) < 0.4
    values_K, _, recall_K = _candidates(scores_E, has_E)
    given_KE = scores_E >= values_K[:, None]
    best = len(values_K) // 3

    def f1_of(weights_E: Floats) -> Floats:
        hits_K = (given_KE * has_E * weights_E).sum(1)
        return np.asarray(2 * hits_K / ((given_KE * weights_E).sum(1) + (has_E * weights_E).sum()))

    step = 1e-6
    changes_KE = np.stack(
        [
            (f1_of(np.ones(60) + step * (np.arange(60) == e)) - f1_of(np.ones(60))) / step
            for e in range(60)
        ],
        axis=1,
    )
    expected_K = np.sqrt(((changes_KE - changes_KE[best]) ** 2).sum(1))
    found_K = _error_of_difference(
        recall_K * has_E.sum(), given_KE.sum(1).astype(float), int(has_E.sum()), best
    )
    np.testing.assert_allclose(found_K, expected_K, atol=1e-5)


def test_all_probabilities_equal_give_the_label_to_all() -> None:
    found = choose_threshold("best_f1", np.zeros(4), [True, False, False, False])

    assert (found.value, found.recall) == (0.0, 1.0)


@pytest.mark.parametrize("scores", [[], [0.2, 0.9]])
def test_without_an_example_of_the_label_the_threshold_is_a_half_and_says_so(
    scores: list[float],
    snapshot: SnapshotAssertion,
) -> None:
    found = choose_threshold("recall>=0.9", scores, np.zeros(len(scores), bool))

    assert (found.value, found.reached, found.recall) == (0.5, False, None)
    assert found.note == snapshot


def test_a_fixed_threshold_may_give_the_label_to_nobody() -> None:
    found = choose_threshold("0.99", [0.2, 0.9], [False, True])

    assert (found.precision, found.recall, found.f1, found.reached) == (None, 0.0, 0.0, True)


def test_of_two_labels_the_positive_one_is_given_from_its_threshold_on() -> None:
    given_EC = [[0.7, 0.3], [0.71, 0.29], [0.2, 0.8]]

    assert decide(given_EC, [0.3], positive=1, multiple=False).tolist() == [1, 0, 1]
    assert decide(given_EC, [0.7], positive=0, multiple=False).tolist() == [0, 0, 1]


def test_of_more_labels_the_likeliest_and_of_several_each_by_its_own_threshold() -> None:
    given_EC = [[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]

    assert decide(given_EC, [], positive=None, multiple=False).tolist() == [1, 0]
    assert decide(given_EC, [0.2, 0.6, 0.31], positive=None, multiple=True).tolist() == [
        [1, 0, 0],
        [1, 0, 0],
    ]


@pytest.mark.parametrize(
    ("thresholds", "positive", "multiple"),
    [([], 1, False), ([0.5], None, False), ([0.5], None, True)],
)
def test_a_wrong_number_of_thresholds_is_an_error(
    thresholds: list[float], positive: int | None, multiple: bool, refuses: Refuses
) -> None:
    with refuses(ValueError):
        decide([[0.5, 0.5]], thresholds, positive=positive, multiple=multiple)
