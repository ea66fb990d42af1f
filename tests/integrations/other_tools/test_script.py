"""Scripts and notebooks of TRL and Unsloth, read without running them."""

import json
from pathlib import Path

import pytest
import yaml

from brimful.base.errors import RecipeError
from brimful.base.types import JsonDict
from brimful.integrations.other_tools.as_recipe import NO_DATA, recipe_text
from brimful.integrations.other_tools.file import read_file, tool_of
from brimful.integrations.other_tools.job import ReadJob

TRL = """
import torch
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

model_id, folder = "Qwen/Qwen2.5-0.5B-Instruct", "out"
longest = 1024
prompt = 256
args = GRPOConfig(
    output_dir=folder,
    model_init_kwargs={"torch_dtype": torch.bfloat16},
    per_device_train_batch_size=8,
    num_generations=8,
    max_completion_length=longest - prompt,
    max_prompt_length=prompt,
    use_vllm=True,
    vllm_gpu_memory_utilization=0.2,
    logging_steps=len(folder),
)
raise SystemExit("nothing of this is run")
trainer = GRPOTrainer(
    model=model_id,
    args=args,
    reward_funcs=[lambda completions: [1.0]],
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
AutoModelForCausalLM.from_pretrained("what/came-out")
"""
PAIRS = """
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

FILE = "a.jsonl"
held_out = load_dataset("json", data_files="held-out.jsonl", split="train")
rows = LOADED
trainer = DPOTrainer(
    model="HuggingFaceTB/SmolLM2-135M-Instruct",
    args=DPOConfig(output_dir="out", per_device_train_batch_size=2, beta=0.1),
    train_dataset=rows,
    eval_dataset=held_out,
)
trainer.train()
"""
UNSLOTH = [
    '%%capture\nimport os\nos.environ["UNSLOTH_VLLM_STANDBY"] = "1"\n!pip install unsloth\n',
    """model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Qwen2.5-3B-Instruct", load_in_4bit = True, fast_inference = True,
    max_seq_length = 1024, gpu_memory_utilization = 0.5)
model = FastLanguageModel.get_peft_model(
    model, r = 64, target_modules = ["q_proj"], use_gradient_checkpointing = "unsloth")
""",
    """first = SFTTrainer(model = model, args = SFTConfig(num_train_epochs = 2, packing = True))
args = GRPOConfig(num_generations = 6, per_device_train_batch_size = 1, max_prompt_length = 256, max_completion_length = 200)
trainer = GRPOTrainer(model = model, args = args)
""",
]


def test_a_script_says_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRL)

    assert tool_of(str(path)) == "trl"
    job = read_file(path, "trl").job

    assert job is not None
    assert job.sampling is not None
    assert job.adapter is not None
    assert (job.model, job.weights) == ("Qwen/Qwen2.5-0.5B-Instruct", "bf16")
    assert (job.adapter.rank, job.adapter.targets) == (4, "q_proj,v_proj")
    assert (job.sequence_length, job.loss.scored, job.sampling.vllm_share) == (1024, 768, 0.2)


def test_a_notebook_of_unsloth_shares_weights_with_vllm_and_its_last_training_counts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.ipynb"
    cells = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in UNSLOTH]
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["!"]}, *cells]}))

    read = read_file(path, str(tool_of(str(path))), native_bf16=False)

    assert read.job is not None
    assert read.job.sampling is not None
    assert (read.job.weights, read.job.quantize, read.job.rows) == ("fp16", "nf4", "padded")
    assert (read.job.micro_batch, read.job.loss.cross_entropy) == (6, "tiled")
    sampling = read.job.sampling
    assert (sampling.vllm_share, sampling.sleeps, sampling.shares_weights) == (0.5, True, True)


EARLIER_UNSLOTH = """
from transformers import TrainingArguments

model, tokenizer = FastLanguageModel.from_pretrained(
    "unsloth/Meta-Llama-3.1-8B-bnb-4bit", max_seq_length = LENGTH, dtype = None)
model = FastLanguageModel.get_peft_model(model, use_rslora = False)
trainer = SFTTrainer(
    model = model,
    dataset_text_field = "text",
    packing = False,
    args = TrainingArguments(
        per_device_train_batch_size = 2,
        gradient_accumulation_steps = 4,
        warmup_steps = 5,
        max_steps = 60,
        fp16 = not is_bfloat16_supported(),
        bf16 = is_bfloat16_supported(),
        optim = "adamw_8bit",
        output_dir = "outputs",
    ),
)
"""


def _read(path: Path, text: str) -> ReadJob:
    path.write_text(text)
    return read_file(path, str(tool_of(str(path))))


