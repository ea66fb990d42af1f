"""Other libraries get what brimful gives itself, and the best of them is the one to beat."""

import os
import subprocess
import sys
from typing import Any

import pytest

from brimful.base.env import WHOLE_HEAP
from compare import KINDS, comparison
from contestants.preferences import GATE
from contestants.process import KEPT, allocator_variables, and_memory_kept, fastest, setting
from contestants.rounds import Comparison, Found, result

FAULTS = """
import resource
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    data = bytearray(b'x') * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(); print(faults())
"""


def test_a_library_keeps_freed_memory_where_it_is_asked_to() -> None:
    """In processes of their own: 64 MiB that were freed and are taken again."""

    def faults(name: str) -> int:
        variables = os.environ | allocator_variables(name)
        words = [sys.executable, "-c", FAULTS]
        return int(subprocess.run(words, env=variables, capture_output=True, check=True).stdout)

    plain, kept = map(faults, and_memory_kept(["Trainer, default"]))
    if plain < 1000:
        pytest.skip("this C library or kernel keeps freed memory anyway")
    assert kept < plain / 10


def test_brimful_starts_with_the_heap_of_its_commands_and_others_as_they_come() -> None:
    assert allocator_variables("brimful, fp32") == WHOLE_HEAP
    assert allocator_variables("Trainer, default") == {}
    assert setting(f"Trainer, default{KEPT}") == setting("Trainer, default") == "Trainer, default"


def test_the_fastest_of_the_others_is_the_one_to_beat() -> None:
    seconds = {"brimful": [1.0, 1.0], "Trainer": [4.0, 2.0], f"Trainer{KEPT}": [2.5, 2.5]}

    assert fastest(seconds) == f"Trainer{KEPT}"
    assert fastest({"brimful": [1.0], "brimful, fp32": [2.0]}) == "brimful"


class _Kind(Comparison):
    record, unit, names = "kind", "steps", ("Trainer", f"Trainer{KEPT}", "pipeline", "brimful")
    judged_by = ("brimful",)

    def default(self, name: str) -> str:
        return "pipeline" if name == "pipeline" else "Trainer"

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        return found.equal_loss(name, "Trainer", 0.1)


def test_a_contestant_is_compared_with_its_own_rivals_and_counts_where_its_loss_is_theirs() -> None:
    """The pipeline is quicker, but does other work."""
    seconds = {"Trainer": [4.0], f"Trainer{KEPT}": [2.0], "pipeline": [0.1], "brimful": [1.0]}
    losses = {name: [9.0] * 5 + [1.0] * 10 for name in seconds} | {"pipeline": [2.0] * 10}
    found = Found({}, losses, seconds, {name: {"precision": "fp32"} for name in seconds})

    ours, other = (result(_Kind(), name, found) for name in ("brimful", "pipeline"))

    assert ours["best_of_others"] == f"Trainer{KEPT}"
    assert ours["speed_over_default"]["median"] == 4
    assert ours["speed_over_best"]["median"] == 2
    assert (ours["precision"], ours["valid"], other["valid"]) == ("fp32", True, False)


def test_what_results_are_judged_by_is_missed_where_it_does_not_run() -> None:
    kind = _Kind()

    assert kind.missing(["pipeline"]) == {"brimful"}
    assert kind.missing(["brimful"]) == {"Trainer"}
    assert kind.missing(["Trainer", "brimful"]) == set()


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_judged_by_contestants_that_it_has(name: str) -> None:
    kind = comparison(name)

    assert kind.missing(kind.names) == set()
    assert set(kind.judged_by) <= set(kind.names)


@pytest.mark.parametrize(("loss", "is_valid"), [(0.402, True), (0.41, False), (0.39, False)])
def test_preferences_count_where_held_out_pairs_have_the_loss_of_fp32(
    loss: float, is_valid: bool
) -> None:
    """However far losses of steps are apart, which bf16 rounds."""
    losses = {"brimful": [0.7, 0.6], GATE: [0.69, 0.5]}
    told = {"brimful": {"held_out_loss": loss}, GATE: {"held_out_loss": 0.4}}

    judged = comparison("preferences").judge("brimful", Found({}, losses, {}, told))

    assert judged == {"losses": [0.7, 0.6], "gate": GATE, "valid": is_valid}
