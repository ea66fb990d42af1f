"""A GGUF file as a model folder: its weights exactly, its tokenizer, and what its types lost."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fixture_types import Captured, Refuses
from transformers import AutoModelForCausalLM, AutoTokenizer

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.model import gguf_conversion
from brimful.model.gguf_file import read_gguf

Write = Callable[..., Path]


def test_the_folder_holds_the_weights_of_the_file_exactly(
    write_gguf: Write, tmp_path: Path, capfd: Captured
) -> None:
    from gguf import GGUFReader, dequantize

    file = read_gguf(write_gguf())
    share = gguf_conversion.convert(file, tmp_path / "made")

    assert capfd.readouterr() == ("", ""), "no bars of other libraries"
    assert not (tmp_path / "made" / "source").exists()
    weights = AutoModelForCausalLM.from_pretrained(tmp_path / "made").state_dict()
    stored = {
        tensor.name: dequantize(tensor.data, tensor.tensor_type)
        for tensor in GGUFReader(file.path).tensors
    }
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
    ):
        assert weights[ours].dtype == torch.float32
        assert np.array_equal(weights[ours].numpy(), stored[theirs])
    assert sum(tensor.numel() for name, tensor in weights.items() if name != "lm_head.weight") == (
        file.parameters
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made")
    assert tokenizer.decode(tokenizer("the cat")["input_ids"]) == "the cat"
    # The writer rounded normally distributed weights, of which the true rounding is known.
    drawn = np.random.default_rng(0).normal(0, 0.05, (262, 32)).astype(np.float32)
    true = np.sqrt(np.square(stored["token_embd.weight"] - drawn).mean() / np.square(drawn).mean())
    assert share == pytest.approx(true, rel=0.1)


def test_a_file_that_lacks_weights_is_refused(
    write_gguf: Write, tmp_path: Path, refuses: Refuses
) -> None:
    file = read_gguf(write_gguf(llama__block_count=3))
    with refuses(PlanError, names=["model.layers.2"]):
        gguf_conversion.convert(file, tmp_path / "made")


@pytest.mark.parametrize(
    "damage",
    [
        {"tokenizer__ggml__model": "unheard of"},
        {"tokenizer__ggml__merges": ["no merge of two"]},
        {"tokenizer__ggml__merges": ["the cat", "q q"]},
        {"tokenizer__ggml__tokens": ["a", "a"]},
        {"tokenizer__ggml__tokens": [1, 2, 3]},
    ],
)
def test_a_file_whose_vocabulary_cannot_be_built_is_refused(
    write_gguf: Write, tmp_path: Path, damage: JsonDict
) -> None:
    file = read_gguf(write_gguf(**damage))
    with pytest.raises(PlanError, match=r"cannot be turned into a model folder: .* Hugging Face"):
        gguf_conversion.convert(file, tmp_path / "made")
