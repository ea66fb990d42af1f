"""Choices of a plan that need no trace: precision, attention kernel, pieces of the loss, optimizer
and packing, each with its reason.
"""

from dataclasses import dataclass
from importlib.util import find_spec

from brimful.base.errors import PlanError
from brimful.base.types import Json
from brimful.base.units import MIB, format_bytes, format_duration
from brimful.hardware.device import Device
from brimful.hardware.kept_rates import BF16_PAYS_FROM
from brimful.model.catalog import hands_experts_on, packages_of_kernels
from brimful.model.description import LEAVES_FP16, PACKABLE, PACKABLE_ENCODERS
from brimful.planning.plan import PACKED_EXPERTS, Choice
from brimful.planning.timing import BY_EXAMPLES, NEW_LENGTHS, TERMS, StepTime
from brimful.recipe import Recipe

BF16_LEAST_WIDTH = 512
"""On a CPU, for a classifier whose texts lie side by side, so that passes have ever new shapes:
below this width bf16 costs more than it gains. Measured on a Xeon with AMX, one thread, 16 texts a
step, ms in bf16 and fp32: width 128 76 and 33, 256 101 and 81, 384 158 and 137, 768 312 and 427; on
an EPYC without AMX width 128 48 and 32, of which kernels of new shapes are 3. Texts end to end make
rows of few lengths: there width 128 56 and 68, 256 108 and 164, 384 274 and 439.
"""
LOSS_CHUNK_BYTES = {"cpu": 8 * MIB, "mps": 64 * MIB, "cuda": 256 * MIB}
"""Least fp32 logits of one chunk of the loss."""
LOSS_CHUNK_MEMORY_SHARE, MOST_LOSS_CHUNK_FACTOR = 1 / 64, 8
"""Where a GPU trains the head: the share of its memory that these logits take, and the largest
multiple of the least.
"""
BLOCK_ATTENTION_TOKENS = {"bf16": range(2, 1025), "fp32": range(65, 1025)}
"""On a CPU: sequence lengths at which attention in blocks is faster than the fused kernel, by
precision (docs/log).
"""
EIGHT_BIT_VARIANTS = {
    "adamw_8bit": ("8bit", ("cpu", "cuda")),
    "paged_adamw_8bit": ("paged_8bit", ("cuda",)),
}
"""By `optimizer.kind`: the variant that runs, and the kinds of devices with kernels for it
(bitsandbytes 0.50, read 2026-11-21).
"""
MUON = "muon"
"""`optimizer.kind`, and the variant that runs."""
ROUNDED = "rounded"
"""Variant for `optimizer.weights=bf16`: the update is computed in fp32 and rounded at random. With
states of 8 bits: rounded_8bit and rounded_paged_8bit.
"""
COMPILE_GAIN = {"cpu": 1.3, "mps": 1.0, "cuda": 1.85}
"""Most that a compiled step gains over an eager one where no passes were timed, whatever the
roofline says: CPU measured on one with AMX (benchmarks/compare.py pretrain; 1.08 on one without,
where products take longer); CUDA the largest published figure (nanoGPT, 250 to 135 ms); MPS not
measured.
"""
PASSES_OF_MANY_LENGTHS = frozenset({"packed", "padded", "document"})
"""Packings in which passes are as long as their texts make them."""
NEW_PRODUCT_S = 2e-3
"""What oneDNN takes to make the kernel of a product of a new shape in bf16, where that was not
measured: 1.1 to 1.6 ms alone, 2.8 in the mean of 398 kernels of a run beside other programs (Xeon
with AMX, one thread; 0.4 on an EPYC without: docs/log).
"""
EXAMPLE_S = {"fp32": 0.09e-3, "bf16": 0.3e-3}
"""Seconds that each further example of a packed row costs in every block on a CPU, forward and
backward: attention is computed for one example after another, some twenty operators however short
it is (9 and 20 positions on a Xeon, one thread: fp32 0.08 to 0.10 ms, bf16 0.35 to 0.38 with AMX
and 0.26 with it hidden; docs/log).
"""
PACKED_ATTENTION = "brimful_packed"
TEXTS_ATTENTION = "brimful_texts"
FIXED = "fixed by the user"


