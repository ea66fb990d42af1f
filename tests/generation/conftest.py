from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

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
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=1, show_progress=False
    )
    bpe.train_from_iterator(["the cat sat on the mat and the rat ran to the other cat " * 3], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>", clean_up_tokenization_spaces=False)  # noqa: S106


def make_model(architecture: str, context: int = CONTEXT) -> PreTrainedModel:
    """Random weights large enough that the likeliest token wins clearly."""
    ids = {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3, "vocab_size": 300}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        if architecture == "gpt2":
            return GPT2LMHeadModel(GPT2Config(n_positions=context, n_embd=32, n_layer=2, n_head=2, **ids)).eval()
        config = LlamaConfig(
            max_position_embeddings=context, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
            tie_word_embeddings=True, **ids,
        )  # fmt: skip
        return LlamaForCausalLM(config).eval()


@pytest.fixture(params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make_model(request.param)


@pytest.fixture
def tiny_llama() -> PreTrainedModel:
    """The model inside the runs of `make_run`."""
    return make_model("llama")


@pytest.fixture
def make_run(tmp_path: Path, tokenizer: PreTrainedTokenizerFast, tiny_llama: PreTrainedModel) -> Callable[..., Path]:
    """Writes a finished run into tmp_path/runs."""

    def make(name: str = "tiny") -> Path:
        folder = tmp_path / "runs" / name
        (folder / "model").mkdir(parents=True)
        (folder / "recipe.yaml").write_text(RECIPE)
        tiny_llama.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        return folder

    return make
