"""What planning knows of a device: measured rates before assumed ones, earlier runs on it, and
nothing of this machine for another.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fixture_types import MakeRecipe, Refuses

from brimful.base.errors import DeviceError, RequestError
from brimful.base.units import GIB
from brimful.chains import devices, plans
from brimful.chains.limits import Limits, answers
from brimful.chains.surveyed_devices import Known
from brimful.hardware import calibration, catalog, fitted
from brimful.hardware.calibration import Calibration, Correction
from brimful.hardware.device import Abilities, Device
from brimful.hardware.groups import Group
from brimful.hardware.guessed import guessed_rates
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, Rates
from brimful.planning.budget import Budget
from brimful.planning.job import SAMPLING
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import load
from brimful.rehearsal.kept_traces import kept_traces
from brimful.report.plan.answer import answer_lines
from brimful.report.plan.plans import exit_code

A100 = "NVIDIA A100-SXM4-40GB"
HERE = Device(
    name="a CPU",
    kind="cpu",
    memory_bytes=2**34,
    free_memory_bytes=2**33,
    dense_flop_per_s={"fp32": 1e11},
    abilities=Abilities(),
    threads=2,
    source="made by hand",
)
MEASURED = Rates(
    flop_per_s={name: {"fp32": 5e10} for name in MATRIX_CLASSES},
    bytes_per_s=dict.fromkeys(CLASSES, 1e10),
    overlaps=False,
    source="measured",
)


def _calibrate(device: Device, threads: int | None) -> None:
    calibration.save(
        Calibration(
            device.name,
            MEASURED,
            threads,
            {"disk_bytes_per_s": 1e8},
            calibration.current_versions(),
            0.0,
            10,
        )
    )


def _note_slow_run(device: Device) -> None:
    rates = devices.rates_of(device)
    assert rates is not None
    took, expected = {"step_time_s": 2.0}, {"step_time_s": 1.0}
    calibration.note_run(
        device.name,
        measured=took,
        predicted=expected,
        key="slow",
        basis=calibration.basis_of(rates, device),
    )


def test_rates_are_measured_where_the_device_was_calibrated_else_assumed() -> None:
    assert devices.rates_of(HERE) == guessed_rates(HERE)
    _calibrate(HERE, 2)

    assert devices.rates_of(HERE) == MEASURED


def test_a_calibration_with_other_threads_says_nothing() -> None:
    _calibrate(HERE, 1)

    assert devices.rates_of(HERE) == guessed_rates(HERE)


def test_a_device_of_the_catalog_is_not_the_one_here_of_the_same_name() -> None:
    card = catalog.get("NVIDIA H200")
    _calibrate(card, None)
    _note_slow_run(card)

    assert devices.rates_of(card) == fitted.rates_of(card)
    assert devices.facts_of(card).correction is calibration.NOT_CORRECTED
    assert devices.conditions(card).disk_bytes_per_s is None


def test_nothing_is_known_of_a_device_without_rates() -> None:
    assert devices.rates_of(dataclasses.replace(HERE, dense_flop_per_s={})) is None


def test_earlier_runs_here_and_the_disk_are_facts() -> None:
    _calibrate(HERE, 2)
    _note_slow_run(HERE)

    facts = devices.facts_of(HERE, train_sequences=7)

    assert (facts.correction.runs, facts.rates, facts.train_sequences) == (1, MEASURED, 7)
    assert 1 < facts.correction.factor < 2
    assert facts.process_bytes > 0
    assert devices.conditions(HERE).disk_bytes_per_s == 1e8


def test_runs_with_assumed_rates_correct_no_plan_with_measured_ones() -> None:
    _note_slow_run(HERE)
    before = devices.facts_of(HERE).correction
    _calibrate(HERE, 2)

    assert before is not None
    assert before.high > 2.5  # as wide as assumed rates are uncertain
    assert devices.facts_of(HERE).correction == Correction()


@pytest.mark.parametrize(("threads", "rate"), [(1, 1e11), (2, 2e11), (8, 2e11)])
def test_more_threads_than_cores_make_the_device_no_faster(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch, threads: int, rate: float
) -> None:
    monkeypatch.setattr("brimful.hardware.probe.probe", lambda _: HERE)
    monkeypatch.setattr(
        "brimful.hardware.calibrate.measure_matrix_rates",
        lambda *_: {"fp32": 1e11 * torch.get_num_threads()},
    )

    assert devices.here(tiny(f"plan.threads={threads}")).dense_flop_per_s == {"fp32": rate}


def test_a_plan_for_a_card_has_time_and_cost_and_the_second_one_is_the_same(
    tiny: MakeRecipe,
) -> None:
    """The second reads the traces that the first one kept."""
    first = plans.plan(tiny("plan={}"), "Tesla T4")

    assert {
        "step_time_s",
        "tokens_per_s",
        "mfu",
        "training_time_s",
        "total_time_s",
        "energy_wh",
        "cost_usd",
    } <= first.predicted.keys()
    assert plans.plan(tiny("plan={}"), "Tesla T4") == first


def test_devices_are_named_exactly_one_by_one_or_all(tiny: MakeRecipe) -> None:
    assert [group.name for group in devices.groups_of(tiny(), "Tesla T4, 8 x H200")] == [
        "Tesla T4",
        "8 x NVIDIA H200",
    ]
    assert [group.name for group in devices.groups_of(tiny(), "all")] == list(catalog.names())
    for wrong in (" , ", "Tesla"):
        with pytest.raises(DeviceError):
            devices.groups_of(tiny(), wrong)


def test_several_devices_share_the_batch_and_are_paid_together(
    tiny: MakeRecipe,
) -> None:
    recipe = tiny("plan={}", "batch.sequences=6")

    one, two, four = plans.survey(recipe, "T4", up_to=4)

    assert isinstance(one, Surveyed)
    assert isinstance(two, Surveyed)
    assert isinstance(four, Surveyed)
    assert [entry.device.name for entry in (two, four)] == ["2 x Tesla T4", "4 x Tesla T4"]
    assert [entry.derived.plan.micro_batches for entry in (two, four)] == [(3,), (2,)]
    assert {entry.derived.plan.spread for entry in (two, four)} == {"replicated"}
    assert {entry.derived.plan.effective_batch for entry in (one, two, four)} == {6}
    assert {entry.derived.plan.total_steps for entry in (one, two, four)} == {
        one.derived.plan.total_steps
    }
    steps = [entry.derived.plan.predicted["step_time_s"] for entry in (one, two, four)]
    assert all(step.low < step.value < step.high for step in steps)
    hours = [
        entry.derived.plan.predicted["cost_usd"].value
        / entry.derived.plan.predicted["total_time_s"].value
        for entry in (one, two, four)
    ]
    assert hours == pytest.approx([hours[0], 2 * hours[0], 4 * hours[0]])


def test_a_model_in_parts_is_planned_where_the_recipe_asks(tiny: MakeRecipe) -> None:
    (entry,) = plans.survey(tiny("plan={}", "plan.spread=sharded", "model.layers=1"), "2 x T4")

    assert isinstance(entry, Surveyed)
    plan = entry.derived.plan
    assert plan.spread == "sharded"
    assert plan.base is None or not plan.base.loss_share
    assert "gathered weights" in entry.derived.footprint.terms
    assert "communication" in plan.time_terms
    assert sum(plan.time_terms.values()) == pytest.approx(plan.predicted["step_time_s"].value)


def test_more_devices_than_sequences_are_refused(tiny: MakeRecipe, refuses: Refuses) -> None:
    recipe = tiny("plan={}", "batch.sequences=3")

    with refuses(RequestError):
        plans.survey(recipe, "4 x T4")
    fits, refused = plans.survey(recipe, "T4,4 x T4")

    assert isinstance(fits, Surveyed)
    assert isinstance(refused, Unplanned)


def test_a_budget_of_money_counts_all_devices(tiny: MakeRecipe) -> None:
    """The second group costs twice as much an hour as the first."""
    recipe = tiny("plan={}", "batch.sequences=8")
    limits = Limits(Budget("money", 1000.0))
    surveyed = plans.survey(recipe, "2 x T4,4 x T4")

    answered = answers(recipe, surveyed, limits).budget

    for entry in surveyed:
        assert isinstance(entry, Surveyed)
        check = answered[entry.device.name]
        assert check.amount == entry.derived.plan.predicted["cost_usd"]
        assert check.beside == entry.derived.plan.predicted["total_time_s"]


WITHOUT_TORCH = """
import json, sys
for name in ("torch", "transformers", "peft"):
    sys.modules[name] = None
