"""The recipe: strict, frozen, described, and wrong ones are told all at once with path, rule and
value.
"""

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from fixture_types import Refuses
from jsonschema import Draft202012Validator, ValidationError
from syrupy.assertion import SnapshotAssertion

from brimful.base.dotted import flatten, parse_yaml
from brimful.base.errors import RecipeError
from brimful.base.keys import section_in
from brimful.recipe import (
    AdapterRecipe,
    ModelRecipe,
    Recipe,
    RunChoices,
    TokenizerRecipe,
    differences,
    load,
    shipped_names,
    shipped_text,
)
from brimful.recipe.loading import presets_of

SHIPPED = [
    (name, choice)
    for name in shipped_names()
    for choice in ([], *([f"preset={preset}"] for preset in presets_of(name)))
]
"""Every shipped recipe as written, and with each of its presets."""
SCHEMA_SNAPSHOT = Path(__file__).parent / "snapshots" / "recipe.schema.json"
MINIMAL = """
name: minimal
sequence_length: 16
batch: {sequences: 4}
training: {steps: 3}
model: {layers: 1, heads: 2, width: 8}
tokenizer: {vocabulary: 300}
data: {path: a.txt}
optimizer: {learning_rate: 1e-3}
"""


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    """Of recipes, held to be a schema itself once: that takes longer than all recipes."""
    schema = Recipe.model_json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture
def minimal(tmp_path: Path) -> str:
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL)
    return str(path)


def _problems(minimal: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load(minimal, overrides)
    lines = str(caught.value).splitlines()
    problems = [line.removeprefix("  - ") for line in lines if line.startswith("  - ")]
    assert lines[0] == f"{minimal} has {len(problems)} problem{'s' * (len(problems) != 1)}:"
    assert lines[-1] == "Every key is described by `brimful recipes keys`."
    return problems


def _sections(section: type[pydantic.BaseModel] = Recipe) -> Iterator[type[pydantic.BaseModel]]:
    yield section
    for field in section.model_fields.values():
        if (inner := section_in(field.annotation)) is not None:
            yield from _sections(inner)


# --- what comes with brimful


@pytest.mark.parametrize(("name", "choice"), SHIPPED)
def test_a_shipped_recipe_loads_under_its_own_name_with_one_line_of_description(
    name: str, choice: list[str]
) -> None:
    recipe = load(name, choice)

    assert recipe.name == name
    assert recipe.description
    assert "\n" not in recipe.description
    assert len(recipe.description) <= 160


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_recipe_leaves_the_plan_and_the_place_of_the_run_to_others(name: str) -> None:
    assert not {"plan", "run"} & set(parse_yaml(shipped_text(name)))


@pytest.mark.parametrize("name", shipped_names())
def test_the_presets_of_a_shipped_recipe_have_run_folders_of_their_own_and_leave_the_plan_to_others(
    name: str,
) -> None:
    presets = presets_of(name)
    changed = {key.partition("=")[0] for preset in presets.values() for key in preset.changes}

    assert len({load(name, [f"preset={preset}"]).run_name for preset in presets}) == len(presets)
    assert not [
        key
        for key in changed
        if key.split(".")[0] == "plan" or key in {"name", "description", "run", "run.folder"}
    ]


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_recipe_agrees_with_the_published_schema(
    name: str, schema: Draft202012Validator
) -> None:
    schema.validate(parse_yaml(shipped_text(name)))


def test_the_quickstart_is_shipped() -> None:
    assert "quickstart" in shipped_names()


def test_the_text_of_an_unknown_recipe_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        RecipeError, match=r"no shipped recipe 'quickstrt' - did you mean 'quickstart'\?"
    ):
        shipped_text("quickstrt")


# --- the schema


