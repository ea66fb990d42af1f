"""Which kind of run a method makes, and what the kinds say about themselves."""

import pytest
from fixture_types import Refuses

from brimful.base.discover import names_in
from brimful.base.errors import BrimfulError
from brimful.recipe.kinds import KINDS, kind_of_method, training_methods


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("pretrain", "documents"),
        ("feedback", "documents"),
        ("mlm", "masked"),
        ("sft", "examples"),
        ("dpo", "pairs"),
        ("kto", "judged"),
        ("grpo", "rewarded"),
        ("classify", "labels"),
    ],
)
def test_a_method_makes_one_kind_of_run(method: str, kind: str) -> None:
    assert kind_of_method(method) is KINDS[kind]
    assert kind_of_method(method).name == kind


def test_every_file_of_a_method_belongs_to_exactly_one_kind() -> None:
    assert training_methods() == names_in("brimful.training.methods", ".py")


def test_an_unknown_method_has_no_kind(refuses: Refuses) -> None:
    with refuses(BrimfulError, names=["'ppo'"]):
        kind_of_method("ppo")


def test_only_rows_of_a_stream_of_documents_have_one_length() -> None:
    varying = {
        (name, layout)
        for name, kind in KINDS.items()
        for layout in ("stream", "document")
        if kind.lengths_vary(layout)
    }

    assert {("documents", "stream"), ("masked", "stream")}.isdisjoint(varying)
    assert len(varying) == 12


def test_a_trained_model_does_one_thing() -> None:
    for kind in KINDS.values():
        abilities = (kind.continues_text, kind.answers_prompts, kind.fills_masks, kind.gives_labels)
        assert sum(abilities) == 1