def precision_choice(
    recipe: Recipe,
    device: Device,
    width: int | None = None,
    *,
    packed: bool = False,
    model_type: str = "",
) -> Choice:
    """Choose the precision of the matrix products.

    Args:
        width: The model's hidden size, if known.
        packed: Examples or texts lie end to end, so that passes have few shapes.
        model_type: The model type of the model, as transformers names it.

    Raises:
        PlanError: the recipe fixes a precision that the device or the model does not allow.
    """
    if recipe.optimizer.weights == "bf16":
        return _precision_of_bf16_weights(recipe, device)
    overflows = _overflow_in_fp16(model_type, recipe.plan.attention)
    if overflows and recipe.plan.precision == "fp16":
        other = "bf16" if device.abilities.bf16 else "fp32"
        raise PlanError(
            f"plan.precision=fp16: {overflows}, so no step would have a finite loss. Use"
            f" plan.precision={other}."
        )
    if recipe.plan.precision != "auto":
        return Choice("precision", recipe.plan.precision, FIXED)
    if device.kind == "cpu":
        is_varied = recipe.kind.rows == "texts" and not packed
        return _cpu_precision(device, width if is_varied else None)
    return _gpu_precision(device, overflows)


def _overflow_in_fp16(model_type: str, attention: str) -> str:
    """Return why a model cannot be trained in fp16, as a clause; empty where nothing is known."""
    seen = LEAVES_FP16.get(model_type)
    if model_type == "qwen2" and attention == "eager":
        seen = "scores of eager attention overflow, NaN in the 7B (huggingface/transformers#33317)"
    return f"values of {model_type} models leave the range of fp16: {seen}" if seen else ""


def _gpu_precision(device: Device, overflows: str) -> Choice:
    if device.kind == "mps":
        why = (
            "16-bit training on Apple GPUs is not measured yet; plan.precision=bf16 asks for it,"
            " and for a frozen base of half the size (macOS 14 on)"
        )
        return Choice("precision", "fp32", why, "bf16")
    if device.abilities.bf16:
        return Choice("precision", "bf16", "native on this device; needs no loss scaling", "fp32")
    if device.abilities.fp16 and overflows:
        return Choice("precision", "fp32", f"no native bf16, and {overflows}")
    if device.abilities.fp16:
        return Choice(
            "precision",
            "fp16",
            "no native bf16; matrix units for fp16, with loss scaling and a gradient-norm tripwire",
            "fp32",
        )
    return Choice("precision", "fp32", "no 16-bit matrix units", "fp16")


def _precision_of_bf16_weights(recipe: Recipe, device: Device) -> Choice:
    if device.kind != "cpu" and not device.abilities.bf16:
        raise PlanError(
            f"optimizer.weights=bf16 needs a device that computes in bf16, and {device.name} does"
            " not. Use optimizer.weights=fp32, perhaps with optimizer.kind=adamw_8bit or an adapter"
            " (adapter.rank=16), which need less memory, too."
        )
    if recipe.plan.precision != "auto":
        return Choice("precision", recipe.plan.precision, FIXED)
    return Choice("precision", "bf16", "the recipe's optimizer.weights: weights are bf16")


def fp32_where_quicker(
    chosen: Choice, device: Device, time: StepTime | None, fill: float = 1.0
) -> Choice | None:
    """Return fp32 in place of bf16 where short examples of ever new lengths make a CPU wait longer
    for bf16's kernels than its matrix products gain; None where they do not, and where bf16 was
    asked for.

    Args:
        time: The step in bf16.
        fill: Share of its positions that will be computed.
    """
    is_free = (device.kind, chosen.value, chosen.alternative) == ("cpu", "bf16", "fp32")
    if time is None or not is_free:
        return None
    rates, terms = device.dense_flop_per_s, time.terms
    more_of_each = 1 - EXAMPLE_S["fp32"] / EXAMPLE_S["bf16"]
    waits_s = terms.get(NEW_LENGTHS, 0.0) + more_of_each * terms.get(BY_EXAMPLES, 0.0)
    gains_s = fill * (rates["bf16"] / rates["fp32"] - 1) * terms[TERMS["matrix"]]
    if waits_s <= gains_s:
        return None
    reason = (
        "examples of ever new lengths: in bf16 a step would wait"
        f" {format_duration(waits_s)} for kernels of their shapes, and its products are only"
        f" {format_duration(gains_s)} faster"
    )
    return Choice("precision", "fp32", reason, "bf16")