def test_the_schema_is_the_published_one() -> None:
    published = json.loads(SCHEMA_SNAPSHOT.read_text())

    assert Recipe.model_json_schema() == published, (
        "the recipe's JSON schema changed. If that is intended, say so in the change log and run: "
        "brimful recipes schema > tests/snapshots/recipe.schema.json"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("modle", {}),
        ("seed", "1"),
        ("batch", {"sequences": 0}),
        ("model", {"layers": 1, "heads": 2, "width": 8, "depth": 3}),
    ],
)
def test_the_schema_refuses_what_the_recipe_refuses(
    key: str, value: object, schema: Draft202012Validator
) -> None:
    values = parse_yaml(MINIMAL)
    schema.validate(values)

    with pytest.raises(ValidationError):
        schema.validate(values | {key: value})
    with pytest.raises(pydantic.ValidationError):
        Recipe.model_validate(values | {key: value})


def test_every_key_has_a_description_and_every_section_a_docstring() -> None:
    for section in _sections():
        assert section.__doc__, section
        undescribed = [
            name
            for name, field in section.model_fields.items()
            if not field.description and section_in(field.annotation) is None
        ]
        assert undescribed == [], section
    assert {ModelRecipe, AdapterRecipe, TokenizerRecipe} <= set(_sections())


def test_nothing_of_a_recipe_can_be_changed_after_loading(minimal: str) -> None:
    recipe = load(minimal)

    for section in _sections():
        assert section.model_config["frozen"]
    for change in (lambda: setattr(recipe, "seed", 2), lambda: setattr(recipe.model, "layers", 2)):
        with pytest.raises(pydantic.ValidationError, match="frozen"):
            change()


# --- round trip


def _random_overrides(seed: int) -> list[str]:
    """Some keys with random values, written as JSON, which is YAML."""
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4])
    pool: dict[str, object] = {
        "seed": draw.randrange(2**32),
        f"batch.{draw.choice(['sequences', 'tokens'])}": 16 * draw.randint(1, 40),
        f"training.{draw.choice(['steps', 'tokens'])}": draw.randint(1, 10**9),
        "training.epochs": draw.uniform(0.01, 9),
        "optimizer.learning_rate": 10 ** draw.uniform(-9, 0),
        "optimizer.clip_norm": draw.choice([None, 1e-2, 3.0]),
        "model": {
            "layers": draw.randint(1, 99),
            "heads": heads,
            "width": heads * 2 * draw.randint(1, 99),
        },
        "tokenizer": draw.choice(
            [{"kind": "character"}, {"kind": "bpe", "vocabulary": draw.randint(257, 99_999)}]
        ),
        "data.path": draw.choice([["a.txt", "b/c"], "builtin:python-docs", "x", "1e3.txt"]),
        "data.document_start": draw.choice([None, "^= [^=]", "# ", r"\d+:\s"]),
        "description": draw.choice(
            ["ä: #1", "yes", "null.", "1e-3x", "two  blanks ", "a\u2028b", "1e-3", "0x1f", "12:30"]
        ),
        "sample.prompt": draw.choice(["\n\tx", " ", "1e-3", "null", "", "- a\n- b\n"]),
        "plan.compile": draw.choice([True, False, "auto"]),
        "plan.micro_batch": draw.choice([1, 64, "auto"]),
        "run": {"name": "other", "folder": "some place/x y"},
    }
    chosen = draw.sample(sorted(pool), draw.randint(1, len(pool)))
    return [f"{key}={json.dumps(pool[key])}" for key in chosen]


@pytest.mark.parametrize("seed", range(60))
def test_the_written_recipe_loads_back_to_an_equal_one(
    minimal: str, tmp_path: Path, seed: int
) -> None:
    recipe = load(minimal, _random_overrides(seed))
    path = tmp_path / "again.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")

    again = load(str(path))

    assert again == recipe
    assert differences(recipe, again) == {}
    assert again.to_yaml() == recipe.to_yaml()


@pytest.mark.parametrize(("name", "choice"), SHIPPED)
def test_a_shipped_recipe_survives_being_written_and_read(
    name: str, choice: list[str], tmp_path: Path
) -> None:
    (tmp_path / "r.yaml").write_text(load(name, choice).to_yaml())

    assert load(str(tmp_path / "r.yaml")) == load(name, choice)


