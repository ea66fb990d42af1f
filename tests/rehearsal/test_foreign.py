"""A model object of one's own is planned for without its weights being read, copied or changed."""

import pytest
import torch
from fixture_types import Refuses
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from brimful import plan_model
from brimful.base.errors import DeviceError, PlanError, RequestError
from brimful.rehearsal.foreign import copies_without_weights, without_weights


def _llama(*, tied: bool = True) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def _text(sequences: int = 2) -> dict[str, torch.Tensor]:
    ids_BT = torch.zeros((sequences, 16), dtype=torch.int64)
    return {"input_ids": ids_BT, "labels": ids_BT}


def test_weights_gradients_and_states_are_the_models() -> None:
    model = _llama()
    terms = plan_model(model, _text(), "fused", device="NVIDIA H200", accumulates=True).at(2).terms
    bytes_of_weights = 4 * sum(parameter.numel() for parameter in model.parameters())

    assert terms["weights"] - bytes_of_weights == sum(buffer.nbytes for buffer in model.buffers())
    assert terms["gradients"] == bytes_of_weights
    assert (
        2 * bytes_of_weights
        <= terms["optimizer states"]
        <= 2 * bytes_of_weights + 8 * len(list(model.parameters()))
    )


def test_a_loop_that_keeps_its_outputs_holds_the_logits_of_the_last_pass() -> None:
    """Both stand where the second micro-batch's forward pass ends."""
    batch, model = {**_text(), "input_ids": torch.zeros((2, 64), dtype=torch.int64)}, _llama()
    batch["labels"] = batch["input_ids"]
    held, freed = (
        plan_model(model, batch, device="NVIDIA L4", accumulates=True, keeps_outputs=keeps)
        .at(64)
        .allocated.value
        for keeps in (True, False)
    )
    logits_bytes = 4 * 64 * 64 * 300

    assert held - freed == pytest.approx(logits_bytes, rel=0.02)


def test_the_model_is_left_as_it_was() -> None:
    model = _llama()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()

    plan_model(model, _text(), device="Tesla T4").at(1)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_copy_without_weights_holds_none_and_keeps_what_is_tied() -> None:
    copy = without_weights(_llama())

    assert all(parameter.is_meta for parameter in copy.parameters())
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight


@pytest.mark.long
def test_a_larger_micro_batch_takes_more_and_the_largest_that_fits_is_found() -> None:
    memory = plan_model(_llama(), _text(), device="Tesla T4")

    assert memory.at(1).allocated.value < memory.at(4).allocated.value
    assert memory.largest(5) == 5


def test_frozen_parameters_have_no_gradients_and_no_states() -> None:
    model = _llama(tied=False)
    model.model.requires_grad_(False)
    footprint = plan_model(model, _text(), "fused", device="Tesla T4", accumulates=True).at(2)

    assert footprint.trainable == 300 * 32
    assert footprint.terms["gradients"] == 4 * 300 * 32


def test_a_classifier_and_a_module_that_is_no_transformer_are_planned_for() -> None:
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    batch = {
        "input_ids": torch.zeros((2, 8), dtype=torch.int64),
        "labels": torch.zeros(2, dtype=torch.int64),
    }
    perceptron = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    assert (
        plan_model(BertForSequenceClassification(config), batch, device="Tesla T4").at(2).verdict
        == "fits"
    )
    alone = plan_model(
        perceptron,
        {"x": torch.zeros(4, 8)},
        device="Tesla T4",
        loss_of=lambda model, made: model(made["x"]).sum(),
    )
    assert alone.at(4).terms["weights"] == 4 * (8 * 8 + 8 + 8 + 1)


def test_autocast_keeps_16_bit_copies_of_the_weights() -> None:
    plain, mixed = (
        plan_model(_llama(), _text(), device="Tesla T4", autocast=autocast).at(2).terms
        for autocast in ("none", "fp16")
    )

    assert "16-bit weight copies" not in plain
    assert mixed["16-bit weight copies"] > 0


def test_an_optimizer_of_ones_own_has_its_states_and_is_left_without_them() -> None:
    model = _llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    terms = plan_model(model, _text(), optimizer, device="Tesla T4").at(2).terms

    assert terms["optimizer states"] == 4 * sum(each.numel() for each in model.parameters())
    assert not optimizer.state


def test_copies_of_several_modules_share_what_they_shared() -> None:
    model = _llama()
    copies = copies_without_weights({"whole": model, "head": model.lm_head})

    assert copies["head"] is copies["whole"].lm_head
    assert copies["head"].weight.is_meta


def test_what_cannot_be_planned_is_told(refuses: Refuses) -> None:
    with refuses(RequestError):
        plan_model(_llama(), _text(), "adam", device="Tesla T4")
    with refuses(RequestError):
        plan_model(_llama(), {}, device="Tesla T4")
    with refuses(DeviceError):
        plan_model(_llama(), _text(), device="Tesla T5")
    with refuses(PlanError):
        plan_model(
            _llama(), {"input_ids": torch.zeros((1, 4), dtype=torch.int64)}, device="Tesla T4"
        ).at(1)
    reads_values = plan_model(
        nn.Linear(2, 1),
        {"x": torch.zeros(1, 2)},
        device="Tesla T4",
        loss_of=lambda model, batch: model(batch["x"] * batch["x"].max().item()).sum(),
    )
    with refuses(PlanError):
        reads_values.at(1)
