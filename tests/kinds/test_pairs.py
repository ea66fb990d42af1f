"""Runs on pairs of answers, from rows to a scored model: planned to the byte, resumed bit for bit."""

import json
import signal
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finished_runs import records_of, train
from fixture_types import Captured, MakeRecipe, Refuses
from preference_losses import whole_log_probs
from preference_runs import (
    assert_same_tensors,
    assert_stopped_ends_like_undisturbed,
    assert_timed_with_few_scored,
    planned_and_real,
    run,
    step_of,
    steps_of,
    weights_of,
)
from rich.console import Console

from brimful.base.errors import DataError, Interrupted, RunFolderError
from brimful.base.rundir import read_journal, read_json, write_json_atomically
from brimful.chains import pipeline, plans
from brimful.cli import main
from brimful.data.batches import MicroBatch
from brimful.kinds.pairs import PairRunData, _kept
from brimful.kinds.run_data import ScoringOptions, gather
from brimful.planning.family_key import family_keys_of
from brimful.planning.step import Compiled
from brimful.planning.trace import KINDS
from brimful.rehearsal.models import config_of
from brimful.rehearsal.training import record_training
from brimful.report.text import evaluation_lines
from brimful.training import session
from brimful.training.method import Method, Network

PAIRS = 3
"""In a micro-batch, of two rows each."""
WAYS = {
    "in passes": ["preference.reference=in_passes"],
    "kept": ["preference.reference=kept"],
    "none": ["preference.loss=simpo"],
    "with sft": ["preference.sft_weight=0.5"],
    "full": ["adapter=null", "optimizer.learning_rate=1e-3"],
}
COMPILED = {"compiled": [*WAYS["in passes"], "adapter.targets=[q_proj]"]}
"""Every adapted layer is compiled by itself."""
OTHER_ADAPTERS = {"nf4": ["quantize=nf4"], "dora": ["adapter.dora=true"]}


