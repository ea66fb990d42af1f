"""Files of other tools that can be read, and those that cannot."""

from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RecipeError
from brimful.integrations.other_tools.file import read_file, read_values, tool_of
from brimful.integrations.other_tools.job import read_job
from brimful.integrations.other_tools.recognise import tool_named

AXOLOTL = "base_model: meta-llama/Llama-3.2-1B\nsequence_len: 1024\nlearning_rate: 2e-4\n"
ATTENTION = "attn_implementation: flash_attention_2\n"


def _file(folder: Path, text: str, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_json_is_read_as_yaml_is(tmp_path: Path) -> None:
    path = _file(tmp_path, '{"model_name_or_path": "gpt2", "block_size": 512}', "args.json")

    assert tool_of(str(path)) == "transformers_trainer"
    assert read_values(path)["block_size"] == 512


def test_changes_are_made_in_the_keys_of_the_tool(tmp_path: Path) -> None:
    path = _file(tmp_path, AXOLOTL + ATTENTION)
    job = read_file(path, "axolotl", ["micro_batch_size=4"]).job

    assert job is not None
    assert job.micro_batch == 4


def test_saved_arguments_are_a_pickle_and_are_not_opened(tmp_path: Path, refuses: Refuses) -> None:
    path = tmp_path / "training_args.bin"
    path.write_bytes(b"\x80\x04never opened")
    with refuses(RecipeError, names=["training_args.bin", "pickle", "to_json_string"]):
        tool_of(str(path))


def test_broken_yaml_is_refused_with_its_place(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RecipeError, names=["job.yaml", "line 2"]):
        read_values(_file(tmp_path, "base_model: x\n  sequence_len: [1\n"))


def test_a_template_that_is_no_yaml_is_refused_with_advice(
    tmp_path: Path, refuses: Refuses
) -> None:
    with refuses(RecipeError, names=["render it first"]):
        tool_of(str(_file(tmp_path, "{% if big %}\nbase_model: x\n{% endif %}\n")))


def test_a_list_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RecipeError, names=["list"]):
        read_values(_file(tmp_path, "- base_model: x\n"))


def test_a_tool_is_named_for_a_file_only(refuses: Refuses) -> None:
    with refuses(RecipeError, names=["--tool axolotl", "quickstart"]):
        tool_of("quickstart", (), "axolotl")


def test_a_change_that_is_none_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RecipeError, names=["micro_batch_size"]):
        read_values(_file(tmp_path, AXOLOTL), ["micro_batch_size"])


def test_what_is_no_yaml_is_left_to_the_reader_of_recipes(tmp_path: Path) -> None:
    assert tool_of(str(_file(tmp_path, "name: x\n  steps: [1\n"))) is None
    assert tool_of(str(_file(tmp_path, "- a list\n"))) is None


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("micro_batch_size: ${BATCH}", "micro_batch_size"),
        ("sequence_len: '{{ length }}'", "sequence_len"),
        ("optimizer: mine", "optimizer"),
        ("micro_batch_size: two", "micro_batch_size"),
        ("deepspeed: mine.json", "deepspeed"),
        ("fsdp_config: {fsdp_sharding_strategy: MINE}", "fsdp_config"),
        ("load_in_8bit: true", "load_in_8bit"),
        ("activation_offloading: true", "activation_offloading"),
        ("micro_batch_sise: 2", "micro_batch_sise"),
        ("my_data_path: 2", "my_data_path"),
        ("model_quantization_config: Mxfp4Config", "model_quantization_config"),
        ("max_packed_sequence_len: 2048", "max_packed_sequence_len"),
        ("plugins: [mine.Plugin]", "plugins"),
    ],
)
def test_what_decides_and_is_not_understood_leaves_no_job(
    tmp_path: Path, line: str, key: str
) -> None:
    text = AXOLOTL.replace(
        "sequence_len: 1024\n", "" if key == "sequence_len" else "sequence_len: 1\n"
    )
    read = read_file(_file(tmp_path, text + ATTENTION + line), "axolotl")

    assert read.job is None
    assert [each.key for each in read.unknown] == [key]
    assert read.unknown[0].reason


def test_a_missing_model_is_named_by_its_key(tmp_path: Path) -> None:
    read = read_file(_file(tmp_path, "sequence_len: 512\n" + ATTENTION), "axolotl")

    assert [each.key for each in read.unknown] == ["base_model"]


@pytest.mark.parametrize(
    "line",
    [
        *("deepspeed: null", "lora_dropout: 0", "wandb_project: x", "output_dir: ${OUT}"),
        "lm_eval_tasks: [gsm8k]",
        "model_quantization_config: Mxfp4Config\nmodel_quantization_config_kwargs: {dequantize: true}",
    ],
)
def test_what_is_off_or_decides_nothing_is_no_problem(tmp_path: Path, line: str) -> None:
    assert read_file(_file(tmp_path, AXOLOTL + ATTENTION + line), "axolotl").job is not None


def test_the_advice_on_keys_that_decide_nothing_works(tmp_path: Path) -> None:
    path = _file(tmp_path, AXOLOTL + ATTENTION + "my_note: hello\n")

    assert read_file(path, "axolotl").job is None
    assert read_file(path, "axolotl", ["my_note=null"]).job is not None


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("tokens: [<a>, <b>]", "tokens"),
        ("flash_attn_fuse_mlp: true",) * 2,
        ("neftune_noise_alpha: 5",) * 2,
        ("train_data_path: data/train.csv",) * 2,
    ],
)
def test_what_decides_little_is_planned_and_said(tmp_path: Path, line: str, key: str) -> None:
    read = read_file(_file(tmp_path, AXOLOTL + ATTENTION + line), "axolotl")

    assert read.job is not None
    assert [each.partition(":")[0] for each in read.assumed] == [key.partition(":")[0]]


