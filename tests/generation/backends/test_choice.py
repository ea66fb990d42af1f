import pytest
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from brimful.generation.backends.choice import REASONS, backend_for
from brimful.generation.backends.transformers_batching import TransformersBatching
from brimful.generation.engine import Engine

SMALL = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


@pytest.mark.parametrize(
    ("choice", "kind"),
    [("auto", Engine), ("brimful", Engine), ("transformers", TransformersBatching)],
)
def test_the_choice_is_made_and_explained(
    choice: str, kind: type, tokenizer: PreTrainedTokenizerFast
) -> None:
    backend, why = backend_for(
        choice, LlamaForCausalLM(LlamaConfig(**SMALL)), tokenizer, source="there"
    )

    assert type(backend) is kind
    assert why == REASONS[choice]
    assert why.startswith("transformers'" if choice == "transformers" else "brimful's engine")