def _cpu_precision(device: Device, width_of_varied_passes: int | None) -> Choice:
    if width_of_varied_passes is not None and width_of_varied_passes < BF16_LEAST_WIDTH:
        reason = (
            "passes have ever new shapes, with which bf16 gains little: at width"
            f" {width_of_varied_passes} it costs more than it gains"
        )
        return Choice("precision", "fp32", reason, "bf16")
    rates = device.dense_flop_per_s
    if "bf16" not in rates or "fp32" not in rates:
        return Choice("precision", "fp32", "matrix rates of this CPU were not measured", "bf16")
    bf16, fp32 = (rates[dtype] / 1e9 for dtype in ("bf16", "fp32"))
    measured = (
        f"matrix products measured here: {bf16:,.0f} GFLOP/s in bf16, {fp32:,.0f} in fp32"
        f" ({bf16 / fp32:.1f}x)"
    )
    if device.abilities.bf16:
        return Choice("precision", "bf16", measured, "fp32")
    return Choice("precision", "fp32", f"{measured}; casting pays from {BF16_PAYS_FROM}x", "bf16")


_ONLY_EAGER = "transformers' class of this model has no attention for fused kernels"


def attention_choice(
    recipe: Recipe,
    device: Device,
    precision: str,
    *,
    softcapped: bool = False,
    grouped: bool = False,
    packed: bool = False,
    kernel: bool = False,
    attends_both_sides: bool = False,
    fused: bool = True,
) -> Choice:
    """Choose the attention implementation, by its name in transformers.

    Args:
        kernel: The model has kernel attention, which no implementation replaces.
        fused: The model's class can compute attention by torch's fused kernels.

    Raises:
        PlanError: the recipe fixes a causal implementation for an encoder, or one that the model's
            class does not have.
    """
    fixed = recipe.plan.attention
    if (attends_both_sides or recipe.kind.fills_masks) and fixed not in {"auto", "sdpa", "eager"}:
        raise PlanError(
            f"plan.attention={fixed} hides from every position what follows it, but an encoder"
            " looks to both sides; use sdpa or eager."
        )
    if fixed != "auto" or not fused:
        return _only_attention(fixed, fused)
    if packed and attends_both_sides:
        return Choice(
            "attention",
            TEXTS_ATTENTION,
            "each text of a row attends within itself, to both sides; texts of similar length are"
            " computed together",
            "sdpa",
        )
    if recipe.kind.fills_masks:
        return Choice(
            "attention",
            "sdpa",
            "torch's fused scaled-dot-product attention to both sides; no score matrix is stored",
            "eager",
        )
    if kernel and device.kind == "cpu":
        return Choice(
            "attention",
            "brimful_blocks",
            "kernel attention chunk by chunk in fp32; features are computed again in the backward"
            " pass",
            "sdpa",
        )
    if kernel:
        return Choice(
            "attention",
            "sdpa",
            "not used: the model's kernel attention runs in chunks of its own, in fp32",
        )
    return _decoder_attention_choice(
        recipe, device, precision, softcapped=softcapped, grouped=grouped, packed=packed
    )


def _only_attention(fixed: str, fused: bool) -> Choice:
    if not fused and fixed not in {"auto", "eager"}:
        raise PlanError(f"plan.attention={fixed}: {_ONLY_EAGER}. Use eager, or leave it out.")
    why = f"{_ONLY_EAGER}; scores are stored" if fixed == "auto" else FIXED
    return Choice("attention", fixed if fused else "eager", why)


def _decoder_attention_choice(
    recipe: Recipe, device: Device, precision: str, *, softcapped: bool, grouped: bool, packed: bool
) -> Choice:
    if packed:
        return Choice(
            "attention",
            PACKED_ATTENTION,
            "each example of a row attends within itself, by torch's fused kernel or in blocks",
            "sdpa",
        )
    if softcapped:
        return Choice(
            "attention",
            "eager",
            "this model caps its attention scores, which torch's fused kernels cannot do; scores"
            " are stored",
            "sdpa",
        )
    if (
        device.kind == "cpu"
        and not isinstance(recipe.model, str)
        and recipe.sequence_length in BLOCK_ATTENTION_TOKENS.get(precision, ())
    ):
        return Choice(
            "attention",
            "brimful_blocks",
            "at this length batched products over blocks beat torch's fused CPU kernel",
            "sdpa",
        )
    if (
        device.kind == "cuda"
        and grouped
        and not (device.abilities.flash_attention and precision != "fp32")
    ):
        reason = (
            "no flash kernel here, and the memory-efficient one takes no grouped heads: keys and"
            " values are repeated, else all scores would be stored"
        )
        return Choice("attention", "brimful_expanded", reason, "sdpa")
    return Choice(
        "attention",
        "sdpa",
        "torch's fused scaled-dot-product attention; no score matrix is stored",
        "eager",
    )


