"""The step to trace, from a recipe and the choices of a plan."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from brimful.base.errors import PlanError
from brimful.base.types import Json
from brimful.hardware.device import Device
from brimful.model import catalog
from brimful.model.description import OWN_TYPES, config_values, count_parameters
from brimful.planning.choices import PACKED_ATTENTION, TORCH_ALONE
from brimful.planning.plan import PACKED_EXPERTS, Choice
from brimful.planning.step import Lora, Recompute, StepSpec, canonical
from brimful.recipe import OF_RECIPE, ModelRecipe, Recipe, load

TEXT_PARTS = ("text_config", "decoder", "generator", "text_encoder")
"""Where the config of several models keeps the one that reads text, as in transformers'
get_text_config.
"""


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model that planning needs.

    Attributes:
        config: Values of its transformers config, `model_type` among them.
        vocabulary: Rows of the embedding.
        context: Positions it can read; None where the config does not say.
        parameters: Tied weights once; None until a trace counts them.
        softcapped: Attention scores are capped, which rules fused kernels out.
        grouped: Fewer key/value heads than query heads.
        also_reads: What the checkpoint reads beside text, which is not trained; mostly nothing.
    """

    config: Json
    vocabulary: int
    context: int | None
    parameters: int | None
    softcapped: bool = False
    grouped: bool = False
    also_reads: str = ""

    @property
    def width(self) -> int | None:
        """The hidden size, where the config says it."""
        return self.config.get("hidden_size") or self.config.get("n_embd")

    @property
    def has_kernel_attention(self) -> bool:
        """Whether attention is estimated from random features, by code of the model itself."""
        of_its_own = self.config["model_type"] in OWN_TYPES
        return of_its_own and self.config.get("attention") != "softmax"

    @property
    def has_fused_attention(self) -> bool:
        """Whether the model's class can compute attention by torch's fused kernels."""
        return catalog.has_fused_attention(str(self.config["model_type"]))

    @property
    def attends_both_sides(self) -> bool:
        """Whether every position attends to later ones."""
        # Only asked of classifiers.
        from transformers.models.auto import modeling_auto  # noqa: PLC0415

        known = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        return self.config["model_type"] in known and not self.config.get("is_decoder")


def model_facts(
    recipe: Recipe, vocabulary: int | None = None, *, trust_custom_code: bool = False
) -> ModelFacts:
    """The recipe's model, described or published.

    Args:
        recipe: Names or describes it.
        vocabulary: Real size of a fresh model's tokenizer, where it is known.
        trust_custom_code: Consent to run code that comes with a published model.

    Raises:
        PlanError: the published model is unknown, not a language model, or shorter than the
            recipe's sequences.
    """
    if isinstance(recipe.model, ModelRecipe):
        size = vocabulary or recipe.own_tokenizer.vocabulary or 256
        values = config_values(recipe.model, vocabulary=size, context=recipe.context)
        return ModelFacts(
            values,
            size,
            recipe.context,
            count_parameters(recipe.model, size, recipe.context).total,
            grouped=_is_grouped(values),
        )
    if recipe.model.startswith(OF_RECIPE):
        trained_first = load(recipe.model.removeprefix(OF_RECIPE))
        facts = model_facts(trained_first, vocabulary)
        _refuse_long_sequences(recipe, facts.context)
        return replace(facts, parameters=None if recipe.adapter else facts.parameters)
    row = catalog.find(recipe.model)
    values = (
        dict(row.config)
        if row is not None
        else catalog.config_of_model(recipe.model, trust_custom_code=trust_custom_code).to_dict()
    )
    if recipe.data.added_tokens and recipe.adapter is None:
        text = _text_values(values)
        # As many rows at most: some may be there.
        values = {**text, "vocab_size": text["vocab_size"] + len(recipe.data.added_tokens)}
        row = None
    facts = facts_of_values(values, None if row is None else row.parameters)
    if row is not None:
        facts = replace(facts, also_reads=row.also_reads)
    _refuse_long_sequences(recipe, facts.context)
    return facts


