"""A GGUF file holds the model of a folder: transformers reads it back to equal logits and the same
greedy text, and so does llama.cpp where its bindings are installed.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Refuses
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from brimful.base.errors import RequestError
from brimful.data.tokenizer import train_tokenizer
from brimful.model.gguf_file import ARCHITECTURES, read_gguf
from brimful.model.gguf_writing import LAYOUTS, GgufType, write_gguf

needs_gguf = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="needs the extra gguf"
)
PROMPT = "say red twice, say 12 or "
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, SIZES | {"tie_word_embeddings": True}),
    "mistral": (MistralConfig, MistralForCausalLM, SIZES | {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, SIZES),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, SIZES | {"head_dim": 32}),
    "gpt2": (
        GPT2Config,
        GPT2LMHeadModel,
        {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3},
    ),
}


def make(folder: Path, kind: str, **changes: Any) -> PreTrainedModel:
    """A tiny model of a type, in a folder, whose likeliest token wins clearly."""
    tokenizer = train_tokenizer("bpe", 280, 2, ["say red twice green blue three times\n" * 20])
    config, model_class, sizes = MODELS[kind]
    ids = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = model_class(config(vocab_size=len(tokenizer), **ids, **sizes, **changes))
        for parameter in made.parameters():  # biases and norms begin as 0 and 1
            parameter.data += 0.02 * torch.randn_like(parameter)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model: PreTrainedModel = made.eval()
    return model


NOT_READ = {"qwen3": "the size of its heads", "gpt2": "its number of positions"}
"""What transformers 5.23 takes from its defaults although the file says it."""


def read_back(path: Path, **more: Any) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path.parent,
        **more,
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()
    return model


def logits_of(model: PreTrainedModel, ids: list[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=torch.tensor([ids])).logits[0]
    return logits


def greedy(model: PreTrainedModel, ids: list[int], count: int = 12) -> list[int]:
    written = list(ids)
    for _ in range(count):
        written.append(int(logits_of(model, written)[-1].argmax()))
    return written[len(ids) :]


@needs_gguf
@pytest.mark.parametrize("kind", MODELS)
def test_transformers_reads_the_same_model_and_tokens_back(kind: str, tmp_path: Path) -> None:
    model = make(tmp_path / "model", kind)
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "tiny.gguf"
    write_gguf(tmp_path / "model", path, "f32", "tiny")

    own = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = own(PROMPT)["input_ids"]
    assert (
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)(PROMPT)["input_ids"] == ids
    )
    again = read_back(path, **({"config": model.config} if kind in NOT_READ else {}))
    torch.testing.assert_close(logits_of(again, ids), logits_of(model, ids), rtol=1e-4, atol=1e-4)
    assert greedy(again, ids) == greedy(model, ids)
    if kind in ARCHITECTURES:
        assert read_gguf(path).metadata["general.name"] == "tiny"


@needs_gguf
@pytest.mark.parametrize(("kind", "error"), [("q8_0", 0.01), ("bf16", 0.004), ("f16", 0.0005)])
def test_shorter_types_round_as_they_should(kind: GgufType, error: float, tmp_path: Path) -> None:
    model = make(tmp_path / "model", "llama")
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "tiny.gguf"
    write_gguf(tmp_path / "model", path, kind, "tiny")

    found = read_gguf(path)
    assert found.types[kind.upper()] == 1 + 2 * 7
    assert found.types["F32"] == 1 + 2 * 2
    stored = dict(read_back(path).named_parameters())
    for name, weights in model.named_parameters():
        off = (stored[name] - weights).abs().max() / weights.abs().max()
        assert off < (error if weights.dim() > 1 else 1e-7), name


@pytest.mark.parametrize("kind", MODELS)
def test_llama_cpp_writes_the_same_greedy_text(kind: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs the package llama-cpp-python")
    model = make(tmp_path / "model", kind)
    path = tmp_path / "tiny.gguf"
    write_gguf(tmp_path / "model", path, "f32", "tiny")

    own = AutoTokenizer.from_pretrained(tmp_path / "model")
    theirs = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, verbose=False)
    ids = theirs.tokenize(PROMPT.encode(), add_bos=False)
    assert ids == own(PROMPT)["input_ids"]
    written = []
    for token in theirs.generate(ids, temp=0.0, repeat_penalty=1.0):
        written.append(token)
        if len(written) == 12:
            break
    assert written == greedy(model, ids)


@needs_gguf
def test_rows_that_no_block_divides_stay_in_f16(tmp_path: Path) -> None:
    make(tmp_path / "model", "llama", head_dim=20)
    write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "q8_0", "tiny")
    assert read_gguf(tmp_path / "tiny.gguf").types["F16"] == 2, "the output projections"


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "rope_type linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "sliding_window 16": ("mistral", {"sliding_window": 16}),
    "hidden_act gelu": ("llama", {"hidden_act": "gelu"}),
}


@needs_gguf
@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_architecture_does_not_stand_for_is_refused_by_name(
    reason: str, tmp_path: Path, refuses: Refuses
) -> None:
    kind, changes = REFUSED[reason]
    sizes = {key: value for key, value in MODELS[kind][2].items() if key not in changes}
    config, model_class, _ = MODELS[kind]
    model_class(config(vocab_size=280, **sizes, **changes)).save_pretrained(tmp_path / "model")
    with refuses(RequestError, names=[reason]):
        write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "f32", "tiny")
    assert not (tmp_path / "tiny.gguf").exists()


@needs_gguf
def test_another_model_type_is_refused_with_the_known_ones(
    tmp_path: Path, refuses: Refuses
) -> None:
    from transformers import GPTNeoXConfig

    GPTNeoXConfig().save_pretrained(tmp_path)
    with refuses(RequestError, names=["gpt_neox", *LAYOUTS]):
        write_gguf(tmp_path, tmp_path / "tiny.gguf", "f32", "tiny")


@needs_gguf
def test_a_tokenizer_without_a_rule_in_llama_cpp_is_refused(
    tmp_path: Path, refuses: Refuses
) -> None:
    make(tmp_path / "model", "llama")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.save_pretrained(tmp_path / "model")
    with refuses(RequestError, names=["convert_hf_to_gguf.py"]):
        write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "f32", "tiny")


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr("brimful.model.gguf_writing.find_spec", lambda name: None)
    make(tmp_path / "model", "llama")
    with refuses(RequestError):
        write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "f32", "tiny")