def test_the_written_recipe_holds_every_default(minimal: str) -> None:
    written = flatten(parse_yaml(load(minimal).to_yaml()))

    for section in (
        "optimizer.beta2",
        "checkpoint.keep",
        "plan.precision",
        "run.name",
        "data.layout",
        "seed",
    ):
        assert section in written


# --- overrides


def test_overrides_change_what_they_name_and_nothing_else(minimal: str) -> None:
    changed = load(
        minimal, ["optimizer.learning_rate=3e-4", "model.layers=2", "sample.prompt=once"]
    )

    assert differences(load(minimal), changed) == {
        "optimizer.learning_rate": (1e-3, 3e-4),
        "model.layers": (1, 2),
        "sample.prompt": ("", "once"),
    }


@pytest.mark.parametrize(
    ("override", "kept", "gone"),
    [
        ("batch.tokens=64", "tokens", ["sequences"]),
        ("training.epochs=1.5", "epochs", ["steps", "tokens"]),
        ("training.tokens=1000", "tokens", ["steps", "epochs"]),
    ],
)
def test_an_override_takes_the_place_of_its_rival_in_the_file(
    minimal: str, override: str, kept: str, gone: list[str]
) -> None:
    section = getattr(load(minimal, [override]), override.partition(".")[0])

    assert getattr(section, kept) is not None
    assert [getattr(section, name) for name in gone] == [None] * len(gone)


def test_of_two_overrides_of_the_same_thing_the_last_counts(minimal: str) -> None:
    assert load(minimal, ["seed=1", "seed=2"]).seed == 2
    assert load(minimal, ["batch.tokens=64", "batch.sequences=2"]).effective_batch == 2