@pytest.mark.parametrize(
    ("loaded", "length"),
    [("4096", 4096), ("2048, full_finetuning = True", 2048)],
)
def test_unsloth_with_plain_training_arguments_is_as_it_loads_the_model(
    tmp_path: Path, loaded: str, length: int
) -> None:
    path = tmp_path / "train.py"

    read = _read(path, EARLIER_UNSLOTH.replace("LENGTH", loaded))

    job = read.job
    assert job is not None
    assert job.adapter is not None
    assert (job.micro_batch, job.accumulation, job.sequence_length) == (2, 4, length)
    assert (job.optimizer, job.recompute) == ("bnb_8bit", "non_reentrant")
    assert job.quantize == ("none" if "full" in loaded else "nf4")
    assert (job.adapter.rank, job.adapter.dropout) == (16, 0.0)
    recipe = yaml.safe_load(recipe_text(path, read))
    assert (recipe["optimizer"]["learning_rate"], recipe["training"]) == (5e-5, {"steps": 60})
    assert (recipe["adapter"]["alpha"], len(recipe["adapter"]["targets"])) == (16, 7)


@pytest.mark.parametrize(
    ("name", "arguments", "method"),
    [
        ("SFT", "", "sft"),
        ("DPO", "args=DPOConfig(per_device_train_batch_size=2)", "dpo"),
        ("DPO", "None, args=TrainingArguments('out'), beta=0.2, max_length=512", "dpo"),
        ("KTO", "args=KTOConfig(learning_rate=1e-6)", "kto"),
    ],
)
def test_what_a_trainer_is_for_is_known_where_its_defaults_are_kept(
    tmp_path: Path, name: str, arguments: str, method: str
) -> None:
    path = tmp_path / "train.py"
    model = '"HuggingFaceTB/SmolLM2-135M-Instruct"'

    recipe = yaml.safe_load(
        recipe_text(path, _read(path, f"{name}Trainer({model}, {arguments}).train()\n"))
    )

    assert recipe["method"] == method
    is_older = "beta" in arguments
    assert recipe["sequence_length"] == (512 if is_older else 1024)
    assert method != "dpo" or recipe["preference"]["beta"] == (0.2 if is_older else 0.1)


def test_of_a_notebook_commands_and_cells_in_other_languages_are_left_out(tmp_path: Path) -> None:
    """A command goes on in lines of its own."""
    cells = [
        "%%bash\nTAG=$(command -v x) || {\n exit 01; }",
        "#@title Install\n%%capture\nif True:\n    !pip install a \\\n        'b>=1' \\\n    c\nelse:\n    x = 1",
        '%%writefile data.txt\n{"a": 01',
        'args = SFTConfig(\n    per_device_train_batch_size = 2)\nSFTTrainer("a/b", args = args)',
    ]
    path = tmp_path / "train.ipynb"
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})

    job = _read(path, text).job

    assert job is not None
    assert (job.model, job.micro_batch) == ("a/b", 2)


def test_embeddings_among_the_layers_of_unsloths_adapters_are_trained_whole(tmp_path: Path) -> None:
    """As in its notebooks on continued pre-training, with its own trainer."""
    text = """
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/mistral-7b-v0.3")
model = FastLanguageModel.get_peft_model(
    model, r = 128, target_modules = ["q_proj", "embed_tokens", "lm_head"])
trainer = UnslothTrainer(model = model, args = UnslothTrainingArguments(
    per_device_train_batch_size = 2, embedding_learning_rate = 1e-5))
"""

    job = _read(tmp_path / "train.py", text).job

    assert job is not None
    assert job.adapter is not None
    assert (job.adapter.targets, job.adapter.saved) == ("q_proj", "embed_tokens,lm_head")
    assert (job.micro_batch, job.sequence_length) == (2, 2048)


def test_arguments_in_dictionaries_are_read(tmp_path: Path) -> None:
    """As in the script that came with Phi-3."""
    path = tmp_path / "train.py"
    text = """
training = {"per_device_train_batch_size": 4, "learning_rate": 5.0e-06, "output_dir": "./o"}
adapter = {"r": 4, "target_modules": "all-linear", "modules_to_save": None}
model_kwargs = dict(use_cache=False, torch_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", **model_kwargs)
SFTTrainer(
    model=model, args=TrainingArguments(**training), peft_config=LoraConfig(**adapter),
    max_seq_length=512,
)
"""

    job = _read(path, text).job

    assert job is not None
    assert job.adapter is not None
    assert (job.micro_batch, job.weights, job.sequence_length) == (4, "bf16", 512)
    assert (job.adapter.rank, job.adapter.dropout) == (4, 0.0)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ("args=parser.parse_args()", "args"),
        ("args=SFTConfig('out', **settings['train'])", "further_arguments"),
    ],
)
def test_arguments_that_only_a_run_knows_are_told_and_their_place_may_be_taken(
    tmp_path: Path, arguments: str, key: str
) -> None:
    path = tmp_path / "train.py"

    read = _read(path, f'SFTTrainer("Qwen/Qwen2.5-0.5B", {arguments})\n')

    assert [each.key for each in read.unknown] == [key]
    changes = [f"{key}=null", "per_device_train_batch_size=2"]
    job = read_file(path, "trl", changes).job
    assert job is not None
    assert job.micro_batch == 2


def test_rewards_are_known_by_their_trainer(tmp_path: Path) -> None:
    text = 'GRPOTrainer("HuggingFaceTB/SmolLM2-135M", args=GRPOConfig(output_dir="out"))\n'

    job = _read(tmp_path / "train.py", text).job

    assert job is not None
    assert job.sampling is not None


