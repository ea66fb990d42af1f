"""Command lines that start a tool, in quotes and in shell scripts."""

from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RecipeError
from brimful.integrations.other_tools.command import command_keys
from brimful.integrations.other_tools.file import read_file, tool_of

COMMAND = (
    "llamafactory-cli train --stage sft --finetuning_type lora --lora_target q_proj,v_proj"
    " --model_name_or_path meta-llama/Llama-3.2-1B --cutoff_len 1024 --bf16"
    " --per_device_train_batch_size 2"
)


def test_options_are_keys_and_their_words_are_values() -> None:
    command = (
        "python sft.py --max-length=512 --learning_rate 5e-5 --bf16 --targets a b --fp16 false"
    )

    assert command_keys(command, "c") == (
        None,
        {
            "max_length": 512,
            "learning_rate": 5e-5,
            "bf16": True,
            "targets": ["a", "b"],
            "fp16": False,
        },
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "llamafactory-cli train job.yaml optim=adamw_torch",
            ("job.yaml", {"optim": "adamw_torch"}),
        ),
        ("axolotl train job.yml", ("job.yml", {})),
        (
            "python -m axolotl.cli.train job.yml --micro_batch_size 4",
            ("job.yml", {"micro_batch_size": 4}),
        ),
        ("A=1 nohup torchrun t.py --bf16 > log.txt 2>&1 &", (None, {"bf16": True})),
        ("python t.py --seed 1 | tee --append log", (None, {"seed": 1})),
        (
            "deepspeed --num_gpus 8 t.py --deepspeed ds.json",
            (None, {"num_gpus": 8, "deepspeed": "ds.json"}),
        ),
        (
            "accelerate launch --main_process_port 1 --config_file z3.yaml t.py --seed 1",
            (None, {"config_file": "z3.yaml", "seed": 1}),
        ),
        (
            "python -m torch.distributed.run --nproc_per_node 4 --node_rank 1 t.py --seed 1",
            (None, {"nproc_per_node": 4, "seed": 1}),
        ),
        (
            "trl grpo --config job.yaml --beta 0.1",
            ("job.yaml", {"beta": 0.1, "trl_command": "grpo"}),
        ),
        (
            "accelerate launch trl/scripts/dpo.py --beta 0.1",
            (None, {"beta": 0.1, "trl_command": "dpo"}),
        ),
        ("python t.py --config mine --seed 1", (None, {"config": "mine", "seed": 1})),
    ],
)
def test_what_comes_before_and_after_the_options_is_told_apart(line: str, expected: object) -> None:
    assert command_keys(line, "c") == expected


def test_variables_of_the_shell_are_filled_in_where_they_are_set() -> None:
    script = 'SIZE=7B\nexport MODEL="Qwen/Qwen2.5-$SIZE"\n\npython t.py \\\n  --model $MODEL --out $OUT\n'

    assert command_keys(script, "c")[1] == {"model": "Qwen/Qwen2.5-7B", "out": "$OUT"}


@pytest.mark.parametrize("text", ["echo --done\n", "python a.py --x 1\npython b.py --y 2\n"])
def test_no_command_or_several_are_refused(text: str, refuses: Refuses) -> None:
    with refuses(RecipeError, names=["job.sh"]):
        command_keys(text, "job.sh")


def test_a_command_in_quotes_is_planned_as_its_file_is(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n# llamafactory-cli train --stage pt\n{COMMAND}\n")

    assert tool_of(COMMAND) == tool_of(str(script)) == "llama_factory"
    quoted, of_script = (read_file(path, "llama_factory").job for path in (Path(COMMAND), script))
    assert quoted is not None
    assert quoted == of_script
    assert (quoted.micro_batch, quoted.sequence_length, quoted.autocast) == (2, 1024, "bf16")


def test_a_command_changes_the_file_that_it_reads(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "job.yml").write_text("base_model: x/y\nsequence_len: 512\nadapter: null\n")
    script = tmp_path / "job.sh"
    script.write_text("axolotl train job.yml --micro_batch_size 4\n")
    read = read_file(script, "axolotl")

    assert (read.values["micro_batch"], read.values["sequence_length"]) == (4, 512)
    script.write_text("axolotl train other.yml --micro_batch_size 4\n")
    with refuses(RecipeError, names=["other.yml"]):
        tool_of(str(script))


def test_what_a_launcher_divides_is_never_read_over() -> None:
    command = COMMAND.removeprefix("llamafactory-cli train")
    several = read_file(Path(f"torchrun --nproc_per_node 4 t.py {command}"), "llama_factory")
    divided = read_file(
        Path(f"accelerate launch --config_file z.yaml t.py {command}"), "llama_factory"
    )

    assert several.job is not None
    assert [each.partition(":")[0] for each in several.assumed] == ["nproc_per_node"]
    assert [each.key for each in divided.unknown] == ["config_file"]


def test_a_variable_that_is_not_set_is_a_template(tmp_path: Path) -> None:
    read = read_file(Path(COMMAND.replace("1024", "$LENGTH")), "llama_factory")

    assert [each.key for each in read.unknown] == ["cutoff_len"]
