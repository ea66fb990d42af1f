"""A published body gets a fresh head for labels; what does not belong together is told."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Refuses
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.model.sequence_classifier import load_with_fresh_head, text_positions

_SMALL: JsonDict = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 20,
}


def _models() -> dict[str, PreTrainedModel]:
    torch.manual_seed(3)
    return {
        "bert": BertForMaskedLM(BertConfig(**_SMALL, max_position_embeddings=32)),
        "roberta": RobertaForMaskedLM(
            RobertaConfig(**_SMALL, max_position_embeddings=34, pad_token_id=1)
        ),
        "modernbert": ModernBertForMaskedLM(
            ModernBertConfig(
                **_SMALL,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                cls_token_id=1,
                sep_token_id=2,
            )
        ),
        "gpt2": GPT2LMHeadModel(
            GPT2Config(
                n_layer=2,
                n_embd=8,
                n_head=2,
                vocab_size=20,
                n_positions=32,
                bos_token_id=0,
                eos_token_id=0,
            )
        ),
    }


def _load(folder: Path, **changes: Any) -> PreTrainedModel:
    options = {
        "multiple": False,
        "pad_id": 1,
        "attention": "sdpa",
        "device": torch.device("cpu"),
        "seed": 5,
    } | changes
    return load_with_fresh_head(folder, ["ham", "spam", "other"], **options)


@pytest.fixture(params=["bert", "roberta", "modernbert", "gpt2"])
def published(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    _models()[request.param].save_pretrained(tmp_path / request.param)
    return tmp_path / request.param


def test_the_body_is_the_published_one_and_the_head_depends_on_the_seed_alone(
    published: Path,
) -> None:
    before = torch.random.get_rng_state()
    model, again, other = _load(published), _load(published), _load(published, seed=6)

    assert torch.equal(torch.random.get_rng_state(), before)
    weights, same, changed = (dict(each.named_parameters()) for each in (model, again, other))
    stored = load_file(published / "model.safetensors")
    body = {name for name in weights if name in stored}
    fresh = set(weights) - body
    assert body
    assert fresh
    assert all(torch.equal(weights[name], stored[name]) for name in body)
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert any(not torch.equal(weights[name], changed[name]) for name in fresh)
    assert not model.training


def test_the_config_names_the_labels_and_how_many_a_text_has(published: Path) -> None:
    single, several = _load(published).config, _load(published, multiple=True).config

    assert single.id2label == {0: "ham", 1: "spam", 2: "other"}
    assert (single.problem_type, several.problem_type) == (
        "single_label_classification",
        "multi_label_classification",
    )
    assert single.pad_token_id == 1


@pytest.mark.parametrize("kernel", ["brimful_blocks", "brimful_expanded"])
def test_a_causal_body_gives_the_same_logits_by_brimfuls_own_kernels(
    tmp_path: Path, kernel: str
) -> None:
    _models()["gpt2"].save_pretrained(tmp_path)
    ids, mask = (
        torch.tensor([[3, 4, 5, 6], [7, 8, 1, 1]]),
        torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    )

    with torch.inference_mode():
        ours, theirs = (
            _load(tmp_path, attention=attention)(input_ids=ids, attention_mask=mask).logits
            for attention in (kernel, "sdpa")
        )

    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_body_that_lacks_weights_is_told(tmp_path: Path, refuses: Refuses) -> None:
    _models()["bert"].save_pretrained(tmp_path / "bert")
    weights = load_file(tmp_path / "bert" / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, tmp_path / "bert" / "model.safetensors", metadata={"format": "pt"})

    with refuses(PlanError):
        _load(tmp_path / "bert")


def test_a_folder_without_weights_is_told(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **_SMALL}))

    with refuses(PlanError):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("name", "positions"), [("bert", 32), ("roberta", 32), ("modernbert", None)]
)
def test_learned_positions_limit_a_text(name: str, positions: int | None) -> None:
    assert text_positions(_models()[name]) == positions
