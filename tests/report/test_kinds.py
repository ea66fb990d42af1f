"""Each kind of run has words, scores and commands of its own."""

import pytest

from brimful.recipe.kinds import KINDS as KINDS_OF_RECIPES
from brimful.report.kinds import KINDS


def test_every_kind_of_a_recipe_has_a_report() -> None:
    assert set(KINDS) == set(KINDS_OF_RECIPES)


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("documents", 'brimful generate x --prompt "..."'),
        ("examples", 'brimful generate x --prompt "..."'),
        ("masked", "brimful evaluate x"),
        ("labels", "brimful predict x FILE"),
    ],
)
def test_each_kind_names_the_command_that_uses_its_model(kind: str, command: str) -> None:
    assert KINDS[kind].use_command("x") == command
