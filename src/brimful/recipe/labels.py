"""The section for sequence classification: the labels, and how their texts are prepared, weighted
and scored.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, Self

import pydantic
from pydantic import Field

from brimful.base.discover import names_in
from brimful.base.errors import RequestError
from brimful.base.types import Json
from brimful.recipe.base import NotNegative, PositiveInt, PositiveShare, Section, Share, known_name

if TYPE_CHECKING:
    from brimful.recipe.sections import Recipe

PREPROCESS_PACKAGE = "brimful.data.preprocessing"
"""Each file in it is a step of text preparation; only the names of the files are read here."""


def _spelled(value: object) -> object:
    """Return a label as text: 1 is "1".

    Raises:
        ValueError: YAML read it as a truth value, so how it was spelled is lost.
    """
    if isinstance(value, bool):
        # The user's value is wrong, not a type in the code.
        raise ValueError(  # noqa: TRY004
            "yes, no, on, off, true and false are truth values in YAML: quote the label, such as"
            " '\"yes\"'"
        )
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    return value


def _listed(value: object) -> object:
    if isinstance(value, str):
        return [value]
    return value


Label = Annotated[str, pydantic.BeforeValidator(_spelled)]


class RebalanceRecipe(Section):
    """Fewer training texts of the label that is not the positive one."""

    share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="Of the positive label among the training texts that are kept."
    )
    confidence: str | int | None = Field(
        None,
        description=(
            "Column with a number that says how sure a label is: the least sure texts are left out"
            " first; null: by chance."
        ),
    )


class LabelsRecipe(Section):
    """Labels of texts (method classify)."""

    kind: Literal["auto", "single", "multiple"] = Field(
        "auto",
        description=(
            "single: one label per text; multiple: any number (a list, or a cell split at"
            " separator); auto: multiple where cells are lists."
        ),
    )
    names: list[Label] = Field(
        [], description="The labels in their order; empty: those of the training split, sorted."
    )
    mapping: dict[Label, Label] = Field(
        {},
        description=(
            'Other spellings of labels, such as {"2": "1", toxic: "1"}: classes are merged by it,'
            " too."
        ),
    )
    separator: str = Field(
        ",", min_length=1, description="Between the labels of a cell (kind multiple)."
    )
    positive: Label | None = Field(
        None,
        description=(
            "Of two labels the one that F1, curves and thresholds are about. Default: the rarer in"
            " training."
        ),
    )
    preprocess: Annotated[list[str], pydantic.BeforeValidator(_listed)] = Field(
        ["nfc"],
        description=(
            "Steps that prepare every text in training, evaluation and prediction: files of"
            " brimful/data/preprocessing."
        ),
    )
    class_weights: Literal["none", "balanced"] | dict[Label, float] = Field(
        "none",
        description=(
            "Weight of an example by its label: none; balanced (examples / (labels x examples with"
            " it); of several labels a text, examples without it / with it); or given by label."
        ),
    )
    rebalance: RebalanceRecipe | None = Field(
        None,
        description=(
            "Leave out training texts of the frequent one of two labels, such as {share: 0.3};"
            " validation and test stay as they are."
        ),
    )
    loss: Literal["cross_entropy", "focal"] = Field(
        "cross_entropy", description="focal: easy examples count less (Lin et al. 2017)."
    )
    focal_gamma: NotNegative = Field(
        2.0, description="Exponent of the focal loss; 0 is cross-entropy."
    )
    label_smoothing: Share = Field(
        0.0, description="This share of a target is spread over all labels (Szegedy et al. 2016)."
    )
    metric: Literal["auto", "f1", "macro_f1", "accuracy", "pr_auc", "roc_auc", "loss"] = Field(
        "auto",
        description=(
            "What the best model is chosen by, on the whole validation split (F1 at its best"
            " threshold); auto: f1 of two labels, else macro_f1."
        ),
    )
    threshold: Label = Field(
        "best_f1",
        description=(
            "From which probability on a label is given (two labels, or multiple): best_f1,"
            " precision>=P, recall>=R, or a number."
        ),
    )
    pretrain: Literal["as_written", "with_texts", "on_texts"] = Field(
        "as_written",
        description=(
            "model=recipe:NAME: the encoder reads what its recipe says; that and this recipe's"
            " training texts; or these alone (Gururangan 2020)."
        ),
    )
    length_window: PositiveInt = Field(
        1,
        description=(
            "Optimizer steps among whose texts those of similar length are put together, so that"
            " less is computed on padding; 1: as they are shuffled."
        ),
    )
    near_duplicates: PositiveShare | None = Field(
        0.8,
        description=(
            "Jaccard similarity of character 5-grams from which texts count as near duplicates;"
            " null: not looked for."
        ),
    )

    @pydantic.field_validator("preprocess")
    @classmethod
    def _steps_exist(cls, value: list[str]) -> list[str]:
        known = names_in(PREPROCESS_PACKAGE, ".py")
        return [known_name(name, known, f"unknown step {name!r}") for name in value]

    @pydantic.field_validator("class_weights")
    @classmethod
    def _weights_are_positive(cls, value: str | dict[str, float]) -> str | dict[str, float]:
        weights = value if isinstance(value, dict) else {}
        if wrong := [name for name, weight in weights.items() if weight <= 0]:
            raise ValueError(
                f"the weight of {', '.join(wrong)} must be above 0; leave a label out of the data"
                " instead"
            )
        return value

    @pydantic.model_validator(mode="after")
    def _agree(self) -> Self:
        if len(set(self.names)) != len(self.names):
            raise ValueError("names: every label once")
        used = {*self.mapping.values()}
        if self.positive:
            used.add(self.positive)
        if self.names and (unknown := sorted(used - set(self.names))):
            raise ValueError(f"{', '.join(unknown)}: not among names ({', '.join(self.names)})")
        if self.loss == "focal" and self.label_smoothing:
            raise ValueError("label_smoothing belongs to loss cross_entropy")
        return self


def recipe_of_encoder(base: "Recipe", recipe: "Recipe", texts: Callable[[], Json]) -> "Recipe":
    """Return the recipe of the encoder that a classifier starts from: with the classifier's
    training texts among its data, or in place of them, if `labels.pretrain` says so. The run gets a
    name of its own.

    Args:
        base: Recipe of the encoder, as written.
        recipe: The classifier's.
        texts: Returns the values of `data` by which the texts are read, where they are: `path`, a
            list, and how those files are read.

    Raises:
        RequestError: `base` trains no encoder.
    """
    source = recipe.label_rules.pretrain
    if source == "as_written":
        return base
    if not base.kind.fills_masks:
        raise RequestError(
            f"labels.pretrain: {base.name} is a recipe of method {base.method}; only method mlm"
            " reads texts without labels."
        )
    read, beside = dict(texts()), ""
    if source == "with_texts":
        read["path"], beside = [*read["path"], *base.data.paths], " beside its own"
    changed = {
        "data": base.data.model_copy(update=read),
        "run": base.run.model_copy(update={"name": f"{base.run_name}-for-{recipe.run_name}"}),
        "description": (
            f"the encoder of {recipe.run_name}, pre-trained on its training texts{beside}"
            " without their labels"
        ),
        "tokenizer": base.own_tokenizer.model_copy(update={"fewer": "accept"}),
    }
    return base.model_copy(update=changed)