def test_a_length_that_a_file_of_torchtune_leaves_open_is_assumed_and_said(tmp_path: Path) -> None:
    read = read_file(_file(tmp_path, "tokenizer: {max_seq_len: null}\n"), "torchtune")

    assert read.values["sequence_length"] == 2048
    assert read.assumed == ("tokenizer.max_seq_len: null: the longest example has 2,048 tokens",)


def test_packed_rows_of_torchtune_need_a_length(tmp_path: Path) -> None:
    read = read_file(_file(tmp_path, "dataset: {packed: true}\n"), "torchtune")

    assert "tokenizer.max_seq_len" in [each.key for each in read.unknown]


@pytest.mark.parametrize(
    ("version", "loss", "upcast", "adapter"),
    [
        ("0.25.1", "torch", "norms", "fp32"),
        ("0.27", "torch", "none", "bf16"),
        ("1.16", "tiled", "none", "bf16"),
    ],
)
def test_a_version_of_trl_that_is_named_is_planned(
    tmp_path: Path, version: str, loss: str, upcast: str, adapter: str
) -> None:
    text = "model_name_or_path: meta-llama/Llama-3.2-1B\ndtype: bfloat16\nbf16: true\n"
    path = _file(tmp_path, text + "use_peft: true\nload_in_4bit: true\n")

    job = read_file(path, "trl", [f"trl_version={version}"]).job
    unknown = read_file(path, "trl", ["trl_version=new"]).unknown

    assert job is not None
    assert job.adapter is not None
    assert (job.loss.cross_entropy, job.upcast, job.adapter.dtype) == (loss, upcast, adapter)
    assert {each.key for each in unknown} == {"trl_version"}


def test_older_names_of_trl_mean_the_loss_of_that_time(tmp_path: Path) -> None:
    """Over whole logits, upcast again by accelerate; recomputation is off and reentrant unless the
    file says otherwise.
    """
    text = "model_name_or_path: x/y\nmax_seq_length: 512\ntorch_dtype: bfloat16\nbf16: true\n"
    read = read_file(_file(tmp_path, text), "trl")
    recomputed = read_file(_file(tmp_path, text + "gradient_checkpointing: true\n"), "trl")

    assert read.job is not None
    assert (read.job.sequence_length, read.job.weights) == (512, "bf16")
    assert read.job.loss.cross_entropy == "torch"
    assert read.job.loss.upcast == "beside"
    assert read.job.kernels.fp32_outputs
    assert read.job.recompute == "none"
    assert recomputed.values["recompute"] == "reentrant"
    assert [each.partition(":")[0] for each in read.assumed] == ["torch_dtype", "max_seq_length"]


def test_full_tuning_of_axolotl_without_a_flash_kernel_keeps_ends_in_fp32(tmp_path: Path) -> None:
    path = _file(tmp_path, AXOLOTL)

    assert read_file(path, "axolotl").values["upcast"] == "ends"
    assert read_file(path, "axolotl", ["adapter=lora"]).values["upcast"] == "none"
    assert read_file(path, "axolotl", ["flash_attention=true"]).values["upcast"] == "none"


def test_references_of_torchtune_are_followed(tmp_path: Path) -> None:
    text = "output_dir: /tmp/x\nlength: 512\ntokenizer: {max_seq_len: '${length}'}\n"
    read = read_file(_file(tmp_path, text), "torchtune")

    assert read.values["sequence_length"] == 512


def test_defaults_follow_the_device_where_the_tool_asks_it(tmp_path: Path) -> None:
    path = _file(tmp_path, AXOLOTL + ATTENTION)
    newer, older = (read_file(path, "axolotl", native_bf16=native).job for native in (True, False))

    assert newer is not None
    assert older is not None
    assert (newer.weights, older.weights) == ("bf16", "fp16")


def test_a_folder_elsewhere_is_the_model_of_its_name(tmp_path: Path) -> None:
    """It is said; a folder that is here is read itself."""
    mine = tmp_path / "Meta-Llama-3.1-8B"
    read = read_job(tool_named("axolotl"), {"base_model": "/mnt/a/Meta-Llama-3.1-8B"})
    assert read.values["model"] == "meta-llama/Llama-3.1-8B"
    assert any("base_model" in each and "not here" in each for each in read.assumed)

    mine.mkdir()
    for name in (str(mine), "/mnt/a/model-of-mine"):
        read = read_job(tool_named("axolotl"), {"base_model": name})
        assert read.values["model"] == name


@pytest.mark.parametrize("model", ["mistralai/Mixtral-8x7B-v0.1", "mistralai/Mistral-7B-v0.1"])
def test_experts_that_stay_whole_beside_quantised_layers_are_said(
    tmp_path: Path, model: str
) -> None:
    more = f"base_model: {model}\nload_in_4bit: true\nadapter: qlora\nlora_r: 8\n"
    text = AXOLOTL.partition("\n")[2] + ATTENTION + more + "lora_target_linear: true\n"
    read = read_file(_file(tmp_path, text), "axolotl")

    assert read.job is not None
    assert any("experts" in each for each in read.assumed) == ("Mixtral" in model)