from brimful.cli import main
main()
"""


@pytest.mark.parametrize(
    ("model", "fits"), [("HuggingFaceTB/SmolLM2-135M", True), ("meta-llama/Llama-3.1-8B", False)]
)
def test_a_plan_of_a_model_that_comes_with_brimful_needs_no_torch(
    tmp_path: Path, model: str, fits: bool
) -> None:
    """Not even for what would make it fit, in a cache folder that is empty."""
    words = [f"model={model}", "adapter.rank=16", "tokenizer=null", "sequence_length=2048"]

    planned = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "plan", "quickstart", *words, "--on", "T4", "--json"],
        env=os.environ | {"BRIMFUL_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert planned.stderr == ""
    (device,) = json.loads(planned.stdout)["devices"]
    assert planned.returncode == (0 if fits else 1)
    assert device["verdict"] == ("fits" if fits else "does not fit")
    assert fits or any(remedy["largest_micro_batch"] for remedy in device["remedies"])


@pytest.mark.long_but("T4-overrides0")
@pytest.mark.parametrize(
    ("device", "overrides"),
    [
        ("T4", ["model=Qwen/Qwen3-8B", "sequence_length=2048"]),
        ("4090", ["model=meta-llama/Llama-3.1-70B", "sequence_length=2048", "quantize=nf4"]),
    ],
)
def test_the_smallest_device_is_the_first_whose_own_plan_fits(
    device: str, overrides: list[str]
) -> None:
    recipe = load("lora", ["data.path=pairs.jsonl", *overrides])
    (closely,) = plans.survey(recipe, device)
    assert isinstance(closely, Surveyed)
    model = closely.derived.prepared.model
    least_bytes = (model.parameters or 0) * (2 if recipe.quantize == "none" else 0.5)
    rows = sorted(map(catalog.get, catalog.names()), key=lambda row: row.memory_bytes)
    holding = [row for row in rows if row.kind == "cuda" and row.memory_bytes > least_bytes]
    with kept_traces() as traces:
        entries = plans.survey_groups(recipe, [*map(Group, holding)], traces, Known(model))
    fitting = [
        entry.device.name
        for entry in entries
        if isinstance(entry, Surveyed) and entry.verdict == "fits"
    ]
    assert (closely.verdict, closely.smallest_device) == ("does not fit", fitting[0])


def test_a_teacher_that_no_device_holds_is_named_by_its_phase() -> None:
    """By hand: 70.6B parameters of 2 bytes are 131.4 GiB, of 39.5; each of several holds them."""
    recipe = load("unit-rft", ["rft.teacher=meta-llama/Llama-3.1-70B-Instruct"])
    for entry in plans.survey(recipe, f"{A100},8 x {A100}"):
        assert isinstance(entry, Surveyed)
        assert entry.verdict == "does not fit"
        assert entry.chain is not None
        assert entry.chain.worst.name == SAMPLING
        assert entry.derived.footprint.verdict == "fits"
        assert entry.memory[0] > 131.4 * GIB
        (line,) = answer_lines([entry], 200)
        assert "in sampling" in line
    assert exit_code([entry]) == 1


def test_texts_are_planned_as_many_at_once_as_the_engine_takes() -> None:
    """By hand: 3.2 GiB of weights leave 8.6 of 11.8 GiB, of which the engine takes four fifths."""
    (entry,) = plans.survey(load("unit-rft"), "RTX 3060")
    assert isinstance(entry, Surveyed)
    assert entry.verdict == "fits"
    assert entry.chain is not None
    phases = {phase.name: phase for phase in entry.chain.phases}
    sampling = phases[SAMPLING].memory
    assert sampling is not None
    assert 0.7 * 11.8 * GIB < sampling.value < 11.8 * GIB
    assert entry.predicted["total_time_s"].value > sum(
        phase.time_s.value for phase in phases.values() if phase.time_s is not None
    ) * (1 - 1e-9)


def test_budgets_and_sessions_count_the_whole_job() -> None:
    recipe = load("unit-rft")
    surveyed = plans.survey(recipe, A100)
    (entry,) = surveyed
    assert isinstance(entry, Surveyed)
    training = entry.derived.plan.predicted["total_time_s"].high
    whole = entry.predicted["total_time_s"]
    assert training < whole.low
    limits = Limits(Budget("time", training + 1), session_s=whole.value / 2)
    answered = answers(recipe, [entry, entry], limits)  # of several no others are looked for
    check = answered.budget[entry.device.name]
    assert (check.verdict, check.amount, check.steps) == ("does not fit", whole, 0)
    assert answered.sessions[entry.device.name].count[0] > 2


def test_a_study_is_planned_variant_by_variant(tiny: MakeRecipe) -> None:
    """The verdict is that of the variant that needs most; the run leaves it out."""
    huge = ["batch.sequences=1048576", "plan.micro_batch=1048576"]
    variants = {"small": [], "huge": huge}
    recipe = tiny("plan={}", f"study={{seeds: [1, 2], variants: {json.dumps(variants)}}}")
    (entry,) = plans.survey(recipe, "T4")
    assert isinstance(entry, Surveyed)
    assert entry.verdict == "does not fit"
    assert entry.chain is not None
    assert entry.chain.worst.title == "training of huge"
    small, refused = entry.chain.phases
    assert (small.verdict, small.about, refused.verdict) == ("fits", "2 runs", "does not fit")
    (alone,) = plans.survey(tiny("plan={}", "evaluation.base=never"), "T4")
    assert isinstance(alone, Surveyed)
    expected = alone.derived.plan.predicted["total_time_s"]
    assert entry.predicted["total_time_s"].value == pytest.approx(2 * expected.value)
    table, line = entry.to_json()["job"], answer_lines([entry], 200)[0]
    assert [phase["variant"] for phase in table["phases"]] == ["small", "huge"]
    assert "the run leaves it out, 1 of 2 fit" in line


def test_a_model_that_a_job_trains_first_is_timed_here_where_no_other_device_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed: set[int] = set()
    monkeypatch.setattr(
        "brimful.rehearsal.timed_steps.time_passes",
        lambda spec, *_: timed.add(spec.sequence_length),
    )
    recipe = load("unit-rft-offline", ["sequence_length=128"])
    plans.survey(recipe, "here,T4")
    assert not timed
    plans.survey(recipe)
    assert timed == {128, load("unit-base").sequence_length}


def test_tokens_of_short_examples_are_more_steps() -> None:
    """As many tokens take as long, whatever the length of the examples that hold them."""
    (entry,) = plans.survey(load("unit-rft"), A100)
    assert isinstance(entry, Surveyed)
    plan = entry.derived.plan
    step, rate = (plan.predicted[name].value for name in ("step_time_s", "tokens_per_s"))
    assert plan.total_steps is not None
    assert plan.total_steps * step * rate == pytest.approx(600_000, rel=0.01)
