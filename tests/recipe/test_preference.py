"""What the section preference takes, and what it means where it says nothing."""

import pytest
from fixture_types import MakeRecipe, Refuses

from brimful.base.errors import RecipeError
from brimful.recipe import load_text
from brimful.recipe.preference import PreferenceRecipe, reference_of, rules_of


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (["method=sft", "preference.beta=0.1"], ["preference=null"]),
        (["data.loss_on=all"], ["data.loss_on"]),
        (["adapter=null", "preference.reference=in_passes"], ["preference.reference=kept"]),
        (["preference.loss=simpo", "preference.reference=kept"], ["simpo"]),
        (["preference.loss=robust"], ["label_smoothing"]),
        (["preference.loss=ipo", "preference.label_smoothing=0.1"], ["label_smoothing"]),
        (["preference.margin=0.5"], ["simpo"]),
        (["preference.loss=orpo", "preference.per_token=false"], ["per_token"]),
        (["preference.loss=kto"], ["method=kto"]),
        (["preference.desirable_weight=2"], ["desirable_weight"]),
        (["method=kto", "preference.loss=ipo"], ["method=dpo"]),
        (["method=kto", "preference.sft_weight=1"], ["sft_weight"]),
    ],
)
def test_what_does_not_go_together_is_refused(
    tuning: MakeRecipe, refuses: Refuses, changes: list[str], names: list[str]
) -> None:
    with refuses(RecipeError, names=names):
        tuning("method=dpo", *changes)


def test_a_loss_is_as_its_paper_defines_it_unless_the_recipe_says_otherwise() -> None:
    simpo = PreferenceRecipe(loss="simpo").resolved

    assert (simpo.beta, simpo.margin, simpo.per_token, simpo.sft_weight) == (2.0, 1.0, True, 0.0)
    assert PreferenceRecipe().resolved.beta == 0.1
    assert PreferenceRecipe(loss="ipo", per_token=False).resolved.per_token is False
    assert PreferenceRecipe(loss="orpo").resolved.sft_weight == 1.0


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ([], "in_passes"),
        (["preference.reference=kept"], "kept"),
        (["adapter=null"], "kept"),
        (["adapter.start=FOLDER"], "kept"),
        (["preference.loss=cpo"], "none"),
    ],
)
def test_the_reference_is_kept_where_switching_adapters_off_does_not_give_it(
    tuning: MakeRecipe, changes: list[str], source: str
) -> None:
    assert reference_of(tuning("method=dpo", *changes)) == source


def test_judged_answers_have_a_loss_of_their_own(tuning: MakeRecipe) -> None:
    """And what decides it are their weights, not what decides the loss of pairs."""
    judged, pairs = (tuning(f"method={name}").loss_options["preference"] for name in ("kto", "dpo"))
    assert (judged["loss"], pairs["loss"]) == ("kto", "sigmoid")
    assert judged.keys() - pairs.keys() == {"desirable_weight", "undesirable_weight"}
    assert "sft_weight" in pairs.keys() - judged.keys()
    again = load_text(tuning("method=kto", "preference.beta=0.2").to_yaml(), "again")
    assert rules_of(again).loss == "kto"


def test_a_resolved_recipe_loads_again(tuning: MakeRecipe) -> None:
    recipe = tuning("method=dpo", "preference.loss=simpo")

    assert recipe.preference is not None
    again = tuning("method=dpo", f"preference={recipe.preference.model_dump_json()}")
    assert again == recipe