@pytest.mark.parametrize("wrap", ["", "model = get_peft_model(model, peft_config)\n"])
def test_adapters_of_a_script_have_the_defaults_of_peft(tmp_path: Path, wrap: str) -> None:
    path = tmp_path / "train.py"
    text = """
bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", quantization_config=bits)
peft_config = LoraConfig(target_modules=["q_proj"])
"""

    read = _read(path, f"{text}{wrap}SFTTrainer(model, peft_config=peft_config)\n")

    assert read.job is not None
    assert read.job.adapter is not None
    assert (read.job.weights, read.job.quantize) == ("bf16", "nf4_single")
    assert (read.job.adapter.rank, read.job.adapter.dropout) == (8, 0.0)


def test_a_model_that_a_script_loads_has_the_type_in_which_it_was_published(tmp_path: Path) -> None:
    text = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\nSFTTrainer(model)\n'

    job = _read(tmp_path / "train.py", text).job

    assert job is not None
    assert job.weights == "published"


def test_a_script_of_another_trainer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text('Trainer(model="x", args=TrainingArguments("out")).train()\n')
    with pytest.raises(RecipeError, match="calls none of SFTTrainer"):
        tool_of(str(path))


def test_examples_of_unsloth_are_no_groups_of_answers(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    loading = UNSLOTH[1].replace("fast_inference = True,", "")
    loading = loading.replace(", gpu_memory_utilization = 0.5", "")
    args = "SFTConfig(per_device_train_batch_size = 2, packing = False)"
    path.write_text(f"{loading}SFTTrainer(model = model, args = {args})\n")

    job = read_file(path, str(tool_of(str(path)))).job

    assert job is not None
    assert (job.micro_batch, job.sequence_length, job.sampling) == (2, 1024, None)


def test_what_a_script_computes_is_told_where_it_decides(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRL.replace("longest - prompt", "longest // count(rows)"))

    (unknown,) = read_file(path, "trl").unknown

    assert unknown.key == "max_completion_length"


def test_a_script_that_is_no_python_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("GRPOConfig(")
    with pytest.raises(RecipeError, match="cannot be read as Python"):
        read_file(path, "trl")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "x = " + "-" * 20_000 + "1"),
        ("train.py", "x = a" + ".b" * 20_000),
        ("train.ipynb", "[" * 100_000),
        ("train.ipynb", "[]"),
        ("train.ipynb", '{"cells": null}'),
        ("train.ipynb", '{"cells": ["a"]}'),
        ("train.ipynb", '{"cells": [{"cell_type": "code", "source": 1}]}'),
        ("train.ipynb", '{"cells": [{"cell_type": "code", "source": [1]}]}'),
    ],
    ids=["dashes", "dots", "brackets", "list", "null", "text", "number", "numbers"],
)
def test_what_is_no_script_and_no_notebook_is_refused(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(RecipeError, match="cannot be read as Python"):
        read_file(path, "trl")


@pytest.mark.parametrize(
    ("loaded", "data"),
    [
        ('load_dataset("json", data_files="mine.jsonl", split="train")', {"path": "mine.jsonl"}),
        (
            'load_dataset("json", data_files=[FILE, "b.csv"])["train"]',
            {"path": ["a.jsonl", "b.csv"]},
        ),
        (
            'load_dataset("json", data_files={"train": FILE, "test": "b.jsonl"}, split="test")',
            {"path": "b.jsonl"},
        ),
        (
            'load_dataset("some/pairs", split="train_prefs").map(asked).shuffle(seed=1)',
            {"path": "some/pairs", "splits": {"train": "train_prefs"}},
        ),
        (
            'load_dataset("some/pairs")["train_prefs"]',
            {"path": "some/pairs", "splits": {"train": "train_prefs"}},
        ),
        ('load_dataset("json", data_files=sys.argv[1], split="train")', {"path": NO_DATA}),
        ('load_dataset("json", data_files={"test": FILE}, split="train")', {"path": NO_DATA}),
        ("made()", {"path": NO_DATA}),
    ],
)
def test_the_rows_that_a_script_of_pairs_loads_are_those_of_the_recipe(
    tmp_path: Path, loaded: str, data: JsonDict
) -> None:
    path = tmp_path / "pairs.py"
    path.write_text(PAIRS.replace("LOADED", loaded))

    text = recipe_text(path, read_file(path, "trl"))
    recipe = yaml.safe_load(text)

    assert recipe["method"] == "dpo"
    assert {key: recipe["data"].get(key) for key in ("path", "splits")} == {"splits": None, **data}
    assert f"put your own in place of {NO_DATA}" in text or data["path"] != NO_DATA


def test_a_part_of_a_split_is_told_as_a_recipe_has_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "pairs.py"
    loaded = 'load_dataset("json", data_files=FILE, split="train[:90%]")'
    path.write_text(PAIRS.replace("LOADED", loaded))

    text = recipe_text(path, read_file(path, "trl"))

    assert "[:90%] of split train" in text
    assert yaml.safe_load(text)["data"]["path"] == "a.jsonl"
