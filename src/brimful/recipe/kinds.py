"""The kinds of run: what a training method reads and what its model is for.

This is the light half, which recipes, planning and loading ask; it imports no torch. The heavy half
of a kind, which reads data and scores models, is the module `brimful/kinds/NAME.py`. To add a kind:
one row here, one module there, and one training method (see CONTRIBUTING.md).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from brimful.base.errors import BrimfulError
from brimful.recipe.preference import options_of_preference
from brimful.recipe.rewards import options_of_rewards

if TYPE_CHECKING:
    from brimful.recipe.sections import Recipe

ModelTask = Literal["causal_lm", "masked_lm", "sequence_classification"]
"""What a model's head predicts: the next token, hidden tokens, or labels of the whole text."""
RowLayout = Literal["documents", "examples", "texts"]
"""How rows of tokens are made. documents: as the recipe's `data.layout` says. examples: packed end
to end or padded, as the plan decides. texts: the same, each with its label.
"""

StepOptions = Mapping[str, Any]
"""What decides the loss of a training step beside its method, by name, as JSON holds it."""


def _options_of_documents(recipe: "Recipe") -> StepOptions:
    if not recipe.feedback_points:
        return {}
    rules = recipe.feedback_rules
    matrix = {} if rules.matrix == "uniform" else {"matrix": rules.matrix}
    return {"feedback": rules.points, **matrix}


def _options_of_labels(recipe: "Recipe") -> StepOptions:
    rules = recipe.label_rules
    options = {
        "several": rules.kind == "multiple",
        "weighted": rules.class_weights != "none",
        "focal_gamma": rules.focal_gamma if rules.loss == "focal" else 0.0,
        "smoothing": rules.label_smoothing,
    }
    given = {name: value for name, value in options.items() if value}
    return {"labels": max(2, len(rules.names)), **given}


@dataclass(frozen=True)
class Kind:
    """A kind of run. Other packages ask for these traits, never for the name of a method.

    Attributes:
        name: Also the name of its module in `brimful.kinds`.
        methods: Training methods of this kind: files of `brimful/training/methods`.
        task: What the model's head predicts.
        rows: How rows are made of the data.
        starts_from: The model that a recipe may name: fresh weights, a published model, or either.
        first_rows: What these are understood as before anything else starts; empty: anything.
        rows_per_sample: Rows that a sample of the data makes in a micro-batch.
        steps_like: The method whose training steps these are, too, so that they share recordings;
            empty: each method has its own.
        loss_is_per: what a loss is a mean over.
        draws_answers: Whether the model learns from answers that it writes between its steps.
        step_options: What decides the loss of a recipe's steps beside the method.
    """

    name: str
    methods: tuple[str, ...]
    task: ModelTask = "causal_lm"
    rows: RowLayout = "documents"
    starts_from: Literal["fresh", "published", "either"] = "fresh"
    first_rows: Literal["documents", "examples", "pairs", "judged", "labels", ""] = ""
    rows_per_sample: int = 1
    steps_like: str = ""
    loss_is_per: Literal["token", "masked token", "pair", "answer", "text"] = "token"
    draws_answers: bool = False
    step_options: Callable[["Recipe"], StepOptions] = lambda _: {}

    @property
    def loss_unit(self) -> str:
        """Unit of a loss: of judged answers it is a weighted share, no logarithm."""
        is_share = self.loss_is_per == "answer"
        return f"{'' if is_share else 'nats'}/{self.loss_is_per}"

    @property
    def writes_text(self) -> bool:
        """Whether the trained model continues text, so that it can be sampled and asked."""
        return self.task == "causal_lm"

    @property
    def fills_masks(self) -> bool:
        """Whether the model is an encoder that predicts hidden tokens from both sides."""
        return self.task == "masked_lm"

    @property
    def gives_labels(self) -> bool:
        """Whether the trained model is a classifier: scored on labels, without a likelihood."""
        return self.task == "sequence_classification"

    @property
    def answers_prompts(self) -> bool:
        """Whether the model is tuned to answer prompts: chat templates apply."""
        return self.writes_text and self.starts_from == "published"

    @property
    def compares_answers(self) -> bool:
        """Whether the model learns which answers to a prompt are better."""
        return self.first_rows in {"pairs", "judged"}

    @property
    def continues_text(self) -> bool:
        """Whether the model learns to continue text, and does only that."""
        return self.writes_text and self.starts_from != "published"

    def lengths_vary(self, layout: str) -> bool:
        """Whether the passes of a run have many shapes, given the recipe's `data.layout`."""
        return self.rows != "documents" or layout == "document"

    def scored_tokens(self, options: StepOptions, length: int) -> int:
        """Return the tokens of a sample that the pieces of the loss are made of. Where masks are
        filled, these are the hidden ones, and never the first position, which is [CLS].
        """
        if self.fills_masks:
            return max(1, round(float(options["masked_share"]) * (length - 1)))
        return self.rows_per_sample * length


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "documents",
            ("pretrain", "feedback"),
            starts_from="either",
            first_rows="documents",
            step_options=_options_of_documents,
        ),
        Kind(
            "masked",
            ("mlm",),
            task="masked_lm",
            loss_is_per="masked token",
            first_rows="documents",
            step_options=lambda recipe: {"masked_share": recipe.data.masked_share},
        ),
        Kind(
            "examples",
            ("sft",),
            rows="examples",
            starts_from="published",
            first_rows="examples",
            steps_like="pretrain",
        ),
        Kind(
            "pairs",
            ("dpo",),
            rows="examples",
            starts_from="published",
            first_rows="pairs",
            rows_per_sample=2,
            loss_is_per="pair",
            step_options=options_of_preference,
        ),
        Kind(
            "judged",
            ("kto",),
            rows="examples",
            starts_from="published",
            first_rows="judged",
            loss_is_per="answer",
            step_options=options_of_preference,
        ),
        Kind(
            "rewarded",
            ("grpo",),
            rows="examples",
            starts_from="published",
            first_rows="examples",
            loss_is_per="answer",
            draws_answers=True,
            step_options=options_of_rewards,
        ),
        Kind(
            "labels",
            ("classify",),
            task="sequence_classification",
            rows="texts",
            starts_from="published",
            loss_is_per="text",
            first_rows="labels",
            step_options=_options_of_labels,
        ),
    )
}
"""Every kind by its name."""


def shares_beginnings(packing: str, device_kind: str) -> bool:
    """Return whether what examples begin with alike is computed once: on a CPU, as CUDA's kernel
    takes whole examples.

    Args:
        packing: "packed", "padded", or "auto", which is taken for packed.
        device_kind: "cpu", "cuda" or "mps".
    """
    return device_kind == "cpu" and packing != "padded"


def training_methods() -> list[str]:
    """Return the names of all training methods, sorted."""
    return sorted(method for kind in KINDS.values() for method in kind.methods)


def kind_of_method(method: str) -> Kind:
    """Return the kind of run that a training method makes.

    Raises:
        BrimfulError: no kind has such a method.
    """
    for kind in KINDS.values():
        if method in kind.methods:
            return kind
    known = ", ".join(training_methods())
    raise BrimfulError(f"unknown training method {method!r}. Known: {known}.")