def facts_of_values(values: Json, parameters: int | None) -> ModelFacts:
    """What the values of a published model's config say; its parameters where they are known.

    Of a model that reads images or sound too, this is the part that reads text, as in the rows of
    the catalog.

    Raises:
        PlanError: they do not say how large the vocabulary is, or that part cannot be planned
            alone.
    """
    text = _text_values(values)
    context = next(
        (
            int(text[key])
            for key in ("max_position_embeddings", "n_positions", "max_seq_len")
            if text.get(key)
        ),
        None,
    )
    return ModelFacts(
        text,
        int(text["vocab_size"]),
        context,
        parameters,
        bool(text.get("attn_logit_softcapping")),
        _is_grouped(text),
        also_reads="" if text is values else "vision" if "vision_config" in values else "sound",
    )


def _text_values(values: Json) -> Json:
    nested = [part for name in TEXT_PARTS if isinstance(part := values.get(name), Mapping)]
    text = next(
        (part for part in (*nested, values) if part.get("vocab_size") and part.get("model_type")),
        None,
    )
    if text is None:
        raise PlanError(
            f"the config of model_type {values.get('model_type')!r} does not say how large its"
            " vocabulary is. Add its vocab_size."
        )
    if text is not values and not catalog.has_head(str(text["model_type"])):
        raise PlanError(
            f"the text part of model_type {values.get('model_type')!r} ({text['model_type']!r}) is"
            " no model by itself, so it cannot be planned."
        )
    return text


def _refuse_long_sequences(recipe: Recipe, context: int | None) -> None:
    if context is not None and recipe.sequence_length > context:
        raise PlanError(
            f"sequence_length {recipe.sequence_length} is above the {context} positions that"
            f" {recipe.model} reads; shorten it."
        )


def _is_grouped(values: Json) -> bool:
    heads, groups = values.get("num_attention_heads"), values.get("num_key_value_heads")
    return heads is not None and groups is not None and groups < heads


def spec_of(
    recipe: Recipe,
    model: ModelFacts,
    device: Device,
    choices: Mapping[str, Choice],
    *,
    recompute: Recompute,
) -> StepSpec:
    """The step of brimful's own loop.

    Fresh models and full fine-tuning keep the recipe's weights (`optimizer.weights`); a frozen base
    is held in the 16-bit type of the matrix products, adapters in fp32.
    """
    precision = str(choices["precision"].value)
    frozen = recipe.adapter is not None
    return StepSpec(
        config_json=canonical(model.config),
        sequence_length=recipe.sequence_length,
        weights=precision if frozen else recipe.optimizer.weights,  # type: ignore[arg-type]
        autocast="none" if precision == "fp32" else precision,  # type: ignore[arg-type]
        adapter=lora_of(recipe),
        quantize=recipe.quantize,
        method=recipe.kind.steps_like or recipe.method,
        options_json=json.dumps(recipe.kind.step_options(recipe), sort_keys=True),
        padded=not recipe.kind.writes_text and choices["packing"].value in {"document", "padded"},
        loss_chunk=int(choices["loss_chunk"].value),
        recompute=recompute,
        offload=bool(recompute) and recipe.plan.offload == "activations",
        cuda=device.kind == "cuda",
        flash=device.abilities.flash_attention,
        attention=_traced_attention(str(choices["attention"].value), model, device),
        optimizer=str(choices["optimizer"].value),  # type: ignore[arg-type]
        accumulates=True,
        clips=recipe.optimizer.clip_norm is not None,
        kernels="kernels" in choices and choices["kernels"].value != TORCH_ALONE,
        packs_experts="experts" in choices and choices["experts"].value == PACKED_EXPERTS,
    )


def _traced_attention(chosen: str, model: ModelFacts, device: Device) -> str:
    """Packed rows are traced as one long example, the most that attention can take; on CUDA with
    the kernel that each example gets.
    """
    if chosen != PACKED_ATTENTION or device.kind != "cuda":
        return chosen
    if model.softcapped:
        return "eager"
    return "brimful_expanded" if model.grouped and not device.abilities.flash_attention else "sdpa"


def lora_of(recipe: Recipe) -> Lora | None:
    """Return the recipe's adapters for the traced step."""
    adapter = recipe.adapter
    if adapter is None:
        return None
    is_plain = recipe.quantize == "none" and not adapter.dropout and not adapter.dora
    return Lora(
        adapter.rank,
        ",".join(adapter.target_names),
        adapter.dropout,
        dora=adapter.dora,
        quick=is_plain,
        tokens=len(recipe.data.added_tokens),
    )
