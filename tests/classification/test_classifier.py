"""Finished classifiers: every text gets the logits that it gets alone, whatever stands beside
it.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

from brimful.base.errors import RequestError, RunFolderError
from brimful.classification.classifier import (
    BF16_LEAST_WIDTH,
    forward_of,
    load_classifier,
    prediction_dtype,
)

CPU = torch.device("cpu")


def _texts() -> list[str]:
    words = ["call", "me", "later", "win", "a", "prize", "the", "meeting", "is", "moved"]
    drawn = np.random.default_rng(1)
    return [" ".join(drawn.choice(words, size=drawn.integers(1, 14))) for _ in range(40)]


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "gpt2", "llama"])
def test_logits_are_those_of_each_text_alone_in_the_order_of_the_texts(kind: str, make_run) -> None:
    run, texts = make_run(kind), _texts()
    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    with torch.inference_mode():
        alone = [
            model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False))
            .logits[0]
            .numpy()
            for text in texts
        ]

    logits_EC = load_classifier(run, CPU).logits(texts)

    np.testing.assert_allclose(logits_EC, np.stack(alone), rtol=1e-4, atol=1e-5)
    assert np.ptp(logits_EC, axis=0).min() > 0.01


@pytest.mark.parametrize("tokens_per_pass", [1, 64, 100000])
def test_logits_do_not_depend_on_the_size_of_a_pass(tokens_per_pass: int, make_run) -> None:
    classifier, texts = load_classifier(make_run("modernbert"), CPU), _texts()
    expected = classifier.logits(texts)
    classifier.forward.budgets = [tokens_per_pass]

    np.testing.assert_allclose(classifier.logits(texts), expected, rtol=1e-4, atol=1e-5)


def test_texts_are_prepared_as_in_training_and_then_judged(make_run) -> None:
    classifier = load_classifier(make_run(preprocess=("lowercase", "spaces")), CPU)

    loud, quiet = classifier.logits(["  WIN  a\tPRIZE ", "win a prize"])

    assert loud.tolist() == quiet.tolist()


def test_a_text_of_white_space_alone_is_not_judged(make_run) -> None:
    classified = load_classifier(make_run(), CPU).classify(["", "call me", " \t\n"])

    assert classified.has_text_E.tolist() == [False, True, False]
    assert classified.logits_EC[[0, 2]].tolist() == [[0, 0], [0, 0]]
    assert classified.logits_EC[1].any()


def test_only_white_space_asks_the_model_nothing(make_run) -> None:
    assert load_classifier(make_run(), CPU).classify(["", " "]).has_text_E.tolist() == [
        False,
        False,
    ]


def test_a_long_text_is_cut_to_the_tokens_of_training_with_its_last_special_token_kept(
    make_run,
) -> None:
    run = make_run()
    classifier = load_classifier(run, CPU)
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    ids = tokenizer(
        "win a prize " * 40,
        truncation=True,
        max_length=48,
        return_tensors="pt",
        return_token_type_ids=False,
    )
    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()

    classified = classifier.classify(["win a prize " * 40, "ok"])

    assert classified.num_cut == 1
    with torch.inference_mode():
        np.testing.assert_allclose(
            classified.logits_EC[0], model(**ids).logits[0].numpy(), rtol=1e-4, atol=1e-5
        )


def test_what_spells_a_special_token_is_text(make_run) -> None:
    classifier = load_classifier(make_run(), CPU)

    written, meant = classifier.logits(["ok [SEP] ok", "ok  ok"])

    assert not np.allclose(written, meant, atol=1e-3)
    assert len(classifier._encode(["[SEP]"])[0]) > 3


def test_a_causal_model_learns_of_its_padding_token_from_the_tokenizer(make_run) -> None:
    run = make_run("llama")
    config = json.loads((run / "model/config.json").read_text())
    assert config["pad_token_id"] is None

    logits_EC = load_classifier(run, CPU).logits(
        ["ok", "see you at the station at six, bring the blue bag"]
    )

    alone = load_classifier(run, CPU).logits(["ok"])
    np.testing.assert_allclose(logits_EC[:1], alone, rtol=1e-4, atol=1e-5)


def test_other_versions_of_a_steps_library_are_told(make_run, snapshot: SnapshotAssertion) -> None:
    run = make_run()
    path = run / "classifier.json"
    record = json.loads(path.read_text())
    del record["checksum"]
    path.write_text(json.dumps(record | {"preprocess_identity": {"nfc": "unicode-library 1.0"}}))

    (note,) = load_classifier(run, CPU).notes

    assert note == snapshot


def test_a_run_of_another_method_gives_no_labels(make_run, refuses: Refuses) -> None:
    pretrain = (
        "method: pretrain\nmodel: {architecture: llama, layers: 1, heads: 1, width: 8}\ntokenizer:"
        " {vocabulary: 300}"
    )
    run = make_run(recipe=(RECIPE_START + pretrain))

    with refuses(RequestError):
        load_classifier(run, CPU)


RECIPE_START = """
name: other
sequence_length: 48
batch: {sequences: 4}
training: {steps: 1}
data: {path: corpus.txt}
optimizer: {learning_rate: 1e-4}
"""


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError, names=["recipe.yaml"]):
        load_classifier(tmp_path, CPU)


def test_training_that_is_not_finished_is_told(make_run, refuses: Refuses) -> None:
    run = make_run()
    (run / "model").rename(run / "checkpoint")

    with refuses(RunFolderError):
        load_classifier(run, CPU)


def test_weights_of_another_number_of_labels_are_refused(make_run, refuses: Refuses) -> None:
    run = make_run(names=("a", "b", "c"))
    other = make_run(names=("ham", "spam"))
    for name in ("classifier.json", "classifier.safetensors"):
        (run / name).write_bytes((other / name).read_bytes())

    with refuses(RunFolderError, names=["3 labels", "classifier.json names 2"]):
        load_classifier(run, CPU)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damaged_weights_are_named_with_what_to_do(damage: str, make_run) -> None:
    run = make_run()
    weights = run / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500]) if damage == "cut" else weights.unlink()

    with pytest.raises(RunFolderError, match="cannot be loaded"):
        load_classifier(run, CPU)


def test_a_model_without_its_trained_head_is_refused(make_run, refuses: Refuses) -> None:
    from transformers import BertConfig, BertModel

    run = make_run()
    config = BertConfig.from_pretrained(run / "model")
    BertModel(config).save_pretrained(run / "model")

    with refuses(RunFolderError):
        load_classifier(run, CPU)


def _encoder(width: int) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=300,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        num_labels=3,
    )
    return BertForSequenceClassification(config).eval()


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_cpu_predicts_in_bf16_where_that_is_faster_and_the_model_is_wide(
    has_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.classification.classifier.bf16_pays_here", lambda: has_bf16)
    wide, narrow = _encoder(BF16_LEAST_WIDTH), _encoder(BF16_LEAST_WIDTH // 2)

    assert prediction_dtype(wide) == (torch.bfloat16 if has_bf16 else None)
    assert prediction_dtype(narrow) is None
    assert prediction_dtype(wide, "fp32") is None


def test_a_recipe_in_fp32_predicts_in_fp32(monkeypatch: pytest.MonkeyPatch, make_run) -> None:
    monkeypatch.setattr("brimful.classification.classifier.bf16_pays_here", lambda: True)
    monkeypatch.setattr("brimful.classification.classifier.BF16_LEAST_WIDTH", 1)
    run, texts = make_run(), _texts()
    in_bf16 = load_classifier(run, CPU).logits(texts)
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe + "plan: {precision: fp32}\n")
    in_fp32 = load_classifier(run, CPU).logits(texts)
    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")

    expected = forward_of(model, tokenizer, 40, precision="fp32")
    ids = [np.asarray(tokenizer(text)["input_ids"], np.uint32) for text in texts]

    np.testing.assert_array_equal(in_fp32, expected.logits(ids))
    assert np.abs(in_bf16 - in_fp32).max() > 0