@pytest.fixture
def preferring(tuning: MakeRecipe, pairs_file: Path) -> MakeRecipe:
    """`preferring("key=value", ...)` gives a recipe on the pairs, with overrides."""
    usual = ["method=dpo", "evaluation.base=never", f"data.path={pairs_file}"]
    return lambda *overrides: tuning(*usual, *overrides)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_planned_trained_scored_and_reported(preferring: MakeRecipe, way: str) -> None:
    recipe = preferring("training.steps=12", *WAYS[way])

    folder = run(recipe)

    steps = steps_of(folder)
    assert [record["step"] for record in steps] == [*range(1, 13)]
    assert steps[-1]["named"]["margin"] > steps[0]["named"]["margin"]
    assert steps[-1]["loss"] < steps[0]["loss"]
    scores = read_json(folder / "scores.json")["validation"]
    assert scores["windows"] == gather(recipe, str(recipe.model)).validation_count
    assert 0 <= scores["named"]["accuracy"] <= 1
    page = (folder / "report.html").read_text()
    assert "held-out pairs" in page
    assert f"Every optimizer step sees {recipe.effective_batch} pairs" in page
    told = evaluation_lines(read_json(folder / "scores.json"), width=160)
    assert "Loss  " in told[1]
    assert f" {scores['named']['accuracy']:.3f} " in " ".join(told)
    best = [each for each in records_of(folder, "evaluation") if each["best"]][-1]
    assert best["named"]["accuracy"] == pytest.approx(scores["named"]["accuracy"])
    assert best["loss"] == pytest.approx(scores["loss"], rel=1e-4)
    (reference,) = (
        each
        for each in read_journal(folder / "metrics.jsonl")
        if "scored" in each.get("message", "")
    )
    assert reference["seconds"] == read_json(folder / "reference.json")["seconds"] > 0
    kept = read_json(folder / "reference.json")["log_probs"]
    assert ("train" in kept) == (way in {"kept", "full"})
    assert "displaced" in scores["named"]
    assert scores["named"]["kl"] > 0
    assert ("kl" in steps[-1]["named"]) == (way != "none")
    assert ('aria-label="KL: ' in page) == (way != "none")
    if way in {"in passes", "kept"}:
        assert steps[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
        assert abs(steps[0]["named"]["kl"]) < 1e-6 < steps[-1]["named"]["kl"]


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_passes_are_timed_with_a_loss_of_the_answers_only(
    preferring: MakeRecipe, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    assert_timed_with_few_scored(preferring(f"plan.packing={packing}"), monkeypatch)


def test_a_reference_in_every_pass_and_a_kept_one_train_alike(
    preferring: MakeRecipe,
) -> None:
    """But for the order in which sums are made."""
    first, second = (
        steps_of(train(preferring(*WAYS[way], f"run.name={way.replace(' ', '-')}")))
        for way in ("in passes", "kept")
    )

    for one, other in zip(first, second, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        for name in ("margin", "reward_chosen", "log_prob_rejected"):
            assert one["named"][name] == pytest.approx(other["named"][name], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("way", "packing"),
    [
        ("in passes", "packed"),
        ("kept", "padded"),
        ("full", "packed"),
        ("nf4", "padded"),
        ("dora", "packed"),
    ],
)
@pytest.mark.long_but("in passes-packed", "full-packed")
def test_a_stopped_run_ends_bit_for_bit_like_an_undisturbed_one(
    preferring: MakeRecipe, monkeypatch: pytest.MonkeyPatch, way: str, packing: str
) -> None:
    shared = [*(WAYS | OTHER_ADAPTERS)[way], f"plan.packing={packing}"]
    assert_stopped_ends_like_undisturbed(preferring, shared, monkeypatch)


@pytest.mark.parametrize("way", ["in passes", "kept"])
@pytest.mark.long_but("in passes")
def test_a_run_that_runs_out_of_memory_ends_where_another_does(
    preferring: MakeRecipe, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Its micro-batches are halved in mid-run; both answers of a pair stay in one pass."""
    shared = [*WAYS[way], "preference.sft_weight=0.5", "plan.packing=padded"]
    whole = train(preferring(*shared, "run.name=whole"))
    real, positions, room = session.find_method, list[int](), 2 * 64  # of one pair

    def find_method(name: str) -> Any:
        method = real(name).with_options(preferring(*shared).loss_options)

        def loss_sum(network: Network, micro: MicroBatch) -> torch.Tensor:
            positions.append(micro.inputs_BT.numel())
            if len(positions) > 3 and positions[-1] > room:
                raise torch.OutOfMemoryError("CUDA out of memory (for the test)")
            return method.loss_sum(network, micro)

        return Method(loss_sum)

    monkeypatch.setattr(session, "find_method", find_method)
    short = train(preferring(*shared, "run.name=short"))

    assert max(positions[:3]) > room >= max(positions[-6:])
    (record,) = records_of(short, "out_of_memory")
    assert record["step"] > 1
    for one, other in zip(steps_of(whole), steps_of(short), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["named"] == pytest.approx(other["named"], rel=1e-3, abs=1e-4)


def test_a_plan_counts_the_prompt_of_a_pair_once_where_it_is_computed_once(
    preferring: MakeRecipe,
) -> None:
    recipe = preferring(*WAYS["none"], "plan.packing=packed")
    data = gather(recipe, str(recipe.model))
    assert isinstance(data, PairRunData)
    count = data.splits["train"].num_examples // 2
    sequences = data.sequences(plans.plan(data.planned))
    batch = sequences.batch(0, count)
    each = batch.sequence_length * count
    positions = sum(micro.inputs_BT.numel() for micro in batch.micro_batches((each,)))

    share = data.computed_share("cpu")

    assert sequences.positions_of_passes(0, count, each) == [-(-positions // 2)]
    assert share < 1
    assert share == pytest.approx(positions / sum(len(pair.inputs_T) for pair in batch.pairs))
    assert data.computed_share("cuda") == 1
    padded = preferring(*WAYS["none"], "plan.packing=padded")
    assert gather(padded, str(padded.model)).computed_share("cpu") == 1


def test_a_reference_of_doubles_is_kept_in_doubles(preferring: MakeRecipe, tmp_path: Path) -> None:
    recipe = preferring(*WAYS["kept"], "plan.precision=fp32")
    data = gather(recipe, str(recipe.model))
    assert isinstance(data, PairRunData)
    plan, split = plans.plan(data.planned), data.splits["train"]
    model = data.build(plan, torch.device("cpu")).double()
    options = ScoringOptions(plan=plan, device=torch.device("cpu"), rows=2)

    data.keep_reference(model, tmp_path, {}, options)

    log_probs, _ = whole_log_probs(model, split.part(np.arange(4)))
    kept = torch.from_numpy(data._reference["train"][:4])
    torch.testing.assert_close(kept, log_probs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", ["in passes", "full"])
def test_a_finished_run_writes_text(
    preferring: MakeRecipe,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    way: str,
) -> None:
    """From adapters on the base, and from a model of its own."""
    folder = train(preferring(*WAYS[way]))
    words = ["generate", str(folder), "--prompt", "Say red: ", "--tokens", "5"]
    monkeypatch.setattr("sys.argv", ["brimful", *words, "--temperature", "0"])

    with suppress(SystemExit):
        main()

    assert (folder / "model" / "adapter_config.json").exists() == (way != "full")
    assert "Say red: " in capsys.readouterr().out


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_chosen_answers_that_a_verifier_rejects_are_told_with_their_number(
    preferring: MakeRecipe, tmp_path: Path, method: str
) -> None:
    """By the verifiers of the evaluation's tasks, where rows have what answers are held against."""
    rows = [
        {
            "prompt": f"What is {number} times 60? ",
            "chosen": f"<answer>{60 * number + 60 * (number % 10 == 0)}</answer>",
            "rejected": "I cannot say.",
            "answer": "unknown" if number == 1 else 60 * number,
        }
        for number in range(1, 41)
    ]
    path = tmp_path / "verified.jsonl"

    def told(*changes: str) -> list[str]:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        recipe = preferring(f"method={method}", f"data.path={path}", *changes)
        return [line for line in gather(recipe, str(recipe.model)).lines() if "rejects" in line]

    tasks = "evaluation.tasks=[unit-conversion]"
    (line,) = told(tasks)
    assert "verifier number of the evaluation rejects 4 of 39 chosen answers" in line
    assert "verified.jsonl:10." in line
    assert not told()
    del rows[9::10]
    assert not told(tasks)


def test_a_reference_that_was_stopped_is_gone_on_with(
    preferring: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed before is read back; what is of another model is not."""
    monkeypatch.setattr("brimful.kinds.pairs.STRETCH", 16)
    monkeypatch.setattr("brimful.kinds.pairs.WRITE_EVERY_S", 0.0)
    shared = [*WAYS["kept"], "training.steps=2"]
    whole = train(preferring(*shared, "run.name=whole"))
    recipe = preferring(*shared, "run.name=stopped")
    real, scored = PairRunData._score, list[int]()

    def stopping(data: PairRunData, model: Any, answers: Any, options: Any) -> Any:
        scored.append(answers.num_examples)
        if len(scored) == 3:
            raise Interrupted("stopped", signal.SIGTERM)
        return real(data, model, answers, options)

    monkeypatch.setattr(PairRunData, "_score", stopping)
    with pytest.raises(Interrupted):
        train(recipe)
    file = whole.with_name("stopped") / "reference.json"
    before = read_json(file)
    assert {name: len(values) for name, values in before["log_probs"].items()} == {"train": 32}
    stopped = train(recipe)

    assert read_json(file)["log_probs"] == read_json(whole / "reference.json")["log_probs"]
    ours, theirs = weights_of(whole), weights_of(stopped)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    other = {**before, "identity": {"data": "another"}, "log_probs": {"train": [9.0] * 32}}
    write_json_atomically(file, other, with_checksum=True)
    again = train(preferring(*shared, "run.name=stopped", "training.steps=2"))
    assert again == stopped
    for of_another_kind in ('{"version": "1.0", "model": {}}', "[1]"):
        file.write_text(of_another_kind)
        assert _kept(file, {"data": "this"})["log_probs"] == {}
        with pytest.raises(RunFolderError, match=r"run\.name=stopped-2"):
            _kept(file)
    write_json_atomically(file, other, with_checksum=True)
    file.write_text(file.read_text()[:-9])
    with pytest.raises(RunFolderError, match=r"run\.name=stopped-2"):
        _kept(file)


@pytest.mark.parametrize("way", [*WAYS, "compiled"])
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.long_but("in passes", "kept", "none", "with sft", "full")
def test_what_is_planned_is_what_a_real_pass_takes_to_the_byte(
    preferring: MakeRecipe, way: str
) -> None:
    """Rows, peak and logits, whose pieces are smaller than all of them."""
    recipe = preferring(*(WAYS | COMPILED)[way])
    compiled: Compiled = "blocks" if way in COMPILED else "none"
    spec = replace(step_of(recipe), loss_chunk=100, compiled=compiled)

    planned, measured, model = planned_and_real(recipe, spec, PAIRS)

    logits_bytes = 4 * spec.loss_chunk * model.config.vocab_size
    end = planned.marks["evaluation"]
    made = planned.events_E[:end][planned.events_E[:end] > 0] - 1
    count = int((planned.sizes_S[made] == logits_bytes).sum())
    assert count == (measured.changes_E == logits_bytes).sum()
    assert count >= 3


def test_a_real_micro_batch_has_the_tensors_of_the_planned_one(
    preferring: MakeRecipe,
) -> None:
    for way in WAYS.values():
        recipe = preferring(*way)
        data = gather(recipe, str(recipe.model))
        planned = PairRunData.blank(step_of(recipe), PAIRS)
        data._take({"train": [0.0] * data.splits["train"].num_examples})  # type: ignore[attr-defined]
        batch = data.sequences(plans.plan(data.planned, "T4")).batch(0, PAIRS)
        (micro,) = batch.micro_batches((PAIRS,))

        assert_same_tensors(micro, planned)


def test_the_plan_knows_the_loss_and_its_reference(preferring: MakeRecipe) -> None:
    steps = {name: step_of(preferring(*way)) for name, way in WAYS.items() if name != "full"}
    steps["sft"] = step_of(preferring("method=sft"))
    peaks = {
        name: record_training(spec, config_of(spec), 2).live_E().max()
        for name, spec in steps.items()
    }

    assert len({family_keys_of(spec)[0] for spec in steps.values()}) == len(steps)
    assert peaks["sft"] < peaks["none"] <= peaks["kept"] <= peaks["in passes"]


def test_a_pass_of_the_reference_takes_no_activations_away_from_the_blocks(
    preferring: MakeRecipe,
) -> None:
    kept_bytes = []
    for way in ("none", "in passes"):
        spec = step_of(preferring(*WAYS[way]))
        trace = record_training(spec, config_of(spec), PAIRS)
        kept_bytes.append(trace.sizes_S[trace.kinds_S == KINDS.index("activations")].sum())

    assert kept_bytes[0] == kept_bytes[1] > 0


def test_the_best_model_can_be_the_one_that_tells_most_pairs(
    preferring: MakeRecipe,
) -> None:
    folder = train(preferring("preference.metric=accuracy"))

    records = records_of(folder, "evaluation")
    best = [each for each in records if each["best"]][-1]
    assert best["objective"] == -best["named"]["accuracy"]
    assert best["objective"] == min(each["objective"] for each in records)


@pytest.mark.parametrize(("way", "weight"), [("in passes", 0.1), ("none", 0.1), ("odds", 2)])
def test_answers_that_both_become_less_likely_are_told_with_their_number(
    preferring: MakeRecipe, monkeypatch: pytest.MonkeyPatch, way: str, weight: float
) -> None:
    """Of losses without a reference, too."""
    monkeypatch.setattr("brimful.kinds.pairs.MOST_DISPLACED", -1.0)
    console, asked = StringIO(), {**WAYS, "odds": ["preference.loss=orpo"]}[way]
    pipeline.train(preferring(*asked, "training.steps=12"), Console(file=console, width=4000))

    told = [line for line in console.getvalue().splitlines() if "likelihood displacement" in line]
    assert len(told) == 1
    count = gather(preferring(), str(preferring().model)).validation_count
    assert f"of {count} held-out pairs" in told[0]
    assert f"preference.sft_weight={weight:g} holds" in told[0]
    preferring(*asked, f"preference.sft_weight={weight:g}")


def test_answers_that_are_too_long_are_told_with_their_number(
    preferring: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    """They stop the run, where nothing else is asked for; a pair is dropped as a whole, and of what
    is cut both answers are learned up to there.
    """
    path, most = tmp_path / "long.jsonl", 48
    rows = [
        {"prompt": f"Say {number}: ", "chosen": "red " * number, "rejected": f"blue {number}"}
        for number in range(1, 61)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    usual = [f"data.path={path}", f"sequence_length={most}", "data.validation=0.2"]
    usual += ["data.long_documents=error"]
    whole = gather(preferring(*usual, "sequence_length=256"), str(preferring().model))
    long = {
        name: int((split.lengths_E[::2] > most + 1).sum()) for name, split in whole.splits.items()
    }
    with refuses(
        DataError, names=["data.long_documents=drop", f"{long['train']} of", "long.jsonl"]
    ):
        gather(preferring(*usual), str(preferring().model))
    dropped, cut = (
        gather(preferring(*usual, f"data.long_documents={policy}"), str(preferring().model))
        for policy in ("drop", "truncate")
    )

    for name, count in long.items():
        assert count > 0
        pairs = whole.splits[name].num_examples // 2
        assert dropped.splits[name].num_examples // 2 == pairs - count
        assert cut.splits[name].num_examples // 2 == pairs
        assert cut.splits[name].lengths_E.max() == most + 1
        assert f"{name}: {count} of {pairs} pairs" in " ".join(dropped.lines())
        assert f"{name}: {count} of {2 * pairs} answers" in " ".join(cut.lines())
    assert "preference loss sigmoid" in " ".join(dropped.lines())
