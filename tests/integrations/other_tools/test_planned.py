"""Jobs of other tools on devices, from tiny models."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from fixture_types import Refuses
from transformers import MixtralConfig

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.chains.devices import rates_of
from brimful.hardware import catalog
from brimful.integrations.other_tools.division import PartlyHeld
from brimful.integrations.other_tools.job import Sampling, TrainingJob
from brimful.integrations.other_tools.planned import (
    DECLARED_SHARE,
    JobTraces,
    PlannedJob,
    job_traces,
    look_up,
    plan_job,
    step_of,
)
from brimful.integrations.other_tools.step import LossChain, TrainerQuirks
from brimful.integrations.other_tools.tools.trl import PEFT_LINEAR
from brimful.planning.step import Lora

L4 = catalog.get("NVIDIA L4")


@pytest.fixture
def model(tmp_path: Path, llama_values: JsonDict) -> str:
    """A folder with the config of a tiny Llama."""
    (tmp_path / "config.json").write_text(json.dumps(llama_values), encoding="utf-8")
    return str(tmp_path)


@pytest.fixture
def job(model: str) -> TrainingJob:
    return TrainingJob(
        model=model,
        weights="bf16",
        autocast="bf16",
        quantize="none",
        upcast="none",
        adapter=Lora(4, "q_proj"),
        sequence_length=128,
        rows="padded",
        micro_batch=2,
        accumulation=3,
        optimizer="fused",
        clips=True,
        recompute="none",
        attention="sdpa",
        loss=LossChain(),
        kernels=TrainerQuirks(fp32_outputs=True),
    )


@pytest.fixture
def traces(new_cache: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> Iterator[JobTraces]:
    monkeypatch.setenv("BRIMFUL_CACHE", new_cache())
    with job_traces() as made:
        yield made


def _plan(job: TrainingJob, traces: JobTraces) -> PlannedJob:
    return plan_job(job, look_up(job.model), L4, traces, rates_of(L4))


def test_a_job_has_memory_time_and_the_largest_micro_batch(
    job: TrainingJob, traces: JobTraces
) -> None:
    planned = _plan(job, traces)

    assert planned.verdict == "fits"
    assert planned.footprint.micro_batch == 2
    assert planned.largest == 64
    assert planned.step_s is not None
    assert planned.step_s.value > 0
    assert planned.tokens == 2 * 3 * 128
    assert planned.footprint.terms["adapters"] > 0
    assert planned.to_json()["verdict"] == "fits"


def test_a_limit_of_tokens_is_no_length_of_rows(job: TrainingJob, traces: JobTraces) -> None:
    """Rows are padded to the longest of their batch, which may be far below the limit."""
    job, model = replace(job, sequence_length=256, micro_batch=2048), look_up(job.model)

    def planned(memory_bytes: int, rows: Literal["padded", "packed"]) -> PlannedJob:
        device = replace(L4, memory_bytes=memory_bytes)
        return plan_job(replace(job, rows=rows), model, device, traces, searches=False)

    with_room = planned(L4.memory_bytes, "padded")
    full, short = with_room.footprint.driver.value, with_room.footprint.driver.low
    between = L4.memory_bytes - with_room.footprint.usable_bytes + round((full + short) / 2)

    assert with_room.verdict == "fits"
    assert with_room.longest_row is None
    assert planned(between, "padded").verdict == "uncertain"
    assert 0 < (planned(between, "padded").longest_row or 0) < 256
    assert planned(between, "packed").verdict == "does not fit"
    assert planned(round(0.9 * short), "padded").verdict == "does not fit"
    assert planned(round(0.9 * short), "padded").longest_row == 0


def test_a_term_that_may_be_absent_widens_the_low_end_by_its_share(
    job: TrainingJob, traces: JobTraces
) -> None:
    """As gradients that go in the backward pass."""
    job = replace(job, rows="packed")
    held = PartlyHeld((), expected=1, perhaps=("adapters",))
    whole, partly = (_plan(each, traces) for each in (job, replace(job, held=held)))
    adapters = whole.footprint.terms["adapters"]
    tensors = whole.footprint.allocated.value

    assert partly.footprint.driver.low == pytest.approx(
        (1 - adapters / tensors) * whole.footprint.driver.low, rel=1e-3
    )
    assert partly.footprint.allocated.low == pytest.approx(
        (1 - adapters / tensors) * whole.footprint.allocated.low, rel=1e-3
    )
    assert partly.footprint.driver.value == pytest.approx(
        whole.footprint.driver.value - adapters / 2
    )
    assert partly.footprint.driver.high == whole.footprint.driver.high
    assert partly.step_s is not None
    assert partly.largest is None


def test_one_of_eight_devices_holds_an_eighth_of_what_is_divided(
    job: TrainingJob, traces: JobTraces
) -> None:
    """Weights and states of ZeRO-3 by hand: 8 more bytes a weight, for a copy and states in fp32,
    of which one device has all, and one of eight an eighth.
    """
    job = replace(job, rows="packed", adapter=None)
    held = PartlyHeld(("weights", "optimizer states"), buffer_bytes=1000, has_masters=True)
    whole, partly = (_plan(each, traces).footprint for each in (job, replace(job, held=held)))
    weights, states = (whole.terms.get(name, 0) for name in held.parts)
    masters = 8 * whole.trainable

    assert partly.terms["weights"] == pytest.approx(weights / 8, rel=1e-3)
    assert partly.terms["optimizer states"] == pytest.approx((states + masters) / 8, rel=1e-3)
    assert partly.terms["communication buffers"] == 1000
    assert partly.driver.high - whole.driver.high == pytest.approx(
        DECLARED_SHARE[1] * (masters + 1000)
    )
    assert _plan(replace(job, held=held), traces).step_s is None


def test_answers_are_drawn_beside_weights_on_the_host(job: TrainingJob, traces: JobTraces) -> None:
    held = PartlyHeld((), on_host=("weights", "adapters"))
    sampled = _plan(replace(job, held=held, sampling=Sampling(8, 128)), traces).sampled

    assert sampled is not None
    assert sampled.verdict == "fits"


def test_what_lies_on_the_host_takes_nothing(job: TrainingJob, traces: JobTraces) -> None:
    job = replace(job, rows="packed", adapter=None)
    held = PartlyHeld((), on_host=("weights", "optimizer states"))
    partly = _plan(replace(job, held=held), traces).footprint

    assert not {"weights", "optimizer states"} & set(partly.terms)


def test_rows_that_are_joined_without_a_flash_kernel_are_one_row_with_a_mask(
    job: TrainingJob,
) -> None:
    joined = step_of(replace(job, rows="joined"), look_up(job.model), L4)
    flash = step_of(replace(job, rows="joined", attention="flash2"), look_up(job.model), L4)

    assert (joined.sequence_length, joined.padded) == (256, True)
    assert (flash.sequence_length, flash.padded) == (128, False)


def test_rows_longer_than_a_table_of_positions_are_refused(
    job: TrainingJob, refuses: Refuses
) -> None:
    long = replace(job, sequence_length=2048, model="openai-community/gpt2")
    with refuses(PlanError, names=["2048", "1024"]):
        step_of(long, look_up(long.model), L4)


def test_rows_longer_than_a_model_was_made_for_are_planned_where_positions_are_angles(
    job: TrainingJob,
) -> None:
    def planned(length: int) -> PlannedJob:
        long = replace(job, sequence_length=length)
        with job_traces() as traces:
            return plan_job(long, look_up(long.model), L4, traces, searches=False)

    usual, beyond = planned(256), planned(512)
    assert (usual.exceeded, beyond.exceeded) == (None, 256)
    assert beyond.footprint.terms["activations"] > 1.9 * usual.footprint.terms["activations"]


def test_flash_attn_does_not_run_on_older_devices(job: TrainingJob, refuses: Refuses) -> None:
    with refuses(PlanError, names=["Tesla T4", "sdpa"]):
        step_of(replace(job, attention="flash2"), look_up(job.model), catalog.get("T4"))


def test_a_model_without_fused_attention_is_planned_with_whole_scores(job: TrainingJob) -> None:
    name = "openai/gpt-oss-20b"
    step = step_of(replace(job, model=name, attention="sdpa"), look_up(name), L4)

    assert (step.attention, step.flash) == ("eager", False)


def test_a_published_type_that_nobody_knows_is_refused(job: TrainingJob, refuses: Refuses) -> None:
    with refuses(PlanError):
        step_of(replace(job, weights="published"), look_up(job.model), L4)


def test_the_published_type_of_a_model_in_the_catalog_is_known() -> None:
    assert look_up("meta-llama/Llama-3.2-1B").published == "bf16"


def test_layers_that_peft_chooses_follow_from_the_model_s_type(job: TrainingJob) -> None:
    step = step_of(replace(job, adapter=Lora(4, "usual")), look_up(job.model), L4)

    assert isinstance(step.adapter, Lora)
    assert step.adapter.targets == "q_proj,v_proj"


def test_tools_that_look_for_linear_layers_put_no_adapters_on_experts(
    job: TrainingJob, tmp_path: Path
) -> None:
    """peft itself takes Mixtral's experts for the linear layers that they were in transformers 4,
    and cannot drop out of them.
    """
    config = MixtralConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    config.save_pretrained(tmp_path / "mixtral")
    job = replace(job, model=str(tmp_path / "mixtral"))

    def trainable(targets: str, dropout: float) -> int:
        own = replace(job, adapter=Lora(4, targets, dropout))
        with job_traces() as traces:
            planned = plan_job(own, look_up(own.model), L4, traces, searches=False)
        return planned.footprint.trainable

    attention = trainable("q_proj,k_proj,v_proj,o_proj", 0.05)
    assert trainable("all-linear", 0.05) == attention
    assert trainable(PEFT_LINEAR, 0.0) > attention
    with pytest.raises(PlanError, match="dropout"):
        trainable(PEFT_LINEAR, 0.05)
