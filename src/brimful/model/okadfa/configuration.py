"""Configuration of the model, in transformers' form."""

from typing import Literal

from transformers import PreTrainedConfig

MODEL_TYPE = "okadfa"


class OkadfaConfig(PreTrainedConfig):  # type: ignore[misc]
    """A pre-norm GPT with fixed sinusoidal positions, biases everywhere and normalised queries and
    keys.

    Attributes:
        attention: "softmax", or "kernel": its estimate from positive random features. The
            parameters are the same.
        num_features: Random features per head; None: four times the head size.
        feature_seed: Seed of the random directions.
        initial_temperature: Factor on the cosine of a query and a key at the start; learned per
            head. The estimate's error grows with its exponential.
        activation: Activation of the MLPs.
        max_position_embeddings: Longest text that softmax attention was trained on; None for kernel
            attention, which reads on.
    """

    model_type = MODEL_TYPE
    # Transformers' class attribute.
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012

    vocab_size: int = 50257
    hidden_size: int = 768
    intermediate_size: int | None = None
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    attention: Literal["softmax", "kernel"] = "kernel"
    num_features: int | None = None
    feature_seed: int = 0
    initial_temperature: float = 1.0
    activation: Literal["gelu", "gelu_erf", "relu", "swish"] = "gelu"
    dropout: float = 0.0
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: object) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.num_features is None:
            self.num_features = 4 * self.head_size
        kwargs.pop("layer_types", None)
        super().__post_init__(**kwargs)
        if self.attention not in ("softmax", "kernel"):
            raise ValueError(f"attention {self.attention!r} must be 'softmax' or 'kernel'")
        if self.num_features < 1:
            raise ValueError(
                f"num_features {self.num_features} must be at least 1; None means four times the"
                " head size"
            )
        if not self.initial_temperature > 0:
            raise ValueError(
                f"initial_temperature {self.initial_temperature} must be above 0; 1 is a good first"
                " value"
            )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of num_attention_heads"
                f" {self.num_attention_heads}"
            )

    @property
    def layer_types(self) -> list[str]:
        """The layer types by which transformers makes caches; they follow `attention` even if that
        is changed while a model is loaded.
        """
        kind = "full_attention" if self.attention == "softmax" else "linear_attention"
        return [kind] * self.num_hidden_layers

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_attention_heads
