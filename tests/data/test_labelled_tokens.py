"""Labelled texts become token ids; what is cut or dropped is told."""

import numpy as np
import pytest
from fixture_types import MakeRecipe, Refuses
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import DataError, RecipeError
from brimful.base.types import JsonDict
from brimful.data.account import Account
from brimful.data.labelled import LabelledSplit, LabelledTexts
from brimful.data.labelled_batches import weights_of
from brimful.data.labelled_tokens import class_weights, encode_split, encode_splits, shortened
from brimful.data.labels import Labels

HAM_SPAM = Labels(names=("ham", "spam"), multiple=False, positive=1)
TOPICS = Labels(names=("a", "b", "c"), multiple=True, positive=None)


def test_balanced_weights_follow_scikit_learns_convention(refuses: Refuses) -> None:
    from sklearn.utils.class_weight import compute_class_weight

    targets = np.array([0] * 30 + [1] * 10)
    weights = class_weights(targets, HAM_SPAM, "balanced")

    np.testing.assert_allclose(
        weights, compute_class_weight("balanced", classes=np.array([0, 1]), y=targets), rtol=1e-6
    )
    assert class_weights(targets, HAM_SPAM, "none") is None
    assert class_weights(targets, HAM_SPAM, {"spam": 4.0}).tolist() == [1.0, 4.0]
    with refuses(RecipeError, names=["'span'", "'spam'"]):
        class_weights(targets, HAM_SPAM, {"span": 4.0})


def test_of_several_labels_a_text_has_each_label_it_has_weighs_as_much_as_the_texts_without() -> (
    None
):
    targets = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]], np.float32)

    weights = class_weights(targets, TOPICS, "balanced")

    assert weights.tolist() == pytest.approx([1 / 3, 3.0, 1.0])
    assert weights_of(targets[:2], weights).tolist() == [
        pytest.approx([1 / 3, 1, 1]),
        pytest.approx([1 / 3, 3, 1]),
    ]


def test_a_text_that_is_cut_keeps_the_special_token_at_its_end() -> None:
    assert shortened([1, 5, 6, 7, 8, 2], 4, 1) == [1, 5, 6, 2]
    assert shortened([1, 5, 2], 4, 1) == [1, 5, 2]
    assert shortened([5, 6, 7], 2, 0) == [5, 6]


@pytest.fixture
def words() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(
        models.WordLevel({"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3, "b": 4}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[UNK]",
    )


@pytest.mark.parametrize(
    ("policy", "texts", "kind", "last"),
    [("truncate", 3, "cut", [0, 3, 3, 1]), ("drop", 2, "dropped", [0, 4, 1])],
)
def test_long_texts_are_cut_or_dropped_as_the_recipe_says(
    words: PreTrainedTokenizerFast,
    tiny: MakeRecipe,
    policy: str,
    texts: int,
    kind: str,
    last: list[int],
) -> None:
    split = LabelledSplit(
        ("a", "b", "a a a a"), np.array([0, 1, 0]), ("x:1", "x:2", "x:3"), np.zeros(3, dtype=bool)
    )

    recipe, account = tiny("sequence_length=4", f"data.long_documents={policy}"), Account()

    encoded = encode_split("train", split, words, recipe, account)

    assert len(encoded) == texts
    assert [(each.kind, each.count, each.total) for each in account] == [(kind, 1, 3)]
    assert encoded.ids(texts - 1).tolist() == last
    assert len(encoded.split.wheres) == texts == len(encoded.split.targets)


def test_a_long_text_is_told_with_its_place(
    words: PreTrainedTokenizerFast, tiny: MakeRecipe, refuses: Refuses
) -> None:
    split = LabelledSplit(
        ("a", "a a a a"), np.array([0, 1]), ("x.csv:2", "x.csv:3"), np.zeros(2, dtype=bool)
    )

    with refuses(DataError, names=["1 of 2", "x.csv:3", "6 tokens"]):
        encode_split("train", split, words, tiny("sequence_length=4"), Account())


def test_what_is_cut_or_dropped_is_told_of_each_split(
    words: PreTrainedTokenizerFast, tiny: MakeRecipe
) -> None:
    split = LabelledSplit(
        ("a", "a a a a"), np.array([0, 1]), ("x.csv:2", "x.csv:3"), np.zeros(2, dtype=bool)
    )
    report: JsonDict = {"notes": ["B207: labels: 0 = ham"], "not_learned": []}
    texts = LabelledTexts({"train": split, "test": split}, HAM_SPAM, report, "")
    for policy, kind in (("truncate", "cut"), ("drop", "dropped")):
        recipe = tiny("sequence_length=4", f"data.long_documents={policy}")
        _, told = encode_splits(texts, words, recipe)
        found = [(each["kind"], each["split"], each["count"]) for each in told["not_learned"]]
        assert found == [(kind, "train", 1), (kind, "test", 1)]
        assert [note[:4] for note in told["notes"]] == ["B205", "B205", "B207"]