TORCH_ALONE = "torch"


def kernels_choice(model_type: str, device: Device) -> Choice | None:
    """Choose what computes linear attention, state-space blocks and short convolutions; None for
    models without them. Packages are looked for where this device is, and taken to be installed on
    another one.
    """
    packages = packages_of_kernels(model_type)
    if not packages:
        return None
    names = " and ".join(DISTRIBUTIONS.get(package, package) for package in packages)
    if device.kind != "cuda":
        return Choice(
            "kernels", TORCH_ALONE, f"{names} need an NVIDIA GPU; torch computes the same"
        )
    if device.index is None:
        return Choice(
            "kernels",
            ",".join(packages),
            f"{names} are taken to be installed there; without them torch computes the same in many"
            " times the operators and the memory",
            TORCH_ALONE,
        )
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        wanted = " ".join(DISTRIBUTIONS.get(package, package) for package in missing)
        why = f"{names}: not all are installed; `pip install {wanted}` saves memory and time"
        return Choice("kernels", TORCH_ALONE, why)
    return Choice("kernels", ",".join(packages), f"{names} are installed", TORCH_ALONE)


DISTRIBUTIONS = {
    "fla": "flash-linear-attention",
    "mamba_ssm": "mamba-ssm",
    "causal_conv1d": "causal-conv1d",
}
"""Packages by the name they are imported by -> the name they are installed by."""


EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of a config that say how many experts a block has."""
ADAPTED_EXPERTS = frozenset(
    {
        "afmoe",
        "beam",
        "cohere2_moe",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "dots1",
        "ernie4_5_moe",
        "exaone_moe",
        "flex_olmo",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "hunyuan_v1_moe",
        "longcat_flash",
        "mellum",
        "minimax",
        "minimax_m2",
        "mixtral",
        "olmoe",
        "qwen3_moe",
        "qwen3_next",
        "solar_open",
    }
)
"""`model_type`s whose experts and routers peft 0.21 adapts where all linear layers are asked for:
it takes them for the linear layers that they were in transformers 4.
"""


ADAPTED = "adapted"


def has_experts(config: Json) -> bool:
    """Return whether blocks of a model have experts."""
    return any(config.get(key) for key in EXPERT_COUNTS)


def experts_choice(recipe: Recipe, config: Json, *, in_parts: bool) -> Choice | None:
    """State what adapters and 4 bits leave of experts; None where there are none of either.

    Args:
        recipe: What is trained.
        config: Values of the model's transformers config.
        in_parts: The model is divided among devices.
    """
    if recipe.adapter is None or not has_experts(config):
        return None
    in_four_bits, model_type = recipe.quantize == "nf4", str(config["model_type"])
    if model_type in ADAPTED_EXPERTS and recipe.adapter.targets == "all-linear":
        kept = "; so they stay in 16 bits: other adapter.targets pack them" * in_four_bits
        return Choice("experts", ADAPTED, f"each, and the router; peft does so for this type{kept}")
    why = "all experts of a block are one tensor, not linear layers: no adapters"
    if not in_four_bits:
        return Choice("experts", "frozen", why)
    if in_parts or not hands_experts_on(model_type):
        obstacle = "of a model in parts" if in_parts else "of this type"
        return Choice("experts", "frozen", f"{why}; those {obstacle} stay in 16 bits")
    return Choice("experts", PACKED_EXPERTS, f"{why}; in 4 bits, unpacked a tensor at a time")


def loss_chunk_choice(recipe: Recipe, device: Device, vocabulary: int) -> Choice:
    """Choose the tokens per piece of the linear cross-entropy."""
    if recipe.plan.loss_chunk != "auto":
        return Choice("loss_chunk", recipe.plan.loss_chunk, FIXED)
    if recipe.kind.gives_labels:
        return Choice("loss_chunk", 64, "not used: a classifier makes one row of logits per text")
    fits = _loss_chunk_bytes(recipe, device) // (4 * vocabulary)
    tokens = max(64, min(1 << (max(fits, 1).bit_length() - 1), 16_384))
    return Choice(
        "loss_chunk",
        tokens,
        f"tokens per piece of the loss: {format_bytes(4 * vocabulary * tokens)} of logits at a"
        " time, never all of them",
    )


def _loss_chunk_bytes(recipe: Recipe, device: Device) -> int:
    """Return the bytes of fp32 logits in one chunk of the loss. The gradient of a trained head is
    added up chunk by chunk, which moves 12 bytes a weight each time, so that larger chunks pay on
    GPUs.
    """
    least = LOSS_CHUNK_BYTES[device.kind]
    if device.kind != "cuda" or recipe.adapter is not None:
        return least
    return min(
        max(least, int(LOSS_CHUNK_MEMORY_SHARE * device.memory_bytes)),
        MOST_LOSS_CHUNK_FACTOR * least,
    )


def has_four_bits(device: Device) -> bool:
    """Return whether a device has kernels for a base in 4 bits."""
    return device.kind != "mps"


def refuse_four_bits(recipe: Recipe, device: Device) -> None:
    """Raise PlanError where a base in 4 bits has no kernels: training would refuse it, too. Or
    where the published weights are in 4 bits and the recipe's are not.
    """
    if recipe.quantize == "none" and str(recipe.model).casefold().endswith("-bnb-4bit"):
        raise PlanError(
            f"the weights of {recipe.model} are in 4 bits already. Use quantize=nf4 with an adapter"
            " (adapter.rank=16), or the model that they were made of."
        )
    if recipe.quantize != "none" and not has_four_bits(device):
        raise PlanError(
            f"quantize={recipe.quantize} does not run on {device.name}: bitsandbytes' 4-bit layers"
            " are not measured on Apple GPUs. Use quantize=none, perhaps with plan.precision=bf16,"
            " which holds the frozen base in 16 bits."
        )


_WHY_ROUNDED = (
    "the recipe's optimizer.weights: one weight tensor after the other is updated in fp32 and"
    " rounded at random to bf16"
)


def optimizer_choice(recipe: Recipe, device: Device) -> Choice:
    """Choose the variant of the update. The variants of fp32 AdamW are different kernels for the
    same arithmetic; 8-bit states give another update.

    Raises:
        PlanError: the device has no kernels for the recipe's `optimizer.kind`, or `plan.optimizer`
            belongs to another one.
    """
    kind, fixed = recipe.optimizer.kind, recipe.plan.optimizer
    is_rounded = recipe.optimizer.weights == "bf16"
    if kind == "adamw" and is_rounded:
        if fixed != "auto":
            raise PlanError(
                f"plan.optimizer={fixed} updates fp32 weights, and the recipe's are bf16"
                " (optimizer.weights); leave one of the two out."
            )
        return Choice("optimizer", ROUNDED, _WHY_ROUNDED)
    if kind == "adamw":
        if fixed != "auto":
            return Choice("optimizer", fixed, FIXED)
        return Choice(
            "optimizer",
            "fused",
            "one pass over weights, gradients and states; foreach needs a temporary of every state",
            "foreach",
        )
    if kind == MUON and fixed != "auto":
        raise _fixed_otherwise(fixed, kind)
    if kind == MUON:
        why = "the recipe's optimizer.kind: matrices inside blocks keep one state, not two"
        return Choice("optimizer", kind, why)
    variant, kinds_of_device = EIGHT_BIT_VARIANTS[kind]
    if device.kind not in kinds_of_device:
        instead = "adamw"
        if device.kind in EIGHT_BIT_VARIANTS["adamw_8bit"][1]:
            instead = "adamw_8bit or adamw"
        raise PlanError(
            f"optimizer.kind={kind} has kernels for {' and '.join(kinds_of_device)} only, not for"
            f" {device.name}; use {instead}."
        )
    if fixed not in {"auto", variant}:
        raise _fixed_otherwise(fixed, kind)
    reason = "the recipe's optimizer.kind: AdamW's two states in one byte each instead of four"
    if variant == "paged_8bit":
        reason += "; large ones in memory that the driver moves to the host when the GPU is full"
    if is_rounded:
        return Choice("optimizer", f"{ROUNDED}_{variant}", f"{reason}; {_WHY_ROUNDED}")
    return Choice("optimizer", variant, reason)


def _fixed_otherwise(fixed: str, kind: str) -> PlanError:
    return PlanError(
        f"plan.optimizer={fixed} is a variant of optimizer.kind=adamw, the recipe's is {kind};"
        " leave one of the two out."
    )


def loader_choice(recipe: Recipe) -> Choice:
    """Choose the number of threads that make batches while the device computes."""
    if recipe.plan.loader_workers != "auto":
        return Choice("loader_workers", recipe.plan.loader_workers, FIXED)
    if recipe.kind.draws_answers:
        return Choice("loader_workers", 0, "a batch is drawn with the weights of the step before")
    return Choice(
        "loader_workers",
        1,
        "tokens lie ready in a memory map: one thread makes the next batch while this one computes",
        0,
    )


def packing_choice(recipe: Recipe, model_type: str, device_kind: str = "cpu") -> Choice:
    """Choose how documents, examples or texts are packed into rows. For documents the recipe
    decides, because packing changes what a step sees.

    Raises:
        PlanError: the recipe fixes a packing that this kind of run or model does not allow.
    """
    if recipe.kind.rows == "examples":
        return _EXAMPLES.choice(recipe, _obstacle_to_packing(recipe, model_type))
    if recipe.kind.rows == "texts":
        return _TEXTS.choice(recipe, _obstacle_to_packing_texts(recipe, model_type, device_kind))
    reason = "the recipe's data.layout; the plan never changes what a step sees"
    if recipe.data.layout == "stream":
        reason = "the recipe's data.layout: documents run on, every position holds a token"
    return Choice("packing", str(recipe.data.layout), reason)


@dataclass(frozen=True)
class _PackingWords:
    """What is said of packing examples or texts into one row.

    Attributes:
        refused: What is said where the recipe asks for it and `obstacle` is in the way.
        padded: Why not, where the plan decides; `obstacle` follows.
        packed: Why, where it decides.
    """

    refused: str
    padded: str
    packed: str

    def choice(self, recipe: Recipe, obstacle: str) -> Choice:
        """Choose to pack, unless the recipe says otherwise or something is in the way.

        Raises:
            PlanError: the recipe asks for what cannot be done.
        """
        if recipe.plan.packing == "packed" and obstacle:
            raise PlanError(f"plan.packing=packed: {self.refused.format(obstacle=obstacle)}")
        if recipe.plan.packing != "auto":
            return Choice("packing", recipe.plan.packing, FIXED)
        if obstacle:
            return Choice("packing", "padded", f"{self.padded}: {obstacle}")
        return Choice("packing", "packed", self.packed, "padded")


_EXAMPLES = _PackingWords(
    refused=(
        "several examples in a row would not stay apart: {obstacle}. Use plan.packing=padded."
    ),
    padded="examples of similar length side by side; in one row they would not stay apart",
    packed=(
        "examples of a micro-batch lie end to end, attention stays within each: no padding; before"
        " data are read, all count as full length"
    ),
)
_TEXTS = _PackingWords(
    refused=(
        "a classifier reads one text per row here: {obstacle}. Use plan.packing=padded, or leave it"
        " out."
    ),
    padded=(
        "texts of similar length side by side, so that little is computed on padding; end to end"
        " they are not"
    ),
    packed=(
        "texts of a micro-batch lie end to end, attention stays within each: nothing is computed on"
        " padding"
    ),
)


def _obstacle_to_packing_texts(recipe: Recipe, model_type: str, device_kind: str) -> str:
    if device_kind != "cpu":
        return "that was measured on CPUs only"
    if model_type not in PACKABLE_ENCODERS:
        return f"classifiers of type {model_type!r} are not known to keep them apart"
    if recipe.plan.attention != "auto":
        return f"plan.attention={recipe.plan.attention} knows nothing of where they end"
    return ""


def _obstacle_to_packing(recipe: Recipe, model_type: str) -> str:
    if model_type not in PACKABLE:
        return f"models of type {model_type!r} are not known to hand down where examples end"
    if recipe.plan.attention not in {"auto", PACKED_ATTENTION}:
        return f"plan.attention={recipe.plan.attention} knows nothing of them"
    return ""
