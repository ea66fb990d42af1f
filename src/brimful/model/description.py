"""What a model is, counted before it exists. No torch here."""

from dataclasses import dataclass
from typing import Any

from brimful.recipe import ModelRecipe

INITIAL_STD = 0.02
PACKABLE = frozenset({
    "arcee", "cohere", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "helium",
    "llama", "ministral", "mistral", "olmo", "olmo2", "olmo3", "opt", "phi", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "starcoder2",
})  # fmt: skip
"""`model_type`s whose packed rows are tested to equal one example at a time. Not StableLM and Nemotron, which keep `packed_lengths` from the
attention function; GPT-J, GPT-Neo, BLOOM and XGLM, whose attention cannot be replaced; GPT-OSS, which has sinks; nor models with convolutions or
recurrence, such as LFM2 and Qwen3.5, which would run on from one example into the next."""


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by role; tied weights once, buffers never.

    Attributes:
        embedding: Input embeddings and learned positions.
        blocks: All transformer blocks and the final norm.
        head: Output head; 0 when tied to the embedding.
    """

    embedding: int
    blocks: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + self.blocks + self.head


def count_parameters(model: ModelRecipe, vocabulary: int, context: int) -> ParameterCount:
    """Parameters of the module that `build` makes; a test holds the two equal."""
    width, inner = model.width, model.resolved_mlp_width
    head = 0 if model.tie_embeddings else vocabulary * width
    if model.architecture == "gpt2":
        vectors = 4 * width + inner + width + 4 * width  # biases of attention and MLP, two norms
        return ParameterCount((vocabulary + context) * width, model.layers * (_block_matrices(model) + vectors) + 2 * width, head)
    return ParameterCount(vocabulary * width, model.layers * (_block_matrices(model) + 2 * width) + width, head)


def _block_matrices(model: ModelRecipe) -> int:
    """Weights of one block that multiply activations."""
    width, inner = model.width, model.resolved_mlp_width
    if model.architecture == "gpt2":
        return 4 * width * width + 2 * width * inner
    kv_width = width // model.heads * (model.kv_heads or model.heads)
    return 2 * width * width + 2 * width * kv_width + 3 * width * inner


def config_values(model: ModelRecipe, *, vocabulary: int, context: int) -> dict[str, Any]:
    """The described model as the values of a transformers config, `model_type` among them."""
    if model.architecture == "gpt2":
        return {
            "model_type": "gpt2", "vocab_size": vocabulary, "n_positions": context, "n_embd": model.width, "n_layer": model.layers, "n_head": model.heads,
            "n_inner": model.resolved_mlp_width, "activation_function": "gelu_pytorch_tanh", "resid_pdrop": model.dropout, "embd_pdrop": model.dropout, "attn_pdrop": model.dropout,
            "initializer_range": INITIAL_STD, "tie_word_embeddings": model.tie_embeddings,
        }  # fmt: skip
    return {
        "model_type": "llama", "vocab_size": vocabulary, "max_position_embeddings": context, "hidden_size": model.width, "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads or model.heads, "intermediate_size": model.resolved_mlp_width,
        "initializer_range": INITIAL_STD, "tie_word_embeddings": model.tie_embeddings,
    }  # fmt: skip


def training_flop_per_token(model: ModelRecipe, vocabulary: int, sequence_length: int) -> float:
    """Forward and backward FLOPs per token: 6 per weight that multiplies, plus 6 L d T for causal attention.

    Convention of PaLM (Chowdhery et al. 2022, appendix B) with causal attention counted once: half of its 12 L d T.
    The head counts, also when tied; the embedding look-up, norms and biases do not.
    """
    multiplying = model.layers * _block_matrices(model) + vocabulary * model.width
    return 6.0 * multiplying + 6.0 * model.layers * model.width * sequence_length
