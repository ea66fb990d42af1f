"""Pasted texts are values: nothing in them is run, loaded by its path, or allowed to keep the
machine busy.
"""

import json
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import BrimfulError, PlanError, RecipeError, RequestError
from brimful.faces.studio.pasted import (
    MOST_CHARACTERS,
    looks_like_recipe,
    pasted_config,
    pasted_recipe,
    published_name,
    refuse_long,
)
from brimful.model import catalog

RECIPE = """
name: x
method: sft
model: {model}
sequence_length: {length}
batch: {{sequences: 2}}
training: {{steps: 3}}
data: {{path: x}}
optimizer: {{learning_rate: 1e-3}}
"""
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


def _recipe(model: str = "openai-community/gpt2", length: int = 32) -> str:
    return RECIPE.format(model=model, length=length)


def test_a_recipe_is_read() -> None:
    assert pasted_recipe(_recipe(), local_folders=False).sequence_length == 32


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (_recipe("/etc/passwd"), RequestError),
        (_recipe("recipe:/etc/passwd"), RecipeError),
        (_recipe("recipe:tiny-gtp"), RecipeError),
        (_recipe(length=1 << 22), RecipeError),
        ("name: [1", RecipeError),
        ("a: &a [1]\nb: *a", RecipeError),
        ("name: !!python/object/apply:os.system [ls]", RecipeError),
        ("a: " + "[" * 5000, RecipeError),
        ("just: this", RecipeError),
    ],
)
def test_what_is_no_recipe_for_a_page_is_refused(
    text: str, error: type[BrimfulError], refuses: Refuses
) -> None:
    with refuses(error):
        pasted_recipe(text, local_folders=False)


def test_a_config_keeps_what_describes_the_network() -> None:
    found = pasted_config(
        json.dumps(
            CONFIG
            | {"auto_map": {"AutoModel": "x.Y"}, "_attn_implementation": "org/kernel", "note": 1}
        )
    )

    assert found is not None
    assert {key: found.values[key] for key in CONFIG} == CONFIG
    assert (found.ignored, found.published) == (("note",), None)
    assert not {"auto_map", "_attn_implementation"} & found.values.keys()
    assert pasted_config("name: x") is None


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("{not json", RequestError, "not JSON"),
        ("{}", PlanError, "no model_type"),
        (json.dumps({"model_type": "lama"}), PlanError, "did you mean 'llama'"),
        (
            json.dumps(CONFIG | {"num_hidden_layers": 10**6}),
            RequestError,
            "num_hidden_layers 1,000,000 is above",
        ),
        (json.dumps(CONFIG | {"vocab_size": 10**12}), RequestError, "vocab_size"),
        (
            json.dumps({"model_type": "gemma3", "text_config": {"num_hidden_layers": 10**6}}),
            RequestError,
            "num_hidden_layers 1,000,000 is above",
        ),
        (json.dumps({"model_type": "t5"}), PlanError, "encoder-decoder"),
        (
            json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "x.Y"}}),
            PlanError,
            "trust-custom-code",
        ),
    ],
)
def test_what_is_no_config_for_a_page_is_refused(
    text: str, error: type[BrimfulError], told: str
) -> None:
    with pytest.raises(error, match=told):
        pasted_config(text)


@pytest.mark.parametrize(
    "name",
    ["openai-community/gpt2", "mosaicml/mpt-7b", "google/gemma-3-1b-pt", "EleutherAI/pythia-70m"],
)
def test_a_model_of_the_catalog_is_known_by_its_config(name: str) -> None:
    row = catalog.find(name)
    assert row is not None

    found = pasted_config(json.dumps(dict(row.config)))

    assert found is not None
    assert found.published == name


def test_only_what_can_be_a_hub_id_is_left_to_the_hub() -> None:
    assert published_name("owner/model-7b", local_folders=False) == "owner/model-7b"
    for name in ("../../etc/passwd", "https://example.org/x", "a b/c", "/etc"):
        with pytest.raises(RequestError, match="nothing is called"):
            published_name(name, local_folders=False)


def test_long_texts_are_refused_and_short_names_are_no_recipes(refuses: Refuses) -> None:
    with refuses(RequestError):
        refuse_long("x" * (MOST_CHARACTERS + 1))
    assert [looks_like_recipe(text) for text in ("tiny-gpt", "name: x", "a\nb")] == [
        False,
        True,
        True,
    ]


def test_a_gguf_file_may_be_named_where_folders_may(tmp_path: Path, refuses: Refuses) -> None:
    path = tmp_path / "model.gguf"
    with refuses(RequestError):
        published_name(str(path), local_folders=True)
    path.write_bytes(b"GGUF")

    assert published_name(str(path), local_folders=True) == str(path)
    with refuses(RequestError):
        published_name(str(path), local_folders=False)
    assert published_name("minilm-l6", local_folders=False) == "minilm-l6"
