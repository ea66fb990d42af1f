"""Finished classifiers made on the spot: a tiny model of any kind, a tokenizer, a record and a
recipe in a run folder.
"""

import json
from pathlib import Path

import pytest
import torch
from drawn_labels import drawn_labels
from fixture_types import Make, MakeRecipe, MakeRun
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from brimful.base.types import JsonDict
from brimful.classification.calibration import choose_calibration
from brimful.classification.record import ClassifierRecord, save_classifier
from brimful.data.preparation import preparation_identity
from brimful.recipe import load

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGS: dict[str, Make] = {
    "bert": lambda **ids: BertConfig(**SIZES, **ids),
    "roberta": lambda **ids: RobertaConfig(**SIZES, **ids),
    "modernbert": lambda **ids: ModernBertConfig(**SIZES, **ids),
    "gpt2": lambda **ids: GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=128, **ids),
    "llama": lambda **ids: LlamaConfig(**SIZES, num_key_value_heads=1, **ids),
}
TEXTS = [
    "free prize now, call 0800 to win",
    "ok",
    "see you at the station at six, bring the blue bag and the letter from your mother please",
    'he said "fine, then"',
    "WIN a prize",
    "call me later",
    "x",
    "the meeting is moved to tuesday",
]
RECIPE = """
name: sorted
method: classify
model: BASE
sequence_length: 48
batch: {sequences: 4}
training: {steps: 1}
data: {path: texts.csv}
optimizer: {learning_rate: 1e-4}
"""


def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """Bytes and a few merges; encoders get [CLS] and [SEP] around a text, causal models only an
    end-of-text token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    if kind in {"gpt2", "llama"}:
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="[SEP]"
        )  # no padding token, as the published ones
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
    )


@pytest.fixture
def recipe(tmp_path: Path) -> MakeRecipe:
    """`recipe("data.header=false", ...)`."""
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return lambda *changes: load(str(path), changes)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run("bert", names=("ham", "spam"), ...)` gives the folder of a finished run with random
    weights.
    """

    def make(
        kind: str = "bert",
        *,
        names: tuple[str, ...] = ("ham", "spam"),
        multiple: bool = False,
        preprocess: tuple[str, ...] = ("nfc",),
        recipe: str = RECIPE,
        policy: str = "best_f1",
    ) -> Path:
        folder = tmp_path / f"{kind}-{len(names)}{'-multiple' * multiple}"
        folder.mkdir()
        (folder / "recipe.yaml").write_text(recipe)
        tokenizer = tokenizer_of(kind)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            ids = {
                "vocab_size": len(tokenizer),
                "pad_token_id": tokenizer.pad_token_id,
                "eos_token_id": 2,
                "bos_token_id": 1,
                "initializer_range": 0.6,
            }
            model = AutoModelForSequenceClassification.from_config(
                CONFIGS[kind](num_labels=len(names), **ids)
            )
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        labels, logits_EC, targets = drawn_labels(
            names, multiple=multiple, count=60, seed=0, gain=2
        )
        calibration = choose_calibration(logits_EC, targets, labels, policy)
        record = ClassifierRecord(
            labels,
            calibration,
            preprocess,
            preparation_identity(preprocess),
            48,
            logits_EC,
            targets,
        )
        save_classifier(folder, record)
        return folder

    return make


def read_jsonl(text: str) -> list[JsonDict]:
    """The objects of JSON lines."""
    return [json.loads(line) for line in text.splitlines()]
