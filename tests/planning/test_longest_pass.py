"""What the passes of a run hold, found by laying out its steps."""

from collections.abc import Callable

from brimful.planning.longest_pass import STEPS_LAID_OUT, LongestPass, longest_pass_of
from brimful.recipe import Recipe


def test_the_longest_pass_and_the_most_passes_count(tiny: Callable[..., Recipe]) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=4")
    steps = {0: [40], 4: [10, 12, 11], 8: [99]}

    def lay_out(first: int, count: int, budget: int) -> list[int]:
        assert (count, budget) == (4, 64)
        return steps[first]

    assert longest_pass_of(lay_out, recipe, steps=2, room=2) == LongestPass(
        40 / 32, 3, some=(40 / 32, 10 / 32, 12 / 32, 11 / 32)
    )


def test_of_a_long_run_the_first_steps_are_laid_out(tiny: Callable[..., Recipe]) -> None:
    recipe, asked = tiny("batch.sequences=4"), list[int]()

    def lay_out(first: int, count: int, budget: int) -> list[int]:
        asked.append(first)
        return [1]

    longest_pass_of(lay_out, recipe, steps=10**6, room=1)
    longest_pass_of(lay_out, recipe, steps=None, room=1)

    assert asked == 2 * list(range(0, 4 * STEPS_LAID_OUT, 4))
