"""What accelerate's file and options say, as keys of the tools."""

from pathlib import Path

import pytest

from brimful.base.types import JsonDict
from brimful.integrations.other_tools.accelerated import keys_of, with_type
from brimful.integrations.other_tools.division import STATES
from brimful.integrations.other_tools.file import read_file
from brimful.integrations.other_tools.job import ReadJob

HELD = {"offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}}
JOB = """
model_name_or_path: meta-llama/Llama-3.2-1B
dtype: bfloat16
max_length: 1024
use_peft: true
"""
ZERO2 = """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu}
mixed_precision: bf16
num_processes: 4
"""


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"distributed_type": "NO", "num_processes": 1}, {"num_processes": 1}),
        ({"distributed_type": "MULTI_GPU"}, {}),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}},
            {"deepspeed": {"zero_optimization": {"stage": 3, **HELD}}},
        ),
        ({"use_deepspeed": True}, {"deepspeed": {"zero_optimization": {"stage": 2, **HELD}}}),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "a"}},
            {"deepspeed": "a"},
        ),
        ({"distributed_type": "FSDP", "fsdp_config": {"a": 1}}, {"fsdp_config": {"a": 1}}),
        ({"distributed_type": "FSDP"}, {"fsdp_config": {"fsdp_version": 1}}),
        (
            {"use_fsdp": True, "fsdp_sharding_strategy": "NO_SHARD"},
            {"fsdp_config": {"fsdp_sharding_strategy": "NO_SHARD"}},
        ),
        ({"config_file": "z.yaml", "zero_stage": 3}, {"zero_stage": 3}),
        ({"distributed_type": "MEGATRON_LM"}, {"distributed_type": "MEGATRON_LM"}),
    ],
)
def test_files_and_options_are_keys_of_the_tools(config: JsonDict, expected: JsonDict) -> None:
    assert keys_of(config) == expected


def test_a_type_is_taken_where_the_job_names_none() -> None:
    assert with_type({"mixed_precision": "bf16"}) == {"bf16": True}
    assert with_type({"mixed_precision": "bf16", "fp16": True}) == {"fp16": True}
    assert with_type({"mixed_precision": "no", "seed": 1}) == {"seed": 1}


def _read(folder: Path, launch: str, more: str = "") -> ReadJob:
    (folder / "job.yaml").write_text(JOB)
    script = folder / "train.sh"
    script.write_text(f"accelerate launch --config_file {launch} sft.py --config job.yaml {more}\n")
    return read_file(script, "trl")


def test_a_launched_job_is_that_of_its_file_on_as_many_devices(tmp_path: Path) -> None:
    (tmp_path / "zero2.yaml").write_text(ZERO2)
    read = _read(tmp_path, "zero2.yaml", "--max_length 512")

    assert read.job is not None
    assert read.job.sequence_length == 512
    assert read.job.held is not None
    assert (read.job.held.expected, read.job.held.is_known) == (0.25, True)
    assert read.job.held.on_host == STATES
    said = {each.partition(":")[0]: each for each in read.assumed}
    assert "planned for each of 4 devices" in said["deepspeed"]
    assert "how many devices" in said["num_processes"]


def test_options_of_the_launcher_are_stronger_than_its_file(tmp_path: Path) -> None:
    (tmp_path / "zero2.yaml").write_text(ZERO2)
    read = _read(tmp_path, "zero2.yaml --num_processes 2")

    assert read.job is not None
    assert read.job.held is not None
    assert read.job.held.expected == 0.5


def test_a_file_that_is_not_here_is_known_by_its_name_or_refused(tmp_path: Path) -> None:
    named = _read(tmp_path, "recipes/deepspeed_zero3.yaml")
    other = _read(tmp_path, "recipes/mine.yaml")

    assert named.job is not None
    assert named.job.held is not None
    assert any("by the name of deepspeed_zero3.yaml, ZeRO-3" in each for each in named.assumed)
    assert [each.key for each in other.unknown] == ["config_file"]
    assert "not found" in other.unknown[0].reason


def test_what_accelerate_divides_otherwise_is_refused(tmp_path: Path) -> None:
    (tmp_path / "z.yaml").write_text("distributed_type: MEGATRON_LM\n")

    assert [each.key for each in _read(tmp_path, "z.yaml").unknown] == ["distributed_type"]