@pytest.mark.parametrize(
    ("changes", "file_type"),
    [
        ([], "tsv"),
        (["data.path=SMSSpamCollection"], "tsv"),
        (["data.path=messages.txt"], "tsv"),
        (["data.path=folder-of-tsv"], "tsv"),
        (["data.path=no/such/hub-id"], "tsv"),
        (["data.path=mails.csv"], "auto"),
        (["data.path=MAILS.CSV.gz"], "auto"),
        (["data.path=[a.tsv, mails.parquet]"], "tsv"),
        (["data.path=[plain, mails.jsonl]"], "auto"),
        (["data.path=folder-of-csv"], "auto"),
        (["data.path=mails.csv", "data.file_type=tsv"], "tsv"),
    ],
)
def test_a_file_type_that_a_recipe_fixes_gives_way_to_the_name_of_another_file(
    changes: list[str], file_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "folder-of-tsv/deep/train.tsv",
        "folder-of-csv/train.csv",
        "folder-of-csv/LICENSE",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert load("moderation-offline", changes).data.file_type == file_type


def test_two_rivals_in_a_file_are_refused(minimal: str, snapshot: SnapshotAssertion) -> None:
    assert _problems(minimal, "batch={sequences: 4, tokens: 64}") == snapshot
    assert _problems(minimal, "training={}") == snapshot


def test_a_section_that_the_file_leaves_out_can_be_overridden(minimal: str) -> None:
    assert load(minimal, ["plan.threads=3"]).plan.threads == 3


# --- the learning rate follows the batch where a rule says so


def _rates(recipe: Recipe) -> tuple[float, float | None]:
    return recipe.optimizer.learning_rate, recipe.optimizer.min_learning_rate


@pytest.mark.parametrize(
    ("rule", "rates"), [("none", (1e-3, 1e-4)), ("sqrt", (2e-3, 2e-4)), ("linear", (4e-3, 4e-4))]
)
@pytest.mark.parametrize("larger", ["batch.sequences=16", "batch.tokens=256", "sequence_length=64"])
def test_a_larger_step_scales_the_learning_rate_by_the_rule(
    tmp_path: Path, larger: str, rule: str, rates: tuple[float, float]
) -> None:
    path = tmp_path / "with_minimum.yaml"
    path.write_text(MINIMAL.replace("1e-3", "1e-3, min_learning_rate: 1e-4"))

    assert _rates(load(str(path), [larger, f"optimizer.scale_learning_rate={rule}"])) == rates


def test_the_scaled_recipe_loads_back_unchanged_and_is_the_reference_from_then_on(
    minimal: str, tmp_path: Path
) -> None:
    scaled = load(minimal, ["optimizer.scale_learning_rate=sqrt", "batch.sequences=12"])
    (tmp_path / "scaled.yaml").write_text(scaled.to_yaml())

    assert _rates(scaled) == (0.00173205, None)
    assert load(str(tmp_path / "scaled.yaml")) == scaled
    assert _rates(load(str(tmp_path / "scaled.yaml"), ["seed=5"])) == _rates(scaled)
    assert _rates(load(str(tmp_path / "scaled.yaml"), ["batch.sequences=3"])) == (0.000866025, None)


@pytest.mark.parametrize(
    "own",
    [
        "optimizer.learning_rate=5e-3",
        "optimizer={learning_rate: 5e-3, scale_learning_rate: linear}",
    ],
)
def test_a_learning_rate_that_the_user_sets_stands(minimal: str, own: str) -> None:
    assert _rates(
        load(minimal, ["optimizer.scale_learning_rate=linear", "batch.sequences=16", own])
    ) == (5e-3, None)


def test_a_minimum_that_the_user_sets_stands_beside_a_scaled_peak(minimal: str) -> None:
    overrides = [
        "optimizer.scale_learning_rate=linear",
        "batch.sequences=8",
        "optimizer.min_learning_rate=1e-5",
    ]

    assert _rates(load(minimal, overrides)) == (2e-3, 1e-5)


def test_fine_tuning_scales_with_examples_not_with_their_longest_length(minimal: str) -> None:
    tuned = (
        Path(minimal)
        .read_text()
        .replace(
            "model: {layers: 1, heads: 2, width: 8}\ntokenizer: {vocabulary: 300}",
            "model: a/model\nmethod: sft",
        )
    )
    Path(minimal).write_text(tuned)

    scaled = load(
        minimal,
        ["optimizer.scale_learning_rate=linear", "batch.sequences=12", "sequence_length=512"],
    )

    assert _rates(scaled) == (3e-3, None)


def test_a_minimum_above_the_scaled_peak_is_told(minimal: str, snapshot: SnapshotAssertion) -> None:
    overrides = [
        "optimizer.scale_learning_rate=linear",
        "batch.sequences=1",
        "optimizer.min_learning_rate=9e-4",
    ]

    assert _problems(minimal, *overrides)[0] == snapshot


# --- what is wrong is told


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "optimizer.learning_rat=1",
            "optimizer.learning_rat: unknown key - did you mean 'learning_rate'?",
        ),
        ("optimiser.beta1=0.9", "optimiser: unknown key - did you mean 'optimizer'?"),
        ("sequence_length=long", "sequence_length: must be a valid integer, got 'long'"),
        ("sequence_length=1.5", "sequence_length: must be a valid integer, got 1.5"),
        ("model.tie_embeddings=1", "model.tie_embeddings: must be a valid boolean, got 1"),
        ("seed=true", "seed: must be a valid integer, got True"),
        ("seed=-1", "seed: must be greater than or equal to 0, got -1"),
        ("seed=4294967296", "seed: must be less than 4294967296, got 4294967296"),
        (
            "name=-x",
            "name: use letters, digits, '.', '_' and '-', not starting with '.' or '-', got '-x'",
        ),
        (
            "run.name=../up",
            (
                "run.name: use letters, digits, '.', '_' and '-', not starting with '.' or '-', got"
                " '../up'"
            ),
        ),
        (
            "method=pretrian",
            (
                "method: unknown training method - did you mean 'pretrain'? Known: classify,"
                " dpo, feedback, grpo, kto, mlm, pretrain, sft, got 'pretrian'"
            ),
        ),
        ("training.epochs=.inf", "training.epochs: must be a finite number, got inf"),
        (
            "optimizer.learning_rate=.nan",
            "optimizer.learning_rate: must be a finite number, got nan",
        ),
        (
            "optimizer.warmup=2.5",
            "optimizer: warmup 2.5 must be a share below 1 or a whole number of steps",
        ),
        (
            "optimizer.min_learning_rate=1",
            "optimizer: min_learning_rate 1.0 is above learning_rate 0.001",
        ),
        ("model.heads=3", "model: width 8 must be a multiple of heads 3"),
        ("model.heads=8", "model: width / heads = 1 must be even for rotary positions"),
        ("model.kv_heads=3", "model: heads 2 must be a multiple of kv_heads 3"),
        (
            "model.dropout=0.1",
            "model: dropout belongs to the other architectures; llama has none outside attention",
        ),
        (
            "model={architecture: gpt2, kv_heads: 1, layers: 1, heads: 2, width: 8}",
            "model: kv_heads belongs to architecture llama; gpt2 has as many as heads",
        ),
        (
            "model.architecture=gpt3",
            "model.architecture: must be 'llama', 'gpt2', 'modernbert' or 'okadfa', got 'gpt3'",
        ),
        (
            "model.context=8",
            (
                "as a whole: sequence_length 16 is above the model's context 8; shorten it or raise"
                " model.context"
            ),
        ),
        ("batch.tokens=17", "as a whole: batch.tokens 17 must be a multiple of sequence_length 16"),
        (
            "tokenizer.vocabulary=256",
            "tokenizer.vocabulary: must be greater than or equal to 257, got 256",
        ),
        (
            "tokenizer.kind=character",
            (
                "tokenizer: vocabulary belongs to kind bpe; a character tokenizer has one entry per"
                " character of the text"
            ),
        ),
        (
            "tokenizer.vocabulary=null",
            "tokenizer: vocabulary is required for kind bpe, for example tokenizer.vocabulary=4096",
        ),
        (
            "data.document_start=(",
            (
                "data.document_start: not a regular expression: missing ), unterminated subpattern"
                " at position 0, got '('"
            ),
        ),
        ("data.path=3", "data.path: must be a valid string or a valid list, got 3"),
        ("plan.micro_batch=all", "plan.micro_batch: must be a valid integer or 'auto', got 'all'"),
        ("checkpoint.keep=1", "checkpoint.keep: must be greater than or equal to 2, got 1"),
        ("model=3", "model: must be a section of keys, got 3"),
        ("name.x=3", "name.x: name is a value, not a section"),
        (
            "nonsense",
            (
                "'nonsense': write overrides as dotted.key=value, for example"
                " optimizer.learning_rate=1e-3"
            ),
        ),
        ("name=[a", "name: '[a' is not a YAML value; quote it"),
    ],
)
def test_a_problem_names_path_rule_and_value(minimal: str, override: str, problem: str) -> None:
    assert _problems(minimal, override) == [problem]


