"""A GGUF file holds the model of a folder: transformers reads it back to equal logits and the same
greedy text, and so does llama.cpp where its bindings are installed.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Refuses
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from trained_tokenizers import train_tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.model.gguf_file import ARCHITECTURES, read_gguf
from brimful.model.gguf_writing import LAYOUTS, GgufType, origin_in, write_gguf

PROMPT = "say red twice, say 12 or "
SIZES: JsonDict = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}
LLAMA_3_1 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "long_factor": [1.0, 1.5, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
    "original_max_position_embeddings": 256,
}
GEMMA = {
    "num_hidden_layers": 6,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 8,
    "tie_word_embeddings": True,
}
MODELS: dict[str, tuple[str, JsonDict]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA_3_1}),
    "llama, linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "pad_token_id": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            "head_dim": 32,
            "num_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": ("gemma3_text", GEMMA | {"rope_parameters": None}),
    "phi": (
        "phi",
        {"hidden_act": "gelu_new", "num_key_value_heads": 4, "intermediate_size": 256},
    ),
    "phi3": ("phi3", {"pad_token_id": None}),
    "phi3, long": (
        "phi3",
        {
            "pad_token_id": None,
            "rope_parameters": LONG,
            "original_max_position_embeddings": 256,
            "max_position_embeddings": 512,
        },
    ),
    "gpt2": (
        "gpt2",
        {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3},
    ),
}


def config_of(kind: str, vocab_size: int, **changes: Any) -> Any:
    model_type, sizes = MODELS[kind]
    return AutoConfig.for_model(
        model_type,
        vocab_size=vocab_size,
        **({} if model_type == "gpt2" else SIZES) | sizes | changes,
    )


def make(folder: Path, kind: str, **changes: Any) -> PreTrainedModel:
    """A tiny model of a type, in a folder, whose likeliest token wins clearly."""
    tokenizer = train_tokenizer("bpe", 280, 2, ["say red twice green blue three times\n" * 20])
    ids = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = AutoModelForCausalLM.from_config(
            config_of(kind, len(tokenizer), **ids, **changes), dtype=torch.float32
        )
        for parameter in made.parameters():  # biases and norms begin as 0 and 1
            parameter.data += 0.02 * torch.randn_like(parameter)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model: PreTrainedModel = made.eval()
    return model


NOT_READ = {
    "llama 3.1": "its scaled positions",
    "llama, linear": "its scaled positions",
    "phi3, long": "its scaled positions",
    "qwen3": "the size of its heads",
    "qwen3_moe": "the size of its heads",
    "gemma2": "the size of its window",
    "gemma3": "the size of its window",
    "gpt2": "its number of positions",
}
"""What transformers 5.23 takes from its defaults although the file says it."""
NOT_READ_AT_ALL = ("smollm3", "phi")
"""By transformers 5.23; llama.cpp reads them."""


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


@pytest.mark.long_but("llama", "qwen2", "gemma3")
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in NOT_READ_AT_ALL])
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
    if model.config.model_type in ARCHITECTURES.values():
        assert read_gguf(path).metadata["general.name"] == "tiny"


@pytest.mark.parametrize(("kind", "error"), [("q8_0", 0.01), ("bf16", 0.004), ("f16", 0.0005)])
def test_shorter_types_round_as_they_should(kind: GgufType, error: float, tmp_path: Path) -> None:
    model = make(tmp_path / "model", "llama")
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "tiny.gguf"
    write_gguf(tmp_path / "model", path, kind, "tiny")

    found = read_gguf(path)
    assert found.types[kind.upper()] == 1 + 2 * 7
    assert found.types["F32"] == 1 + 2 * 2
    assert_near(model, path, error)


def assert_near(model: PreTrainedModel, path: Path, error: float) -> None:
    """The file holds the model's weights to a share of the largest, and its vectors exactly."""
    stored = dict(read_back(path).named_parameters())
    for name, weights in model.named_parameters():
        off = (stored[name] - weights).abs().max() / weights.abs().max()
        assert off < (error if weights.dim() > 1 else 1e-7), name


def opened_by_llama_cpp(path: Path) -> Any:
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs the package llama-cpp-python")
    return llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, verbose=False, logits_all=True)


def logits_by_llama_cpp(theirs: Any, ids: list[int]) -> Tensor:
    theirs.reset()
    theirs.eval(ids)
    return torch.tensor(theirs.scores[: len(ids)])


