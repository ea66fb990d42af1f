"""A finished classifier, ready for texts: prepared, encoded and cut as in training, then sorted by
length through the model.

Suffixes: E texts, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from brimful.base.arrays import Bools, Floats, Floats32
from brimful.base.errors import RequestError, RunFolderError
from brimful.classification.forward import ClassifierForward, keep_body_in
from brimful.classification.record import ClassifierRecord, load_record
from brimful.data.labelled_batches import PASS_OVERHEAD, Passes, pad_id_of
from brimful.data.labelled_tokens import encoder_of, shortened, special_tokens_at_end
from brimful.data.labels import Labels
from brimful.data.preparation import preparation, preparation_notes
from brimful.data.tokenizer import refuse_unknown_ids
from brimful.generation.load import read_exported, recipe_of, trained_folder
from brimful.hardware.device import abilities_of
from brimful.hardware.matrix_rates import bf16_pays_here
from brimful.recipe import Recipe
from brimful.training.world import ALONE, World

TOKENS_PER_PASS = {"cpu": 2048, "mps": 16384, "cuda": 65536}
"""Positions of a pass to begin with. CPU: 512 to 8192 differ by 6 % in time on an encoder of 2.1M
parameters, and 2048 is the fastest (docs/predict.md); the others are assumptions.
"""

BF16_LEAST_WIDTH = 256
"""Least width for bf16 on a CPU that has its instructions; below it fp32 is about as fast. CPU s in
fp32 and bf16, first pass over 256 sentences of SST-2, 4 blocks, Xeon with AMX: width 128 0.25 and
0.24, 192 0.45 and 0.37, 256 0.55 and 0.50, 384 1.24 and 0.82, 768 3.75 and 2.39.
"""


@dataclass(frozen=True)
class Classified:
    """What a classifier says of texts.

    Attributes:
        logits_EC: float32, as the model gives them; 0 where it was not asked.
        has_text_E: False for texts that hold nothing but white space once prepared: there is
            nothing to judge.
        num_cut: Texts that lost their end.
    """

    logits_EC: Floats32
    has_text_E: Bools
    num_cut: int


class Classifier:
    """A model with a head for C labels, its tokenizer and its record.

    Args:
        forward: The model.
        tokenizer: The run's.
        record: How texts become labels.

    Raises:
        RequestError: the library of a step of the preparation is not installed.
    """

    def __init__(
        self,
        forward: ClassifierForward,
        tokenizer: PreTrainedTokenizerBase,
        record: ClassifierRecord,
    ) -> None:
        self.forward, self.record, self._tokenizer = forward, record, tokenizer
        self.notes = tuple(preparation_notes(record.preprocess_identity))
        """What may make its answers differ from those of training."""
        self._prepare = preparation(record.preprocess)
        self._encode, self._at_end = encoder_of(tokenizer), special_tokens_at_end(tokenizer)

    def classify(self, texts: Sequence[str]) -> Classified:
        """Logits of texts, in their order.

        Raises:
            RequestError: memory does not hold one text.
            DataError: the model has no row for a token of a text.
        """
        prepared = list(map(self._prepare, texts))
        has_text_E = np.array([bool(text) and not text.isspace() for text in prepared], dtype=bool)
        logits_EC = np.zeros((len(texts), len(self.record.labels.names)), dtype=np.float32)
        asked = [prepared[number] for number in np.flatnonzero(has_text_E)]
        if not asked:
            return Classified(logits_EC, has_text_E, 0)
        most = self.record.max_tokens
        whole = self._encode(asked)
        cut = [np.asarray(shortened(ids, most, self._at_end), dtype=np.uint32) for ids in whole]
        refuse_unknown_ids(
            "a text", np.concatenate(cut), self._tokenizer, self.forward.embedding_rows
        )
        logits_EC[has_text_E] = self.forward.logits(cut)
        return Classified(logits_EC, has_text_E, sum(len(ids) > most for ids in whole))

    def logits(self, texts: Sequence[str]) -> Floats32:
        """Logits (E, C) of texts, in their order; see `Classified`."""
        return self.classify(texts).logits_EC

    def probabilities(self, logits_EC: Floats32) -> Floats:
        """Calibrated probabilities (E, C)."""
        return self.record.calibration.probabilities(
            logits_EC, multiple=self.record.labels.multiple
        )


def load_classifier(
    run_folder: Path,
    device: torch.device,
    *,
    world: World = ALONE,
) -> Classifier:
    """The classifier of a finished run: safetensors only, nothing from the network, no code from
    the folder is run.

    Args:
        run_folder: See `runs.named.resolve_run`.
        device: Where the weights go. Products run in the type that `prediction_dtype` gives.
        world: Ranks that classify together; each holds the whole model.

    Raises:
        RequestError: the run trained something else, or the library of a step of its preparation is
            not installed.
        RunFolderError: not a run, training is not finished, or the model's files are damaged or do
            not belong together.
        RecipeError: recipe.yaml was edited into something that is no recipe.
    """
    recipe = classifier_recipe(run_folder)
    trained_folder(run_folder)
    record = load_record(run_folder)
    return Classifier(
        *load_forward(
            run_folder,
            record.labels,
            record.max_tokens,
            device,
            precision=recipe.plan.precision,
            world=world,
        ),
        record,
    )


def load_forward(
    run_folder: Path,
    labels: Labels,
    max_tokens: int,
    device: torch.device,
    *,
    precision: str,
    world: World = ALONE,
) -> tuple[ClassifierForward, PreTrainedTokenizerBase]:
    """The model of a finished run, which needs no record for its logits, and its tokenizer.

    Args:
        run_folder: Run folder of a classifier.
        labels: The model has as many outputs.
        max_tokens: Most tokens of a text.
        device: Device, as for `load_classifier`.
        precision: The recipe's `plan.precision`.
        world: Likewise.

    Raises:
        RunFolderError: as `load_classifier`.
    """
    folder = trained_folder(run_folder)
    model, tokenizer = read_exported(
        folder, AutoModelForSequenceClassification, torch.float32, attention=None
    )
    if (heads := int(model.config.num_labels)) != len(labels.names):
        raise RunFolderError(
            f"{folder}: the model has outputs for {heads} labels, but classifier.json names"
            f" {len(labels.names)}: they come from different runs. Put back the files of one run,"
            " or train again under another run.name."
        )
    model = model.to(device).eval()
    return forward_of(model, tokenizer, max_tokens, world=world, precision=precision), tokenizer


def forward_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    *,
    world: World = ALONE,
    precision: str = "auto",
) -> ClassifierForward:
    """How a classifier's model, in eval mode on its device and not trained any more, gives logits
    there; see `load_forward`.

    Args:
        precision: The recipe's `plan.precision`.
    """
    device = model.device
    dtype = prediction_dtype(model, precision)
    if dtype is not None:
        keep_body_in(model, dtype)
    passes = Passes(_filling_id(model, tokenizer), max_tokens, PASS_OVERHEAD[device.type])
    budget = TOKENS_PER_PASS[device.type]
    return ClassifierForward(model, passes, budget, device, dtype, world)


def classifier_recipe(run_folder: Path) -> Recipe:
    """The recipe of a run that trains a classifier.

    Raises:
        RequestError: it trains something else; RunFolderError: no run; RecipeError: recipe.yaml was
            edited into something that is no recipe.
    """
    recipe = recipe_of(run_folder)
    if not recipe.kind.gives_labels:
        raise RequestError(
            f"{run_folder.name} is a run of method {recipe.method}, so it gives no labels: predict"
            " needs one of method classify."
        )
    return recipe


def prediction_dtype(model: PreTrainedModel, precision: str = "auto") -> torch.dtype | None:
    """The type in which a classifier's body multiplies when it predicts; None: fp32.

    bf16 or else fp16 where a CUDA device has units for it; bf16 where it was measured to be faster
    on a CPU, for models of `BF16_LEAST_WIDTH` and more.

    Args:
        model: The model, on its device.
        precision: The recipe's `plan.precision`; fp32 is kept to.
    """
    device = model.device
    if precision == "fp32":
        return None
    if device.type == "cpu":
        is_wide = int(model.config.get_text_config().hidden_size) >= BF16_LEAST_WIDTH
        return torch.bfloat16 if is_wide and bf16_pays_here() else None
    if device.type != "cuda":
        return None
    abilities = abilities_of("cuda", torch.cuda.get_device_capability(device))
    if abilities.bf16:
        return torch.bfloat16
    if abilities.fp16:
        return torch.float16
    return None


def _filling_id(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that fills rows. Causal models read their answer off the last token that is another
    one, so they must know it.
    """
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        pad_id = pad_id_of(tokenizer, int(config.vocab_size))
        config.pad_token_id = model.config.pad_token_id = pad_id
    return int(config.pad_token_id)
