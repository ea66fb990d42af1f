"""Limits within which rounds of rewarded answers should stay: told once, or the end of the run."""

import pytest

from brimful.base.errors import RequestError
from brimful.recipe.rewards import RewardsRecipe
from brimful.selection.answer_journal import DrawnAnswer
from brimful.selection.answer_limits import agreement, passed

FINE = {"entropy": 0.5, "cut": 0.1, "equal": 0.3, "empty": 0.0, "failed": 0.0, "gamed": 0.0}
BEYOND = {
    "entropy collapses": ({"entropy": 0.001}, {"least_entropy": 0.0}),
    "answers grow until they are cut": ({"cut": 0.95}, {"most_cut": 0.99}),
    "rewards are equal": ({"equal": 1.0}, {}),
    "answers are empty": ({"empty": 0.6}, {"most_empty": 0.7}),
    "verifiers fail": ({"failed": 0.2}, {"most_failed": 0.3}),
    "answers game their tests": ({"gamed": 0.2}, {"most_gamed": 0.3}),
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_limit_that_is_passed_is_told_once_and_stops_a_run_that_says_so(what: str) -> None:
    beyond, allowed = FINE | BEYOND[what][0], BEYOND[what][1]
    rules = RewardsRecipe(patience=2)

    assert not [*passed(rules, [FINE, beyond])]
    (told,) = passed(rules, [FINE, beyond, beyond])
    assert told.startswith("B328: in 2 rounds in a row")
    assert not [*passed(rules, [beyond, beyond, beyond])]
    assert not [*passed(rules, [beyond, beyond, FINE])]
    for rounds in ([FINE, beyond, beyond], [beyond, beyond, beyond]):
        with pytest.raises(RequestError, match=r"rewards\.stop"):
            [*passed(RewardsRecipe(patience=2, stop=True), rounds)]
    if allowed:
        assert not [*passed(RewardsRecipe(patience=2, stop=True, **allowed), [beyond, beyond])]


def test_rounds_of_a_run_from_before_a_limit_was_there_do_not_pass_it() -> None:
    old = {name: value for name, value in FINE.items() if name != "failed"}
    assert not [*passed(RewardsRecipe(patience=2), [old, old])]


def test_sampler_and_trainer_that_disagree_are_told_with_what_helps() -> None:
    drawn = [DrawnAnswer("q", 0, [1, 2], [-1.0, -2.0], "length", "")]
    assert agreement(drawn, [[-1.0, -2.001]]).startswith("sampler and trainer: the log-")
    told = agreement(drawn, [[-1.0, -2.5]])
    assert told.startswith("B329")
    assert "weight_cap" in told
    assert "fp32 avoids it" in told
    of_another_program = agreement(drawn, [[-1.0, -2.5]], " (by another program)")
    assert " on average (by another program), more than 0.1" in of_another_program
    assert "fp32 makes it smaller" in of_another_program