@pytest.mark.parametrize("kind", MODELS)
def test_llama_cpp_computes_the_same_logits(kind: str, tmp_path: Path) -> None:
    """It keeps keys and values in fp16."""
    model = make(tmp_path / "model", kind)
    path = tmp_path / "tiny.gguf"
    write_gguf(tmp_path / "model", path, "f32", "tiny")

    theirs = opened_by_llama_cpp(path)
    ids = theirs.tokenize(PROMPT.encode(), add_bos=False)
    assert ids == AutoTokenizer.from_pretrained(tmp_path / "model")(PROMPT)["input_ids"]
    found, logits = logits_by_llama_cpp(theirs, ids), logits_of(model, ids)
    torch.testing.assert_close(found, logits, rtol=0, atol=0.05)
    assert found.argmax(-1).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("kind", "main", "error"), [("q4_k_m", "Q4_K", 0.08), ("q5_k_m", "Q5_K", 0.04)]
)
def test_llama_cpp_rounds_to_mixed_types(
    kind: GgufType, main: str, error: float, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp", reason="needs the package llama-cpp-python")
    model = make(tmp_path / "model", "llama", hidden_size=256, intermediate_size=512)
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "tiny.gguf"
    write_gguf(tmp_path / "model", path, kind, "tiny", "origin")

    assert {main, "Q6_K"} <= read_gguf(path).types.keys()
    assert origin_in(path) == "origin"
    assert list(path.parent.iterdir()) == [path]
    assert_near(model, path, error)
    theirs = opened_by_llama_cpp(path)
    assert theirs.tokenize(PROMPT.encode(), add_bos=False)


def test_without_llama_cpp_a_mixed_type_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "brimful.model.gguf_writing.find_spec", lambda name: None if name == "llama_cpp" else name
    )
    make(tmp_path / "model", "llama")
    with pytest.raises(RequestError, match=r"--gguf bf16 .*llama-quantize.* extra gguf-mixed"):
        write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "q4_k_m", "tiny")


def sentencepiece_like(*, begins_with_space: bool) -> PreTrainedTokenizerFast:
    """A tokenizer as of Llama 2 (or Gemma, without the space): whatever two tokens make one may be
    merged, the earlier one first.
    """
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=60, show_progress=False)
    trained.train_from_iterator(["say red twice green blue three times\n" * 20], trainer)
    learned = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    known = set(learned)
    merges = [
        (token[:cut], token[cut:])
        for token in learned
        for cut in range(1, len(token))
        if {token[:cut], token[cut:]} <= known
    ]
    made = Tokenizer(
        models.BPE(
            {token: number for number, token in enumerate(tokens)},
            merges,
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    steps = [normalizers.Prepend("\u2581")] * begins_with_space
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("begins_with_space", [True, False])
def test_tokenizers_of_sentencepiece_are_written(begins_with_space: bool, tmp_path: Path) -> None:
    tokenizer = sentencepiece_like(begins_with_space=begins_with_space)
    config = config_of("gemma2", len(tokenizer), bos_token_id=1, eos_token_id=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "f32", "tiny")

    found = read_gguf(tmp_path / "tiny.gguf").metadata
    assert found["tokenizer.ggml.model"] == "llama"
    assert found["tokenizer.ggml.add_space_prefix"] == begins_with_space
    theirs = opened_by_llama_cpp(tmp_path / "tiny.gguf")
    for text in (PROMPT, "  two  spaces", "red</s>blue", "Zebra \u00e9t\u00e9\nend", "greenred"):
        ids = theirs.tokenize(text.encode(), add_bos=False, special=True)
        assert ids == tokenizer(text)["input_ids"], text


def test_rows_that_no_block_divides_stay_in_f16(tmp_path: Path) -> None:
    make(tmp_path / "model", "llama", head_dim=20)
    write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "q8_0", "tiny")
    assert read_gguf(tmp_path / "tiny.gguf").types["F16"] == 2, "the output projections"


REFUSED: dict[str, tuple[str, JsonDict]] = {
    "rope_type yarn": (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "sliding_window 32": ("phi3", {"sliding_window": 32}),
    "query_pre_attn_scalar 16": ("gemma2", {"query_pre_attn_scalar": 16}),
    "no_rope_layers [0, 1": ("smollm3", {"no_rope_layers": [0, 1, 1, 1, 1]}),
    "norm_topk_prob False": ("qwen3_moe", {"norm_topk_prob": False}),
    "sliding_window 16": ("mistral", {"sliding_window": 16}),
    "hidden_act gelu": ("llama", {"hidden_act": "gelu"}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_architecture_does_not_stand_for_is_refused_by_name(
    reason: str, tmp_path: Path, refuses: Refuses
) -> None:
    kind, changes = REFUSED[reason]
    config_of(kind, 280, **changes).save_pretrained(tmp_path / "model")
    with refuses(RequestError, names=[reason]):
        write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "f32", "tiny")
    assert not (tmp_path / "tiny.gguf").exists()


def test_another_model_type_is_refused_with_the_known_ones(
    tmp_path: Path, refuses: Refuses
) -> None:
    from transformers import GPTNeoXConfig

    GPTNeoXConfig().save_pretrained(tmp_path)
    with refuses(RequestError, names=["gpt_neox", *LAYOUTS]):
        write_gguf(tmp_path, tmp_path / "tiny.gguf", "f32", "tiny")


def test_a_tokenizer_without_a_rule_in_llama_cpp_is_refused(
    tmp_path: Path, refuses: Refuses
) -> None:
    make(tmp_path / "model", "llama")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.save_pretrained(tmp_path / "model")
    with refuses(RequestError, names=["convert_hf_to_gguf.py"]):
        write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "f32", "tiny")