def test_validation_and_test_must_leave_text_to_train_on(
    minimal: str, snapshot: SnapshotAssertion
) -> None:
    assert _problems(minimal, "data.validation=0.5", "data.test=0.5") == snapshot


def test_all_problems_are_told_in_one_error(minimal: str, snapshot: SnapshotAssertion) -> None:
    problems = _problems(
        minimal,
        "oops",
        "modle.layers=3",
        "model.layers=none",
        "batch.sequences=0",
        "data={}",
        "seed=[",
    )

    assert problems == snapshot


def test_an_empty_mapping_misses_every_required_section(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("{}")

    required = [name for name, field in Recipe.model_fields.items() if field.is_required()]
    assert _problems(str(path)) == [f"{name}: required, but missing" for name in required]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- a\n- b\n", "must hold `key: value` lines at the top, found list"),
        (b"", "must hold `key: value` lines at the top, found NoneType"),
        (b"just text", "must hold `key: value` lines at the top, found str"),
        (b"name: [", "is not valid YAML"),
        (b"name: a\nname: b\n", "is not valid YAML: key given twice: name"),
        (b"name: 2024-13-45\n", "is not valid YAML: month must be in 1..12"),
        (b"name: caf\xe9\n", "cannot be read: .*can't decode byte 0xe9"),
        (b"name: a\x00b\n", "is not valid YAML"),
        (b"name: !!python/name:os.system\n", "is not valid YAML"),
        (b"1: 2\n", "has .* problems"),
    ],
)
def test_a_file_that_is_no_recipe_is_told_as_such(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)

    with pytest.raises(RecipeError, match=rf"(?s)bad\.yaml {said}"):
        load(str(path))


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in ("absent.yaml", "folder.yaml", "pipe.yaml"):
        with pytest.raises(
            RecipeError, match=rf"{name} cannot be read.*Shipped recipes: .*quickstart"
        ):
            load(str(tmp_path / name))


