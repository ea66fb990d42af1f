"""Files of other tools planned on devices, as the command prints them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Captured, Refuses
from syrupy.assertion import SnapshotAssertion

from brimful import cli
from brimful.base.errors import DeviceError, PlanError
from brimful.base.types import JsonDict
from brimful.chains.job_plans import JobPlans, plan_file, tuned_further
from brimful.integrations.other_tools.planned import DECLARED_SHARE, PlannedJob, UnplannedJob
from brimful.planning.target import COMMUNICATION_BYTES, COMMUNICATION_UNCERTAINTY_BYTES
from brimful.report.plan.jobs import exit_code, job_blocks
from brimful.report.terminal import told

JOB = """\
base_model: ./tiny
adapter: lora
lora_r: 4
lora_target_linear: true
sequence_len: 128
micro_batch_size: 2
gradient_accumulation_steps: 2
optimizer: adamw_8bit
learning_rate: 2e-4
gradient_checkpointing: true
wandb_project: x
"""


@pytest.fixture
def job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_cache: Callable[[], str],
    llama_values: JsonDict,
) -> Path:
    """An Axolotl file beside the config of a tiny model of two blocks."""
    monkeypatch.setenv("BRIMFUL_CACHE", new_cache())
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    Path("tiny", "config.json").write_text(
        json.dumps(llama_values | {"num_hidden_layers": 2}), encoding="utf-8"
    )
    path = Path("job.yaml")
    path.write_text(JOB, encoding="utf-8")
    return path


def lines_of(plans: JobPlans, width: int) -> list[str]:
    blocks = job_blocks(plans.name, plans.read, plans.entries)
    return told(blocks, width).plain.splitlines()


def test_a_job_is_planned_for_several_devices(job: Path, snapshot: SnapshotAssertion) -> None:
    plans = plan_file(job, "axolotl", ["flash_attention=false"], "L4,T4")
    lines = lines_of(plans, 120)

    assert exit_code(plans.entries) == 0
    assert [entry.device.name for entry in plans.entries] == ["NVIDIA L4", "Tesla T4"]
    assert [read.values["weights"] for read in plans.read] == ["bf16", "fp16"]
    assert [type(entry) for entry in plans.entries] == [PlannedJob, PlannedJob]
    assert lines[lines.index("What the file says") :] == snapshot
    assert plans.to_json()["devices"][0]["verdict"] == "fits"


def test_what_is_not_understood_is_listed_and_nothing_is_planned(
    job: Path, snapshot: SnapshotAssertion
) -> None:
    plans = plan_file(job, "axolotl", ["deepspeed=zero3.json", "optimizer=mine"], "L4")

    assert exit_code(plans.entries) == 2
    assert isinstance(plans.entries[0], UnplannedJob)
    assert plans.to_json()["devices"][0]["verdict"] == "cannot be estimated"
    assert lines_of(plans, 120) == snapshot


def test_a_model_that_nobody_knows_is_refused_with_its_key(job: Path) -> None:
    with pytest.raises(PlanError, match=r"base_model: nowhere: .*base_model=FOLDER"):
        plan_file(job, "axolotl", ["base_model=nowhere"], "L4")


def test_the_advice_on_a_model_tuned_further_works(job: Path) -> None:
    with pytest.raises(PlanError) as refused:
        plan_file(job, "axolotl", ["base_model=/elsewhere/my-SmolLM2-135M-chat"], "L4")
    change = str(refused.value).rpartition("tuned further, `")[2].partition("`")[0]

    assert change == "base_model=HuggingFaceTB/SmolLM2-135M"
    assert isinstance(plan_file(job, "axolotl", [change], "L4").entries[0], PlannedJob)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("/runs/Distill-Qwen2.5-7B-science", "Qwen/Qwen2.5-7B"),
        ("me/qwen2.5-7b-instruct-mine", "Qwen/Qwen2.5-7B-Instruct"),
        ("me/Meta-Llama-3-8B-GPTQ", None),
        ("me/Qwen2.5-7B-int4", None),
        ("me/new-8b", None),
    ],
)
def test_a_model_tuned_further_is_told_by_the_longest_name_within_its_own(
    name: str, row: str | None
) -> None:
    assert tuned_further(name) == row


def test_the_time_of_a_step_is_not_guessed_for_amd(job: Path) -> None:
    plans = plan_file(job, "axolotl", [], "MI300X")
    entry = plans.entries[0]

    assert isinstance(entry, PlannedJob)
    assert entry.step_s is None
    lines = lines_of(plans, 400)
    assert "how long a step takes is not known" in lines[0]


def _planned(job: Path, on: str, *changes: str) -> PlannedJob:
    entry = plan_file(job, "axolotl", changes, on).entries[0]
    assert isinstance(entry, PlannedJob)
    return entry


def test_one_of_several_devices_holds_its_part_and_what_communication_takes(job: Path) -> None:
    """The number is known, so that only buffers widen the interval."""
    full = ("adapter=null", "flash_attention=true", "fsdp=full_shard", "max_grad_norm=0")
    alone, divided = (_planned(job, on, *full) for on in ("L4", "4 x L4"))
    terms, parts = divided.footprint.terms, alone.footprint.terms

    assert divided.device.name == "4 x NVIDIA L4"
    assert terms["optimizer states"] == pytest.approx(2 * parts["optimizer states"], rel=0.01)
    low, high = DECLARED_SHARE  # both ends of whatever a file declares
    width, wide = (
        each.footprint.driver.high / high - each.footprint.driver.low / low
        for each in (divided, alone)
    )
    assert width < wide + 2.1 * COMMUNICATION_UNCERTAINTY_BYTES
    assert divided.tokens == 4 * alone.tokens
    assert divided.step_s is None


def test_several_devices_without_a_word_on_them_copy_their_gradients(job: Path) -> None:
    plans = plan_file(job, "axolotl", [], "L4,2 x L4")
    alone, one = plans.entries
    assert isinstance(alone, PlannedJob)
    assert isinstance(one, PlannedJob)

    lines = lines_of(plans, 400)
    assert ["assumed of several devices" in each for each in lines[:2]] == [False, True]
    assert any("DDP, planned for each of 2 devices" in each for each in lines)
    assert one.footprint.terms["communication buffers"] == 4 * alone.footprint.trainable
    assert one.footprint.driver.value > alone.footprint.driver.value + COMMUNICATION_BYTES


def test_no_device_is_refused(job: Path, refuses: Refuses) -> None:
    with refuses(DeviceError):
        plan_file(job, "axolotl", [], " , ")


def _command(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, *arguments: object
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["brimful", *map(str, arguments)])
    with pytest.raises(SystemExit) as ending:
        cli.main()
    captured = capsys.readouterr()
    return int(ending.value.code or 0), captured.out, captured.err


def test_the_command_plans_a_file_of_another_tool(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    code, out, _ = _command(monkeypatch, capsys, "plan", job, "--on", "L4")

    assert code == 0
    assert out.startswith("Axolotl, job.yaml: fits NVIDIA L4 with a micro-batch of 2")
    assert "sequence_len: 128" in out


def test_the_command_exits_with_2_where_nothing_can_be_said(
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    snapshot: SnapshotAssertion,
) -> None:
    code, out, _ = _command(monkeypatch, capsys, "plan", job, "rl=ebft", "--on", "L4", "--json")

    assert code == 2
    assert json.loads(out)["unknown"] == snapshot


def test_preferences_of_another_tool_are_planned_with_checkpointed_blocks(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    code, out, _ = _command(monkeypatch, capsys, "plan", job, "rl=dpo", "--on", "L4")

    assert code == 0
    assert out.startswith("Axolotl, job.yaml: fits NVIDIA L4 with a micro-batch of")
    assert "of training on preferences" in out.lower()


def test_the_command_prints_the_recipe(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    code, out, _ = _command(monkeypatch, capsys, "plan", job, "--as-recipe")

    assert code == 0
    assert "sequence_length: 128" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--save", "plan.json"], "--save is for brimful's recipes"),
        (["--verify"], "--verify is for brimful's recipes"),
        (["--tool", "unsloth"], "unsloth"),
    ],
)
def test_the_command_refuses_options_that_are_for_recipes(
    job: Path,
    options: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    code, _, err = _command(monkeypatch, capsys, "plan", job, *options)

    assert code == 2
    assert words in err


def test_a_recipe_needs_no_as_recipe(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, snapshot: SnapshotAssertion
) -> None:
    code, _, err = _command(monkeypatch, capsys, "plan", "quickstart", "--as-recipe")

    assert code == 2
    assert err == snapshot
