"""What an atlas answers, and what it refuses."""

import pytest
from fixture_types import Refuses

from brimful.base.errors import DeviceError, RequestError
from brimful.faces.atlas.scope import BATCHES, LENGTHS, METHODS, MODELS, TOKENS, scope_of
from brimful.hardware import catalog
from brimful.model import catalog as models

LLAMA, ENCODER = "meta-llama/Llama-3.1-8B", "google-bert/bert-base-uncased"


def test_without_wishes_well_known_models_are_answered_for_every_device() -> None:
    scope = scope_of()

    assert scope.models == MODELS
    assert all(models.find(model) for model in scope.models)
    assert LLAMA in scope.models
    assert (scope.methods, scope.lengths) == (METHODS, LENGTHS)
    assert (scope.batches, scope.tokens) == (BATCHES, TOKENS)
    assert scope.devices == tuple(catalog.names())


def test_names_are_those_people_use() -> None:
    scope = scope_of(models=["llama-3.1-8b"], methods=["LoRA"], devices=["T4", "4090", "Tesla T4"])

    assert scope.models == (LLAMA,)
    assert scope.methods == ("lora",)
    assert scope.devices == ("Tesla T4", "NVIDIA GeForce RTX 4090")


def test_questions_stay_within_the_context_and_go_from_short_to_long() -> None:
    scope = scope_of(
        models=["openai-community/gpt2"], lengths=[2048, 1024, 512], batches=[64, 8], tokens=[100]
    )

    questions = list(scope.questions("openai-community/gpt2", "lora"))

    assert [(each.length, each.batch) for each in questions] == [
        (512, 8),
        (512, 64),
        (1024, 8),
        (1024, 64),
    ]
    assert scope.size == len(questions) * len(METHODS)


@pytest.mark.parametrize(
    ("wishes", "error"),
    [
        ({"models": ["meta-llama/Llama-3.1-8C"]}, RequestError),
        ({"methods": ["dora"]}, RequestError),
        ({"lengths": [1]}, RequestError),
        ({"tokens": [0]}, RequestError),
        ({"batches": [0]}, RequestError),
        ({"devices": ["H9000"]}, DeviceError),
        ({"models": [ENCODER], "lengths": [4096]}, RequestError),
    ],
)
def test_what_cannot_be_answered_is_refused(
    wishes: dict[str, list[object]], error: type[Exception], refuses: Refuses
) -> None:
    with refuses(error):
        scope_of(**wishes)  # type: ignore[arg-type]