@pytest.mark.parametrize(
    "change",
    [
        "plan.threads=100000",
        "sequence_length=10000000000",
        "batch.sequences=1000000000",
        "training.steps=100000000000000000000000000",
        "model.layers=2000",
        "model.width=100000000",
        "tokenizer.vocabulary=1000000000",
    ],
)
def test_sizes_that_nothing_has_are_refused(change: str, refuses: Refuses) -> None:
    with refuses(RecipeError, names=[change.partition("=")[2].rstrip("0")]):
        load("quickstart", [change])


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("lora", ["data.path=pairs.jsonl"]),
        ("okadfa-small", ["method=feedback"]),
        ("quickstart", ["plan.precision=fp16"]),
    ],
    ids=["adapters", "feedback", "fp16"],
)
def test_weights_of_bf16_are_refused_where_they_cannot_train(
    recipe: str, changes: list[str], refuses: Refuses
) -> None:
    with refuses(RecipeError, names=["optimizer.weights=bf16"]):
        load(recipe, [*changes, "optimizer.weights=bf16"])


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(
        RecipeError,
        match=(
            r"no recipe 'quickstrt' - did you mean 'quickstart'\? Shipped: .*; or give a \.yaml"
            r" file\."
        ),
    ):
        load("quickstrt")


def test_a_file_without_the_suffix_loads_too(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text(MINIMAL)

    assert load(str(tmp_path / "mine")).name == "minimal"


# --- what follows from the recipe


@pytest.mark.parametrize(
    ("override", "sequences"), [("batch.sequences=5", 5), ("batch.tokens=64", 4)]
)
def test_the_effective_batch_is_in_sequences(minimal: str, override: str, sequences: int) -> None:
    assert load(minimal, [override]).effective_batch == sequences


@pytest.mark.parametrize(
    ("overrides", "width"),
    [
        (["model.width=256"], 704),  # 8/3 x 256 = 682.7, up to a multiple of 32
        (["model.width=96"], 256),
        (["model.architecture=gpt2"], 32),
        (["model.mlp_width=5"], 5),
    ],
)
def test_the_inner_width_of_the_mlp_follows_the_architecture(
    minimal: str, overrides: list[str], width: int
) -> None:
    assert load(minimal, overrides).model.resolved_mlp_width == width


def test_defaults_follow_from_other_keys(minimal: str) -> None:
    recipe = load(minimal)

    assert recipe.context == 16
    assert load(minimal, ["model.context=64"]).context == 64
    assert recipe.run_name == "minimal"
    assert load(minimal, ["run.name=other"]).run_name == "other"
    assert recipe.optimizer.resolved_min_learning_rate == pytest.approx(1e-4)
    assert (
        load(minimal, ["optimizer.min_learning_rate=0"]).optimizer.resolved_min_learning_rate == 0
    )
    assert recipe.data.paths == ("a.txt",)
    assert load(minimal, ["data.path=[a, b]"]).data.paths == ("a", "b")


def test_differences_are_dotted_and_sorted(minimal: str) -> None:
    before, after = (
        load(minimal),
        load(minimal, ["training.epochs=2", "data.path=[a, b]", "batch.sequences=4"]),
    )

    found: dict[str, tuple[Any, Any]] = differences(before, after)

    assert found == {
        "data.path": ("a.txt", ["a", "b"]),
        "training.epochs": (None, 2.0),
        "training.steps": (3, None),
    }
    assert list(found) == sorted(found)


# --- published models


@pytest.fixture
def published(tmp_path: Path) -> str:
    """A recipe that tunes a published model, all of it."""
    path = tmp_path / "published.yaml"
    path.write_text(
        MINIMAL.replace(
            "model: {layers: 1, heads: 2, width: 8}", "model: openai-community/gpt2"
        ).replace("tokenizer: {vocabulary: 300}\n", "")
    )
    return str(path)


def test_a_model_may_be_a_hub_id_or_a_folder_in_place_of_a_section(published: str) -> None:
    assert load(published).model == "openai-community/gpt2"
    assert load(published, ["model=./some/folder"]).model == "./some/folder"
    assert load(published).adapter is None
    assert load(published).quantize == "none"


def test_adapters_have_defaults_and_keys_of_their_own(published: str) -> None:
    plain, full = (
        load(published, [f"adapter={section}"]).adapter
        for section in ("{}", "{rank: 4, alpha: 8, dropout: 0.1, targets: [q, v], dora: true}")
    )

    assert plain is not None
    assert full is not None
    assert (plain.rank, plain.alpha, plain.dropout, plain.targets, plain.dora) == (
        16,
        None,
        0.0,
        "all-linear",
        False,
    )
    assert (full.rank, full.alpha, full.dropout, full.targets, full.dora) == (
        4,
        8.0,
        0.1,
        ["q", "v"],
        True,
    )
    assert load(published, ["adapter.rank=3"]).adapter == AdapterRecipe(rank=3)
    assert load(published, ["adapter={}", "quantize=nf4"]).quantize == "nf4"


@pytest.mark.parametrize(
    "overrides", [(), ("adapter={rank: 4}",), ("adapter={targets: [q, v]}", "quantize=nf4")]
)
def test_a_recipe_of_a_published_model_survives_its_yaml_and_agrees_with_the_schema(
    published: str, tmp_path: Path, overrides: tuple[str, ...], schema: Draft202012Validator
) -> None:
    recipe = load(published, overrides)
    path = tmp_path / "again.yaml"
    path.write_text(recipe.to_yaml())

    assert load(str(path)) == recipe
    schema.validate(parse_yaml(recipe.to_yaml()))


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "quantize=nf4",
            (
                "as a whole: a quantised model is frozen, so something else has to train: add the"
                " adapter section, for example adapter.rank=16"
            ),
        ),
        (
            "tokenizer.vocabulary=300",
            (
                "as a whole: a published model comes with its own tokenizer; leave the tokenizer"
                " section out"
            ),
        ),
        ("quantize=int8", "quantize: must be 'none' or 'nf4', got 'int8'"),
        ("adapter.rank=0", "adapter.rank: must be greater than 0, got 0"),
        ("adapter.rnk=4", "adapter.rnk: unknown key - did you mean 'rank'?"),
        ("adapter.targets=3", "adapter.targets: must be a valid string or a valid list, got 3"),
        ("adapter=lora", "adapter: must be a section of keys, got 'lora'"),
        ("model.layers=2", "model.layers: model is a value, not a section"),
    ],
)
def test_what_does_not_belong_to_a_published_model_is_told(
    published: str, override: str, problem: str
) -> None:
    assert _problems(published, override) == [problem]


