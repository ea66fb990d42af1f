"""What DeepSpeed's and FSDP's settings mean for several devices, and that a recipe says the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.hardware import catalog as devices
from brimful.hardware.groups import Group
from brimful.integrations.other_tools.as_recipe import recipe_text
from brimful.integrations.other_tools.division import REST, STATES, WEIGHTS, PartlyHeld, division_of
from brimful.integrations.other_tools.file import read_file
from brimful.integrations.other_tools.job import read_job, shared
from brimful.integrations.other_tools.recognise import tool_named
from brimful.recipe import load_text

JOB = """
base_model: meta-llama/Llama-3.2-1B
sequence_len: 1024
attn_implementation: flash_attention_2
micro_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1e-4
"""

EIGHT = Group(devices.get("NVIDIA H100 80GB HBM3"), 8)


@pytest.mark.parametrize(
    ("given", "spread"),
    [
        ({"fsdp": "full_shard auto_wrap"}, "sharded"),
        ({"fsdp": ["full_shard", "auto_wrap"]}, "sharded"),
        ({"fsdp": "hybrid_shard"}, "hybrid"),
        ({"deepspeed": "configs/deepspeed_stage3.json"}, "sharded"),
        ({"deepspeed": "zero_0.json"}, "replicated"),
        ({"deepspeed": "ds_config_zero30.json"}, None),
        ({"fsdp": "shard_grad_op"}, None),
        ({"fsdp": "hybrid_shard_zero2"}, None),
        ({"fsdp": "no_shard"}, "replicated"),
        ({"fsdp": "full_shard offload"}, None),
        (
            {"fsdp": ["auto_wrap"], "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"}},
            "hybrid",
        ),
        ({"fsdp_config": {"sharding_strategy": 1}}, "sharded"),
        ({"fsdp_config": {"sharding_strategy": 2}}, None),
        ({"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}, "sharded"),
        ({"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": False}}, None),
        ({"fsdp_version": 2, "fsdp_config": {"offload_params": True}}, None),
        ({"fsdp": True}, "sharded"),
        ({"fsdp_config": {"fsdp_sharding_strategy": "MINE"}}, None),
        ({"deepspeed": {"zero_optimization": {"stage": 3}}}, "sharded"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, None),
        ({"deepspeed": {"zero_optimization": {"stage": 1}}}, None),
        ({"deepspeed": {"zero_optimization": {"stage": 0}}}, "replicated"),
        ({"deepspeed": {"zero_optimization": {"stage": "auto"}}}, None),
        ({"deepspeed": {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}}, None),
        (
            {"deepspeed": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}},
            None,
        ),
        (
            {
                "deepspeed": {
                    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none"}}
                }
            },
            "sharded",
        ),
        ({"deepspeed": "mine.json"}, None),
    ],
)
def test_settings_mean_a_spread_or_are_refused_with_a_reason(
    given: JsonDict, spread: str | None
) -> None:
    division = division_of(given)
    assert division.spread == spread
    assert division.reason
    assert (spread is not None) == ("--as-recipe" in division.reason)
    is_refused = "not understood" in division.reason or "not found" in division.reason
    assert (division.held is None) == is_refused


@pytest.mark.parametrize("given", [{}, {"deepspeed": None}, {"fsdp": ""}, {"fsdp": False}])
def test_nothing_said_is_no_division(given: JsonDict) -> None:
    assert division_of(given) == division_of({})
    assert not division_of(given).reason


def _file(folder: Path, more: str) -> Path:
    path = folder / "job.yml"
    path.write_text(JOB + more)
    return path


@pytest.mark.parametrize(
    ("more", "spread"),
    [("fsdp: [full_shard, auto_wrap]\n", "sharded"), ("deepspeed: ds/zero3.json\n", "sharded")],
)
def test_the_advice_works_the_recipe_has_the_spread(
    tmp_path: Path, more: str, spread: str, snapshot
) -> None:
    """DeepSpeed's own file is found beside the tool's."""
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "zero3.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    path = _file(tmp_path, more)
    read = read_file(path, "axolotl")

    assert read.job is not None
    assert read.assumed == snapshot
    recipe = load_text(recipe_text(path, read), "a test")
    assert recipe.plan.spread == spread


@pytest.mark.parametrize(
    "more",
    [
        "deepspeed: zero2.json\n",
        "fsdp: full_shard offload\n",
        "fsdp: full_shard\nload_in_8bit: true\n",
    ],
)
def test_what_no_recipe_does_is_refused(tmp_path: Path, more: str) -> None:
    (tmp_path / "zero2.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    path = _file(tmp_path, more)
    with pytest.raises(RequestError, match=r"deepspeed|fsdp|load_in_8bit"):
        recipe_text(path, read_file(path, "axolotl"))


def _held(**zero: Any) -> PartlyHeld:
    held = division_of({"deepspeed": {"zero_optimization": zero}}).held
    assert held is not None
    return held


def test_buckets_of_deepspeed_are_in_16_bits_and_two_where_communication_overlaps() -> None:
    """500 million elements by default; gathered weights of ZeRO-3 are at most 10^9 elements."""
    weights_bytes = 16 * 10**9

    assert _held(stage=2).buffers(weights_bytes) == 10**9
    assert _held(stage=2, overlap_comm=True).buffers(weights_bytes) == 2 * 10**9
    assert _held(stage=1, reduce_bucket_size=2e8).buffers(weights_bytes) == 4 * 10**8
    assert _held(stage=3).buffers(weights_bytes) == 2 * 10**9
    assert _held(stage=3).buffers(10**9) == 10**9
    assert _held(stage=0).buffers(weights_bytes) == 0


def test_what_is_offloaded_lies_on_the_host() -> None:
    assert _held(stage=2, offload_optimizer={"device": "cpu"}).on_host == ("optimizer states",)
    assert _held(stage=3, offload_param={"device": "nvme"}).on_host == ("weights", "adapters")
    of_fsdp = division_of({"fsdp": "full_shard offload"}).held
    assert of_fsdp is not None
    assert set(of_fsdp.parts) == set(of_fsdp.on_host)
    assert of_fsdp.buffers(3 * 10**9) == 10**9


@pytest.mark.parametrize(
    ("named", "stage"), [("examples/deepspeed/ds_z3_config.json", 3), ("/a/zero2.json", 2)]
)
def test_files_that_come_with_a_tool_are_known_by_name(
    tmp_path: Path, named: str, stage: int
) -> None:
    read = read_file(_file(tmp_path, f"deepspeed: {named}\n"), "axolotl")

    assert read.job is not None
    assert read.assumed[0].startswith("deepspeed: ")
    assert f"ZeRO-{stage}, planned for one of 8 devices" in read.assumed[0]


def test_devices_that_the_file_counts_hold_a_known_part_and_others_can_be_asked_for(
    tmp_path: Path,
) -> None:
    path = _file(tmp_path, "fsdp_config: {reshard_after_forward: true}\ndp_shard_size: 2\n")
    read = read_file(path, "axolotl")
    of_eight = shared(read, EIGHT)

    assert read.job is not None
    assert of_eight.job is not None
    held, asked = read.job.held, of_eight.job.held
    assert held is not None
    assert asked is not None
    assert (held.expected, held.is_known, asked.expected) == (1 / 2, True, 1 / 8)
    assert any("planned for each of 2 devices" in each for each in read.assumed)
    assert any("planned for each of 8 devices" in each for each in of_eight.assumed)
    assert not any(each.startswith("dp_shard_size") for each in of_eight.assumed)


def test_a_number_of_devices_that_share_nothing_is_refused(tmp_path: Path) -> None:
    read = read_file(_file(tmp_path, "dp_shard_size: 2\n"), "axolotl")

    assert [each.key for each in read.unknown] == ["dp_shard_size"]


def test_one_device_of_zero_keeps_its_strategy_when_several_are_asked_for(tmp_path: Path) -> None:
    path = _file(tmp_path, "deepspeed: zero2.json\nnum_processes: 1\n")
    held = shared(read_file(path, "axolotl"), EIGHT).values["held"]

    assert held.parts == REST
    assert held.expected == 1 / 8


@pytest.mark.parametrize("asks", [True, False])
def test_fsdp_recomputes_blocks_where_the_tool_itself_does_not(tmp_path: Path, asks: bool) -> None:
    more = f"fsdp_config: {{activation_checkpointing: {str(asks).lower()}}}\n"
    job = read_file(_file(tmp_path, more), "axolotl").job

    assert job is not None
    assert job.recompute == ("non_reentrant" if asks else "none")


@pytest.mark.parametrize(
    ("more", "has_masters"),
    [
        ("fsdp: full_shard\n", True),
        ("fsdp: full_shard\nbf16: false\n", False),
        ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n", False),
        ("fsdp_config: {fsdp_version: 2}\n", False),
    ],
)
def test_fsdp_trains_fp32_weights_under_autocast_but_for_axolotls_second_version(
    tmp_path: Path, more: str, has_masters: bool
) -> None:
    """accelerate makes 16-bit weights fp32 that it casts; Axolotl replaces its second version."""
    job = read_file(_file(tmp_path, more), "axolotl").job

    assert job is not None
    assert job.held is not None
    assert job.held.has_masters == has_masters


def test_trls_second_version_of_fsdp_trains_fp32_weights() -> None:
    keys = {"model_name_or_path": "x/y", "max_length": 512, "fsdp_config": {"fsdp_version": 2}}
    held = read_job(tool_named("trl"), keys).values["held"]

    assert held.has_masters


def test_without_the_key_the_plan_is_of_one_device(tmp_path: Path) -> None:
    path = _file(tmp_path, "fsdp: full_shard\n")
    job = read_file(path, "axolotl", ["fsdp=null"]).job
    assert job is not None
    assert job.held is None


@pytest.mark.parametrize(
    ("name", "on_host", "buffer_bytes"),
    [
        ("ds_z2_config.json", (), 10**9),
        ("examples/ds_z2_offload_config.json", STATES, 10**9),
        ("ds_z3_offload_config.json", (*STATES, *WEIGHTS), 2 * 10**9),
        ("zero2.json", (), 2 * 10**9),
        ("zero3_bf16.json", (), 2 * 10**9),
        ("zero3_bf16_cpuoffload_all.json", (*STATES, *WEIGHTS), 2 * 10**9),
        ("zero3_bf16_cpuoffload_params.json", WEIGHTS, 2 * 10**9),
        ("configs/deepspeed_stage2.json", (), 2 * 10**9),
        ("stage2_no_offloading.conf", (), 2 * 10**9),
    ],
)
def test_a_file_that_is_not_here_is_known_by_its_name(
    name: str, on_host: tuple[str, ...], buffer_bytes: int
) -> None:
    division = division_of({"deepspeed": name})

    assert "by the name" in division.reason
    assert division.held is not None
    assert (division.held.on_host, division.held.buffer_bytes) == (on_host, buffer_bytes)
