from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from fixture_types import MakeRecipe
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from brimful.data.chat import Template
from brimful.data.tokens import TokenSplit
from brimful.evaluation.asking import Way
from brimful.evaluation.task_prompts import Subject
from brimful.model.build import build
from brimful.recipe import Recipe

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
            return GPT2LMHeadModel(
                GPT2Config(n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, **ids)
            ).eval()
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
    """Makes splits of plain ids: one document, four bytes and two characters a token unless told
    otherwise.
    """

    def of(self, ids: Sequence[int] | np.ndarray, *, num_bytes: int | None = None) -> TokenSplit:
        tokens_N = np.asarray(ids, dtype=np.uint16)
        return TokenSplit(
            tokens_N,
            np.array([0, len(tokens_N)], np.uint64),
            4 * len(tokens_N) if num_bytes is None else num_bytes,
            2 * len(tokens_N),
            1,
        )

    def random(self, count: int, seed: int = 0) -> TokenSplit:
        return self.of(np.random.default_rng(seed).integers(0, VOCABULARY, count))


@pytest.fixture
def splits() -> Splits:
    return Splits()


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, 256 is end-of-text."""
    bytes_only = {
        byte: number for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    tokenizer = Tokenizer(models.BPE(bytes_only | {"<|endoftext|>": 256}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


class Subjects:
    """Makes tiny models with random weights that can be asked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    def of(
        self,
        *,
        context: int = 1024,
        is_tuned: bool = True,
        text_ending: str | None = None,
        ways: tuple[Way, ...] = (),
    ) -> Subject:
        config = LlamaConfig(
            vocab_size=257,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=context,
            initializer_range=0.3,
            bos_token_id=256,
            eos_token_id=256,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            model = LlamaForCausalLM(config).eval()
        return Subject(
            model,
            self._tokenizer,
            Template.of(self._tokenizer, "plain"),
            frozenset({256}),
            is_tuned,
            context,
            text_ending,
            ways=ways or (("chat",) if is_tuned else ("plain",)),
        )


@pytest.fixture
def subjects(byte_tokenizer: PreTrainedTokenizerFast) -> Subjects:
    return Subjects(byte_tokenizer)


@pytest.fixture
def okadfa_recipe() -> MakeRecipe:
    """Two layers, on sequences of the length of a window."""

    def make(*, method: str = "feedback", **model: object) -> Recipe:
        return Recipe.model_validate(
            {
                "name": "layers",
                "method": method,
                "sequence_length": CONTEXT,
                "batch": {"sequences": 2},
                "training": {"steps": 1},
                "model": {"architecture": "okadfa", "layers": 2, "heads": 2, "width": 32, **model},
                "tokenizer": {"kind": "bpe", "vocabulary": 300},
                "data": {"path": "words.txt"},
                "optimizer": {"learning_rate": 1e-2},
            }
        )

    return make


@pytest.fixture
def model_of(okadfa_recipe: MakeRecipe) -> Callable[..., PreTrainedModel]:
    """`model_of(key=value)`: the model of `okadfa_recipe`, fresh."""

    def make(**model: object) -> PreTrainedModel:
        return build(
            okadfa_recipe(**model),
            vocabulary=VOCABULARY,
            end_of_text_id=0,
            attention="sdpa",
            device=torch.device("cpu"),
        )

    return make