@pytest.mark.parametrize("override", ["adapter.rank=4", "quantize=nf4"])
def test_adapters_and_quantisation_are_not_for_fresh_models(
    minimal: str, override: str, snapshot: SnapshotAssertion
) -> None:
    assert _problems(minimal, override) == snapshot


def test_a_fresh_model_needs_a_tokenizer(minimal: str, snapshot: SnapshotAssertion) -> None:
    assert _problems(minimal, "tokenizer=null") == snapshot


@pytest.mark.parametrize(
    "other", ["plan.compile=true", "plan.offload=activations"], ids=["compiled", "offloaded"]
)
def test_what_excludes_selective_recomputation_is_refused(
    minimal: str, other: str, snapshot: SnapshotAssertion
) -> None:
    assert _problems(minimal, "plan.recompute=selective", other) == snapshot


@pytest.mark.parametrize(
    "override",
    [
        "model.layers=none",
        "model.depth=3",
        "model={heads: 2, width: 8}",
        "model=3",
        "model=null",
        "model=[a]",
    ],
)
def test_what_is_wrong_with_a_model_is_told_without_the_names_of_kinds(
    minimal: str, override: str
) -> None:
    (problem,) = _problems(minimal, override)

    assert problem.startswith("model")
    assert not {"described", "published", "str", "ModelRecipe"} & set(
        problem.replace(":", ".").replace(",", ".").replace(" ", ".").split(".")
    )


