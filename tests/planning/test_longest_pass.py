"""What the passes of a run hold, found by laying out its steps."""

from fixture_types import MakeRecipe

from brimful.planning.longest_pass import SOME_PASSES, STEPS_LAID_OUT, LongestPass, longest_pass_of


def test_the_longest_pass_and_the_longest_that_finds_gradients_count(
    tiny: MakeRecipe,
) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=4")
    steps = {0: [40], 4: [10, 12, 11], 8: [99]}

    def lay_out(first: int, count: int, budget: int) -> list[int]:
        assert (count, budget) == (4, 64)
        return steps[first]

    assert longest_pass_of(lay_out, recipe, steps=2, room=2) == LongestPass(
        40 / 32,
        12 / 32,
        some=(40 / 32, 10 / 32, 12 / 32, 11 / 32),
        passes=4,
        step_rows=(40 + 10 + 12 + 11) / 32 / 2,
        step_passes=2.0,
    )


def test_of_devices_that_share_a_step_the_passes_of_one_are_laid_out(tiny: MakeRecipe) -> None:
    recipe, asked = tiny("sequence_length=32", "batch.sequences=4"), list[tuple[int, int]]()

    def lay_out(first: int, count: int, budget: int) -> list[int]:
        asked.append((first, count))
        return [16, 8]

    found = longest_pass_of(lay_out, recipe, steps=2, room=2, devices=2)

    assert asked == [(0, 2), (2, 2), (4, 2), (6, 2)]
    assert (found.passes, found.step_passes, found.step_rows) == (4, 2, 24 / 32)


def test_later_passes_of_the_first_step_find_no_optimizer_states(
    tiny: MakeRecipe,
) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=4")
    steps = {0: [20, 16], 4: [30], 8: [20, 4]}

    found = [
        longest_pass_of(lambda first, count, budget: steps[first], recipe, steps=count, room=2)
        for count in (1, 2, 3)
    ]

    assert [each.later_rows for each in found] == [16 / 32, 0, 4 / 32]


def test_where_every_step_has_one_pass_none_finds_gradients(tiny: MakeRecipe) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=4")

    found = longest_pass_of(lambda first, count, budget: [first + 1], recipe, steps=3, room=2)

    assert (found.rows, found.later_rows) == (9 / 32, 0)


def test_the_longest_passes_are_kept_beside_the_first(tiny: MakeRecipe) -> None:
    recipe = tiny("sequence_length=2", "batch.sequences=4")

    found = longest_pass_of(
        lambda first, count, budget: [first + 2, first + 1], recipe, steps=100, room=2
    )

    assert found.some[:7] == (1, 0.5, 3, 2.5, 5, 4.5, 7)
    assert found.some[-3:] == (59, 198.5, 199)
    assert len(found.some) == SOME_PASSES + 1


def test_of_a_long_run_the_first_steps_are_laid_out(tiny: MakeRecipe) -> None:
    recipe, asked = tiny("batch.sequences=4"), list[int]()

    def lay_out(first: int, count: int, budget: int) -> list[int]:
        asked.append(first)
        return [1]

    found = longest_pass_of(lay_out, recipe, steps=10**6, room=1)
    unknown = longest_pass_of(lay_out, recipe, steps=None, room=1)

    assert (found.passes, unknown.passes) == (10**6, None)
    assert asked == 2 * list(range(0, 4 * STEPS_LAID_OUT, 4))
