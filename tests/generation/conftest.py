import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from brimful.model.published import Loading, attach_adapters, fingerprint_of, load_model
from brimful.recipe import AdapterRecipe

CONTEXT = 32
RECIPE = """
name: tiny
sequence_length: 32
batch: {sequences: 4}
training: {steps: 10}
model: {layers: 2, heads: 2, width: 32, mlp_width: 64}
tokenizer: {kind: bpe, vocabulary: 300}
data: {path: "builtin:python-docs"}
optimizer: {learning_rate: 1.0e-3}
"""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with 300 tokens; most characters beyond ASCII take several."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    bpe.train_from_iterator(
        ["the cat sat on the mat and the rat ran to the other cat " * 3], trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )


def make_model(architecture: str, context: int = CONTEXT, width: int = 32) -> PreTrainedModel:
    """Random weights large enough that the likeliest token wins clearly."""
    ids = {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3, "vocab_size": 300}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        if architecture == "gpt2":
            return GPT2LMHeadModel(
                GPT2Config(n_positions=context, n_embd=width, n_layer=2, n_head=2, **ids)
            ).eval()
        config = LlamaConfig(
            max_position_embeddings=context,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=2 * width,
            tie_word_embeddings=True,
            **ids,
        )
        return LlamaForCausalLM(config).eval()


@pytest.fixture(params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make_model(request.param)


@pytest.fixture
def tiny_llama() -> PreTrainedModel:
    """The model inside the runs of `make_run`."""
    return make_model("llama")


@pytest.fixture
def make_run(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, tiny_llama: PreTrainedModel
) -> Callable[..., Path]:
    """Writes a finished run into tmp_path/runs."""

    def make(name: str = "tiny") -> Path:
        folder = tmp_path / "runs" / name
        (folder / "model").mkdir(parents=True)
        (folder / "recipe.yaml").write_text(RECIPE)
        tiny_llama.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        return folder

    return make


TUNED_CONTEXT = 256
TUNED_RECIPE = """
name: tuned
method: sft
sequence_length: 128
batch: {sequences: 4}
training: {steps: 10}
model: BASE
data: {path: "examples.jsonl"}
optimizer: {learning_rate: 1.0e-3}
"""
ADAPTER = AdapterRecipe(rank=4)


def make_base() -> PreTrainedModel:
    """Wide enough for the 64 weights that share a scale in 4 bits."""
    return make_model("llama", TUNED_CONTEXT, width=64)


def write_tuned_facts(folder: Path, base: Path, recipe: str, *, prompts: str = "messages") -> None:
    """What stands beside the model of a tuned run."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(TUNED_RECIPE.replace("BASE", str(base)) + recipe)
    fingerprint = fingerprint_of(base, make_base())
    (folder / "data.json").write_text(
        json.dumps(
            {
                "fingerprints": {},
                "prompts": prompts,
                "base": {"source": str(base), "fingerprint": fingerprint},
            }
        )
    )
    (folder / "plan.json").write_text(json.dumps({"predicted": {}, "precision": "fp32"}))


@pytest.fixture
def base_folder(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A published model in a folder."""
    folder = tmp_path / "base"
    make_base().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def make_tuned(
    tmp_path: Path, base_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> Callable[..., Path]:
    """Writes a finished run that tuned the model in `base_folder`; adapters and changed weights are
    as random as training leaves them.
    """

    def make(
        adapter: AdapterRecipe | None = ADAPTER,
        *,
        name: str = "tuned",
        quantize: str = "none",
        more: str = "",
        prompts: str = "messages",
    ) -> Path:
        folder = tmp_path / "runs" / name
        section = "" if adapter is None else f"adapter: {adapter.model_dump_json()}\n"
        write_tuned_facts(
            folder, base_folder, f"{section}quantize: {quantize}\n{more}", prompts=prompts
        )
        model = load_model(base_folder, Loading("fp32", "sdpa", torch.device("cpu"), quantize))
        if adapter is not None:
            attach_adapters(model, adapter, seed=1)
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        return folder

    return make