def test_a_published_model_is_neither_built_nor_tokenised_afresh(
    published: str, minimal: str, refuses: Refuses
) -> None:
    with refuses(RecipeError, names=["openai-community/gpt2"]):
        _ = load(published).fresh_model
    with refuses(RecipeError, names=["openai-community/gpt2"]):
        _ = load(published).own_tokenizer
    assert (load(minimal).fresh_model.layers, load(minimal).own_tokenizer.vocabulary) == (1, 300)


def test_differences_between_a_fresh_and_a_published_model_are_told(
    minimal: str, published: str
) -> None:
    found = differences(load(minimal), load(published))

    assert found["model"] == (None, "openai-community/gpt2")
    assert found["model.layers"] == (1, None)


# --- labels


@pytest.mark.parametrize(
    ("written", "key", "value"),
    [
        ("labels.positive=1", "positive", "1"),
        ("labels.mapping={2: 1, 0.0: clean}", "mapping", {"2": "1", "0": "clean"}),
        ("labels.class_weights={0: 1, 1: 5}", "class_weights", {"0": 1.0, "1": 5.0}),
        ("labels.threshold=0.5", "threshold", "0.5"),
        ("labels.preprocess=nfc", "preprocess", ["nfc"]),
        ("labels.separator=|", "separator", "|"),
    ],
)
def test_labels_and_thresholds_may_be_written_as_numbers(
    written: str, key: str, value: object
) -> None:
    assert getattr(load("moderation-offline", [written]).label_rules, key) == value


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["labels.names=[no, yes]"], "are truth values in YAML: quote the label"),
        (["labels.class_weights={spam: 0}"], "the weight of spam must be above 0"),
        (["labels.names=[a, b]", "labels.positive=c"], "c: not among names (a, b)"),
        (
            ["labels.loss=focal", "labels.label_smoothing=0.1"],
            "label_smoothing belongs to loss cross_entropy",
        ),
        (["labels.preprocess=[nfx]"], "unknown step 'nfx' - did you mean 'nfc'?"),
        (["model=roberta-base"], "labels.pretrain needs an encoder that is trained here first"),
        (["adapter.rank=8"], "method classify trains the whole model"),
        (["method=sft"], "labels belongs to method classify, not to sft"),
        (["data.bad_rows=drop"], "data.bad_rows is for method sft, not for classify"),
        (["data.leave_out=[url]"], "data.leave_out is for method sft, not for classify"),
        (["data.turns=last"], "data.turns is for method sft, not for classify"),
        (["data.columns={text: body}"], "data.columns is for method sft, not for classify"),
    ],
)
def test_what_a_classifier_cannot_be_is_told(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        load("moderation-offline", overrides)


@pytest.mark.parametrize("text", ["12", "soon", "0h"])
def test_a_session_is_a_time(text: str, minimal: str, refuses: Refuses) -> None:
    with refuses(RecipeError, names=["run.session:", "90m", "3h", "1.5d", "1h30m"]):
        load(minimal, [f"run.session={text}"])


def test_runs_of_a_chain_are_mirrored_below_the_chains_name_in_the_same_session(
    minimal: str,
) -> None:
    run = load(minimal, ["run.session=12h", "run.mirror=/mnt/drive"]).run

    assert run.session_s == 12 * 3600
    assert run.member("lora-8", Path("runs/study")) == RunChoices(
        name="lora-8", folder="runs/study", mirror="/mnt/drive/study", session="12h"
    )
    assert run.beside("base") == RunChoices(name="base", mirror="/mnt/drive", session="12h")
    assert RunChoices().session_s is None
