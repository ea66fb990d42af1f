"""The parameters, config and FLOPs of a described model, computed without building it or importing
torch.
"""

from dataclasses import dataclass
from pathlib import Path

from brimful.base.strict_json import load_json
from brimful.base.types import JsonDict
from brimful.recipe import ModelRecipe

INITIAL_STD = 0.02
_GPT2_ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu_erf": "gelu"}
"""What transformers calls an activation, by the recipe's `model.activation`."""
KERNEL_LLAMA = "kernel_llama"
"""`model_type` of published models that were converted to kernel attention."""
OWN_TYPES = ("okadfa", KERNEL_LLAMA)
"""`model_type`s of brimful's own, which transformers reads after `registered.register()`."""
PAD_TOKEN, CLS_TOKEN, SEP_TOKEN, MASK_TOKEN = ENCODER_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens of encoders trained here, as BERT's (Devlin et al. 2019): padding, begin and end
of a text, and the mask in place of a token to be predicted.
"""
PAD_ID, CLS_ID, SEP_ID, MASK_ID = range(len(ENCODER_TOKENS))
ENCODER_ROPE_THETA = 10_000.0
"""Base of the rotary positions (Su et al. 2021); ModernBERT's 160,000 is for 8,192 positions."""
PACKABLE = frozenset(
    {
        "arcee",
        "cohere",
        "ernie4_5",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "granite",
        "helium",
        "kernel_llama",
        "llama",
        "ministral",
        "mistral",
        "okadfa",
        "olmo",
        "olmo2",
        "olmo3",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "seed_oss",
        "smollm3",
        "starcoder2",
    }
)
"""`model_type`s whose packed rows are tested to equal one example at a time. Not among them:
StableLM and Nemotron, which do not pass `packed_lengths` on to the attention function; GPT-J,
GPT-Neo, BLOOM and XGLM, whose attention cannot be replaced; GPT-OSS, which has attention sinks; and
models with convolutions or recurrence, such as LFM2 and Qwen3.5, whose state would run from one
example into the next.
"""


LEAVES_FP16 = {
    "gemma3_text": (
        "residuals of 103,821 measured in the 270M, NaN in others (huggingface/transformers#36822)"
    ),
    "gemma3n_text": "NaN in training (unslothai/unsloth-zoo#866)",
    "gemma4_text": "NaN in gradients (unslothai/unsloth-zoo#866)",
    "glm4_moe": "NaN in gradients (unslothai/unsloth-zoo#866)",
    "gpt_oss": "NaN in training (unslothai/unsloth-zoo#866)",
    "qwen3_5_text": "NaN in training (unslothai/unsloth-zoo#866)",
    "qwen3_moe": "NaN in gradients (unslothai/unsloth-zoo#866)",
    "t5": "66,246 in an MLP of the base model (huggingface/transformers#5651)",
}
"""Families whose values leave the range of fp16, which ends at 65,504, by `model_type`: what was
seen, and where (read 2026-11-27).
"""
PACKABLE_ENCODERS = frozenset({"bert", "electra", "modernbert", "roberta", "xlm-roberta"})
"""`model_type`s whose classifiers are tested to give packed texts the logits and gradients of one
text at a time. Not among them: DeBERTa, whose attention cannot be replaced.
"""


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by role; tied weights once, buffers never.

    Attributes:
        embedding: Input embeddings, learned positions and the norm after them.
        blocks: All transformer blocks and the final norm.
        head: Output head, its weights only where they are not tied to the embedding; of an encoder
            the layers before them, too.
    """

    embedding: int
    blocks: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + self.blocks + self.head


def is_own_architecture(model: object) -> bool:
    """Return whether transformers reads a model only after `registered.register()`.

    Args:
        model: Model as in a recipe: a section with its `architecture`, a folder, or another name.
    """
    if not isinstance(model, str):
        return getattr(model, "architecture", None) in OWN_TYPES
    try:
        values = load_json((Path(model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("model_type") in OWN_TYPES


def count_parameters(model: ModelRecipe, vocabulary: int, context: int) -> ParameterCount:
    """Return the number of parameters of the module that `build` makes; a test compares the two."""
    width, inner = model.width, model.resolved_mlp_width
    head = 0 if model.tie_embeddings else vocabulary * width
    if model.is_bidirectional:
        # The first block has no norm before its attention; there is one final norm.
        norms = (2 * model.layers - 1 + 1) * width
        # The layers before the head's weights: a matrix and a norm.
        dense = width * width + width
        return ParameterCount(
            vocabulary * width + width, model.layers * _block_matrices(model) + norms, head + dense
        )
    # Biases of attention and MLP, and two norms.
    vectors = 4 * width + inner + width + 4 * width
    if model.architecture == "okadfa":
        return ParameterCount(
            vocabulary * width,
            model.layers * (_block_matrices(model) + vectors + model.heads) + 2 * width,
            head,
        )
    if model.architecture == "gpt2":
        return ParameterCount(
            (vocabulary + context) * width,
            model.layers * (_block_matrices(model) + vectors) + 2 * width,
            head,
        )
    return ParameterCount(
        vocabulary * width, model.layers * (_block_matrices(model) + 2 * width) + width, head
    )


def _block_matrices(model: ModelRecipe) -> int:
    """Return the number of weights of one block that multiply activations."""
    width, inner = model.width, model.resolved_mlp_width
    if model.architecture in {"gpt2", "okadfa"}:
        return 4 * width * width + 2 * width * inner
    kv_width = width // model.heads * (model.kv_heads or model.heads)
    return 2 * width * width + 2 * width * kv_width + 3 * width * inner


def config_values(model: ModelRecipe, *, vocabulary: int, context: int) -> JsonDict:
    """Return the values of the described model's transformers config, including `model_type`."""
    if model.architecture == "gpt2":
        return {
            "model_type": "gpt2",
            "vocab_size": vocabulary,
            "n_positions": context,
            "n_embd": model.width,
            "n_layer": model.layers,
            "n_head": model.heads,
            "n_inner": model.resolved_mlp_width,
            "activation_function": _GPT2_ACTIVATIONS[model.activation],
            "resid_pdrop": model.dropout,
            "embd_pdrop": model.dropout,
            "attn_pdrop": model.dropout,
            "initializer_range": INITIAL_STD,
            "tie_word_embeddings": model.tie_embeddings,
        }
    if model.is_bidirectional:
        return _encoder_values(model, vocabulary, context)
    if model.architecture == "okadfa":
        return _okadfa_values(model, vocabulary, context)
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "intermediate_size": model.resolved_mlp_width,
        "initializer_range": INITIAL_STD,
        "tie_word_embeddings": model.tie_embeddings,
    }


