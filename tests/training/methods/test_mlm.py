"""Hidden tokens are predicted through the encoder's own head, and only they cost logits; a whole
run is one of the product like any other.
"""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import records_of
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from torch.nn import functional as F  # noqa: N812
from transformers import pipeline as transformers_pipeline

from brimful.base.errors import RequestError
from brimful.base.rundir import read_json
from brimful.chains import finished, scoring
from brimful.data.batches import IGNORED, MicroBatch
from brimful.data.masking import MaskedBatch, MaskingRules
from brimful.generation.sampler import SamplingSettings
from brimful.model.build import build
from brimful.recipe import Recipe
from brimful.training.checkpoint import differences
from brimful.training.method import Network, find_method, hidden_states_of
from brimful.training.methods.mlm import METHOD

ENCODER = ("method=mlm", "model.architecture=modernbert")


@pytest.fixture
def network(tiny: MakeRecipe) -> Network:
    model = build(
        tiny(*ENCODER),
        vocabulary=60,
        end_of_text_id=0,
        attention="sdpa",
        device=torch.device("cpu"),
    )
    return Network(model, hidden_states_of(model), loss_chunk=5)


@pytest.fixture
def batch() -> MaskedBatch:
    """Six rows, of which the last three end early."""
    rows_BT = torch.randint(4, 60, (6, 16), generator=torch.Generator().manual_seed(0))
    mask_BT = torch.ones_like(rows_BT)
    mask_BT[3:, 10:] = 0
    inputs_BT, targets_BT = MaskingRules(0.3, 60, 0).hide(
        rows_BT.masked_fill(mask_BT == 0, 0).numpy(), torch.arange(6).numpy()
    )
    return MaskedBatch(torch.from_numpy(inputs_BT), torch.from_numpy(targets_BT), mask_BT)


def test_the_file_is_the_method() -> None:
    assert find_method("mlm") is METHOD


def test_the_loss_is_the_sum_of_what_transformers_averages_over_hidden_tokens(
    network: Network, batch: MaskedBatch
) -> None:
    (micro,) = batch.micro_batches((6,))
    ours = METHOD.loss_sum(network, micro)
    ours.backward()
    gradients = {name: weight.grad.clone() for name, weight in network.model.named_parameters()}
    network.model.zero_grad()

    logits_BTV = network.model(input_ids=batch.inputs_BT, attention_mask=batch.mask_BT).logits
    theirs = F.cross_entropy(
        logits_BTV.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    theirs.backward()

    torch.testing.assert_close(ours, theirs)
    for name, weight in network.model.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("sizes", [(3, 3), (1,) * 6, (4, 2)], ids=str)
def test_micro_batches_add_up_to_the_whole_batch(
    network: Network, batch: MaskedBatch, sizes: tuple[int, ...]
) -> None:
    def gradient(*pieces: MicroBatch) -> list[torch.Tensor]:
        network.model.zero_grad()
        for micro in pieces:
            METHOD.loss_sum(network, micro).backward()
        return [weight.grad.clone() for weight in network.model.parameters()]

    whole = gradient(*batch.micro_batches((6,)))
    for one, other in zip(whole, gradient(*batch.micro_batches(sizes)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_what_stands_in_the_padding_changes_nothing(network: Network, batch: MaskedBatch) -> None:
    (micro,) = batch.micro_batches((6,))
    changed = MicroBatch(
        micro.inputs_BT.masked_fill(micro.mask_BT == 0, 33),
        micro.targets_BT,
        micro.scored_N,
        mask_BT=micro.mask_BT,
    )

    torch.testing.assert_close(METHOD.loss_sum(network, changed), METHOD.loss_sum(network, micro))


def test_both_sides_of_a_hidden_token_count(network: Network, batch: MaskedBatch) -> None:
    (micro,) = MaskedBatch(batch.inputs_BT[:1], batch.targets_BT[:1]).micro_batches((1,))
    losses = [METHOD.loss_sum(network, micro).item()]
    for place in (0, 15):
        inputs_BT = micro.inputs_BT.clone()
        inputs_BT[0, place] = 4 + (inputs_BT[0, place] + 7) % 50
        losses.append(
            METHOD.loss_sum(network, MicroBatch(inputs_BT, micro.targets_BT, micro.scored_N)).item()
        )

    assert len({round(loss, 6) for loss in losses}) == 3


def test_a_micro_batch_that_does_not_name_its_targets_is_refused(
    network: Network, batch: MaskedBatch, refuses: Refuses
) -> None:
    with refuses(ValueError):
        METHOD.loss_sum(network, MicroBatch(batch.inputs_BT, batch.targets_BT))


RUN = (
    "method=mlm",
    "model={architecture: modernbert, layers: 1, heads: 2, width: 32, dropout: 0.1}",
    "data.layout=document",
    "data.long_documents=split",
    "data.masked_share=0.3",
    "plan.micro_batch=3",
)
GREEDY = SamplingSettings(temperature=0.0, top_k=None, top_p=1.0)


def test_an_interrupted_run_ends_bit_for_bit_like_an_undisturbed_one(
    interrupted_and_undisturbed: Callable[..., tuple[Any, Any]],
) -> None:
    interrupted, undisturbed = interrupted_and_undisturbed(*RUN)

    assert differences(interrupted.last, undisturbed.last) == []
    assert interrupted.losses == undisturbed.losses


def test_a_run_learns_is_scored_as_masked_fills_masks_and_writes_no_text_and_its_model_is_one_of_transformers(
    tiny: MakeRecipe, train: Callable[[Recipe], Path], refuses: Refuses
) -> None:
    folder = train(tiny(*RUN, "training.steps=30"))
    scores = scoring.evaluate(folder, Console(file=StringIO()))

    evaluations = records_of(folder, "evaluation")
    assert evaluations[-1]["loss"] < evaluations[0]["loss"] - 0.5
    assert not any("perplexity" in record for record in evaluations)
    assert scores == read_json(folder / "scores.json")
    assert scores["validation"]["kind"] == "masked"
    assert "baselines" not in scores["validation"]
    assert scores["validation"]["loss"] == pytest.approx(
        min(record["loss"] for record in evaluations), rel=1e-4
    )

    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert samples
    assert all(
        "[MASK]" in sample["prompt"] and "stands there" in sample["completion"]
        for sample in samples
    )
    filled = transformers_pipeline("fill-mask", model=str(folder / "model"))(
        "the cat sees the [MASK] the dog likes"
    )
    assert len(filled) == 5
    assert all(0 < guess["score"] < 1 for guess in filled)

    with refuses(RequestError):
        finished.Writer(folder, GREEDY).write("The cat")
    with refuses(RequestError, names=["--stride"]):
        scoring.evaluate(folder, Console(file=StringIO()), stride=4)
