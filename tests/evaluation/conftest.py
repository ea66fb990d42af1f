from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from brimful.data.tokens import TokenSplit

VOCABULARY, CONTEXT = 50, 16


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    ids = {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3, "vocab_size": VOCABULARY}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        if request.param == "gpt2":
            return GPT2LMHeadModel(GPT2Config(n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, **ids)).eval()
        config = LlamaConfig(
            max_position_embeddings=CONTEXT,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=64,
            **ids,
        )
        return LlamaForCausalLM(config).eval()


class Splits:
    """Makes splits of plain ids: one document, four bytes and two characters a token unless told otherwise."""

    def of(self, ids: Sequence[int] | np.ndarray, *, num_bytes: int | None = None) -> TokenSplit:
        tokens_N = np.asarray(ids, dtype=np.uint16)
        return TokenSplit(
            tokens_N, np.array([0, len(tokens_N)], np.uint64), 4 * len(tokens_N) if num_bytes is None else num_bytes, 2 * len(tokens_N), 1
        )

    def random(self, count: int, seed: int = 0) -> TokenSplit:
        return self.of(np.random.default_rng(seed).integers(0, VOCABULARY, count))


@pytest.fixture
def splits() -> Splits:
    return Splits()
