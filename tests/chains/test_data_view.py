"""What is shown of data is what training learns."""

from pathlib import Path

from fixture_types import MakeRecipe, Refuses
from json_lines import write_rows

from brimful.base.errors import RequestError
from brimful.chains.base_model import source_at_hand
from brimful.chains.data_view import FIRST_ROWS, view_data
from brimful.kinds.run_data import gather
from brimful.recipe import Recipe, load
from brimful.report.data_view import DataView, SeenToken

MANY = 10_000


def viewed(recipe: Recipe, *, whole: bool = True) -> DataView:
    return view_data(recipe, source_at_hand(recipe), MANY, whole=whole)


def test_the_marked_tokens_are_those_that_training_learns(tuning: MakeRecipe) -> None:
    recipe = tuning()
    view, data = viewed(recipe), gather(recipe, source_at_hand(recipe))
    for name, split in data.splits.items():
        tokens = [
            (token.id, token.is_learned)
            for where in split.wheres
            for row in view.rows
            if row.where == where
            for example in row.examples
            for token in example.tokens
            if example.split == name
        ]
        assert tokens == [*zip(split.tokens_N.tolist(), split.is_target_N.tolist(), strict=True)]
        assert view.splits[name].items == len(split.wheres)
        assert view.splits[name].learned_tokens == split.num_target_tokens
        assert sum(count for *_, count in view.splits[name].lengths) == len(split.wheres)
    assert [*view.notes] == [*data.report["notes"]]
    assert [*view.not_learned] == [*data.report["not_learned"]]


def test_texts_of_tokens_make_up_the_rendered_text(tuning: MakeRecipe, tmp_path: Path) -> None:
    """Characters of several tokens stand at the last of them; special tokens are spelled."""
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{n}: ", "completion": "gr\u00fcn \u65e5\u672c"} for n in range(20)]
    write_rows(path, rows)
    view = viewed(tuning(f"data.path={path}", "data.duplicates=report"))
    for number, row in enumerate(view.rows):
        (example,) = row.examples
        assert example.text == f"{number}: gr\u00fcn \u65e5\u672c<|endoftext|>"
        assert [token.text for token in example.tokens if token.is_special] == ["<|endoftext|>"]
        assert row.columns == rows[number]


def test_rows_that_are_left_out_are_shown_with_the_reason(
    tuning: MakeRecipe, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{n} ", "completion": "" if n == 7 else "x"} for n in range(200)]
    rows[9]["completion"] = "long " * 100
    write_rows(path, rows)
    view = viewed(tuning(f"data.path={path}", "data.bad_rows=drop"))
    assert not view.rows[7].examples
    assert "the answer is empty" in view.rows[7].reason
    assert not view.rows[9].examples
    assert {entry["kind"] for entry in view.not_learned} == {"bad_rows", "dropped"}


def test_the_first_rows_are_read_unless_all_are_asked_for(
    tuning: MakeRecipe, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{n} ", "completion": "x"} for n in range(FIRST_ROWS + 1)]
    write_rows(path, rows)
    recipe = tuning(f"data.path={path}")
    assert len(viewed(recipe, whole=False).rows) == FIRST_ROWS
    assert len(viewed(recipe).rows) == FIRST_ROWS + 1


def test_documents_are_learned_as_they_stand(continuing: MakeRecipe) -> None:
    recipe = continuing()
    view, data = viewed(recipe), gather(recipe, source_at_hand(recipe))
    first = view.rows[0].examples[0]
    assert all(token.is_learned for token in first.tokens)
    ids = data.splits["train"].tokens_N[: len(first.tokens)].tolist()
    assert [token.id for token in first.tokens] == ids
    assert view.splits["train"].share_learned == 1


def test_texts_with_labels_are_read_and_their_labels_weighed(labels_recipe_file: Path) -> None:
    recipe = load(str(labels_recipe_file), ["labels.class_weights=balanced"])
    view = viewed(recipe)
    assert {*view.weights} == set(gather(recipe, source_at_hand(recipe)).labels.names)
    assert view.splits["train"].learned_tokens == 0
    assert "learned is a text's label" in view.read
    assert all(row.examples for row in view.rows)


def test_tokens_of_a_model_that_is_not_trained_yet_cannot_be_shown(
    refuses: Refuses, tmp_path: Path
) -> None:
    recipe = load("code-offline", [f"run.folder={tmp_path}"])
    with refuses(RequestError, names=["code-offline", "model="]):
        source_at_hand(recipe)


def test_a_token_is_as_the_tokenizer_has_it(tuning: MakeRecipe) -> None:
    view = viewed(tuning())
    assert view.rows[0].examples[0].tokens[-1] == SeenToken(0, "<|endoftext|>", True, True)


def test_of_questions_with_rewards_prompts_are_shown_and_nothing_is_learned(
    tuning: MakeRecipe, tmp_path: Path
) -> None:
    """What verifiers read of the rows is no column that nobody reads."""
    path, reward = tmp_path / "rows.jsonl", tmp_path / "level.py"
    reward.write_text("def reward(answer, row):\n    return row['level']\n")
    rows = [
        {"prompt": f"{n}: ", "completion": "x", "answer": n, "level": 1, "other": 2}
        for n in range(20)
    ]
    write_rows(path, rows)
    asked = ("method=grpo", "rewards.samples_per_prompt=2", "rewards.max_new_tokens=4")
    recipe = tuning(f"data.path={path}", *asked, f"rewards.verifiers={{{reward}: 1.0}}")

    view, data = viewed(recipe), gather(recipe, source_at_hand(recipe))

    assert {name: split.learned_tokens for name, split in view.splits.items()} == {
        "train": 0,
        "validation": 0,
    }
    assert [row.examples[0].text for row in view.rows] == [row["prompt"] for row in rows]
    assert [*view.not_learned] == [*data.report["not_learned"]] == []

    by_number = tuning(f"data.path={path}", *asked, "rewards.verifiers={number: 1.0}")
    (unread,) = viewed(by_number).not_learned
    assert {*unread["names"]} == {"level", "other"}