def _okadfa_values(model: ModelRecipe, vocabulary: int, context: int) -> JsonDict:
    """Return the values of an OKADFA config; kernel attention has no maximum length."""
    return {
        "model_type": "okadfa",
        "vocab_size": vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.resolved_mlp_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "attention": "kernel" if model.is_kernel else "softmax",
        "num_features": model.features,
        "initial_temperature": model.temperature,
        "activation": model.activation,
        "dropout": model.dropout,
        "initializer_range": INITIAL_STD,
        "max_position_embeddings": None if model.is_kernel else context,
        "tie_word_embeddings": model.tie_embeddings,
    }


def _encoder_values(model: ModelRecipe, vocabulary: int, context: int) -> JsonDict:
    """ModernBERT (Warner et al. 2024) without its local attention, which pays from some thousand
    positions on.

    Attention weights see no dropout, so that fused kernels can compute them; its output, which
    ModernBERT drops by the same setting, sees none either.
    """
    rope = {"rope_type": "default", "rope_theta": ENCODER_ROPE_THETA}
    return {
        "model_type": "modernbert",
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.resolved_mlp_width,
        "layer_types": ["full_attention"] * model.layers,
        "rope_parameters": {"full_attention": dict(rope), "sliding_attention": dict(rope)},
        "embedding_dropout": model.dropout,
        "mlp_dropout": model.dropout,
        "classifier_dropout": model.dropout,
        "attention_dropout": 0.0,
        "decoder_bias": False,
        "classifier_pooling": "mean",
        "pad_token_id": PAD_ID,
        "cls_token_id": CLS_ID,
        "sep_token_id": SEP_ID,
        "initializer_range": INITIAL_STD,
        "tie_word_embeddings": model.tie_embeddings,
    }


def training_flop_per_token(
    model: ModelRecipe, vocabulary: int, sequence_length: int, *, scored_share: float = 1.0
) -> float:
    """Return the forward and backward FLOPs per token: 6 per weight that multiplies activations,
    plus those of attention.

    Attention takes 6 L d T if it is causal, 12 L d T in an encoder, and 20 L d M as kernel
    attention with M features per head: 8 for the features, whose random directions have no
    gradient, and 12 for the running sum and its use.

    Convention of PaLM (Chowdhery et al. 2022, appendix B) with causal attention counted once: half
    of its 12 L d T. The head counts, also when it is tied. The embedding look-up, norms, biases and
    the products inside the chunks of kernel attention do not.

    Args:
        scored_share: Share of the positions for which the head is computed.
    """
    head, attention = vocabulary * model.width, 6.0
    if model.is_bidirectional:
        head, attention = head + model.width**2, 12.0
    multiplying = model.layers * _block_matrices(model) + scored_share * head
    if model.is_kernel:
        features = model.features or 4 * model.width // model.heads
        return 6.0 * multiplying + 20.0 * model.layers * model.width * features
    return 6.0 * multiplying + attention * model.layers * model.width * sequence_length
