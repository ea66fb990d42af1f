"""The vocabulary in which a timed run is declared: model, batch, kernels, GPUs and how they share
the work. Plain values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from brimful.planning.step import StepSpec

FAMILIES = (
    "eager",
    "compiled",
    "foundry",
    "megatron",
    "transformer engine",
    "torchtitan",
    "jit",
    "cuda c",
)
"""Software stacks that were measured: transformers' eager modules, torch.compile over one GPU,
llm-foundry (FlashAttention-2, FSDP, nothing compiled), Megatron-DeepSpeed with its fused kernels,
NeMo's Transformer Engine, torchtitan (FSDP2, compiled blocks), TorchScript with NVIDIA's kernels,
hand-written CUDA.
"""


@dataclass(frozen=True)
class Shape:
    """What decides the arithmetic of a transformer.

    Attributes:
        heads, groups: Query heads, and key and value heads.
        mlp: Inner width.
        gated: Two products go in (SwiGLU).
        norm: "rms" or "layer".
        rope: Rotary positions.
        causal: Half of the scores count.
        tied: Embedding and head share their weights.
        experts, active: MLPs of a block, and how many of them a token meets.
    """

    hidden: int
    layers: int
    heads: int
    groups: int
    head_size: int
    mlp: int
    gated: bool
    vocabulary: int
    norm: Literal["rms", "layer"] = "layer"
    rope: bool = False
    causal: bool = True
    tied: bool = True
    experts: int = 1
    active: int = 1

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_size

    @property
    def group_width(self) -> int:
        return self.groups * self.head_size

    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear layers of a block, by the names that adapters use."""
        made = {
            "q": (self.hidden, self.attention_width),
            "k": (self.hidden, self.group_width),
            "v": (self.hidden, self.group_width),
            "o": (self.attention_width, self.hidden),
            "up": (self.hidden, self.mlp),
            "down": (self.mlp, self.hidden),
        }
        return {**made, "gate": (self.hidden, self.mlp)} if self.gated else made

    def block_weights(self) -> int:
        """Weights of the linear layers of a block."""
        return sum(
            width_in * width_out * self.copies(name)
            for name, (width_in, width_out) in self.linears().items()
        )

    def copies(self, name: str) -> int:
        """How often a linear layer stands in a block."""
        return self.experts if name in ("up", "gate", "down") else 1

    def weights(self) -> int:
        """Weights in all, without biases and norms; a tied head once."""
        return self.layers * self.block_weights() + self.vocabulary * self.hidden * (
            1 if self.tied else 2
        )


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape in a transformers config.

    Raises:
        KeyError: a config of a kind that is not known here.
    """
    if "n_embd" in config:
        hidden, heads = config["n_embd"], config["n_head"]
        groups = 1 if config.get("multi_query") else heads
        mlp = config.get("n_inner") or 4 * hidden
        return Shape(
            hidden,
            config["n_layer"],
            heads,
            groups,
            hidden // heads,
            mlp,
            False,
            config["vocab_size"],
        )
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    shared = {
        "hidden": hidden,
        "layers": config["num_hidden_layers"],
        "heads": heads,
        "groups": config.get("num_key_value_heads") or heads,
        "head_size": config.get("head_dim") or hidden // heads,
        "mlp": config["intermediate_size"],
        "vocabulary": config["vocab_size"],
    }
    if config["model_type"] == "bert":
        return Shape(**shared, gated=False, causal=False)
    if config["model_type"] in ("llama", "mistral", "granite", "qwen2", "qwen3"):
        return Shape(
            **shared,
            gated=True,
            norm="rms",
            rope=True,
            tied=bool(config.get("tie_word_embeddings")),
        )
    if config["model_type"] == "mixtral":
        experts, active = config["num_local_experts"], config["num_experts_per_tok"]
        return Shape(
            **shared, gated=True, norm="rms", rope=True, tied=False, experts=experts, active=active
        )
    raise KeyError(config["model_type"])


@dataclass(frozen=True)
class Adapter:
    """Low-rank adapters on the named linear layers, and how many more kernels and bytes their kind
    needs.

    Attributes:
        fp32: Their products run in fp32, with inputs converted (peft without autocast).
        dropout: Above 0.
        fused: One function for q, k and v, another for o (Unsloth's, as in fms-acceleration).
    """

    rank: int
    targets: tuple[str, ...]
    fp32: bool = False
    dropout: bool = False
    fused: bool = False


@dataclass(frozen=True)
class Spread:
    """GPUs and how they share the work.

    Attributes:
        data: Replicas of the whole model, or shards of it (`sharded`), that take different
            sequences.
        tensor: GPUs that share every product.
        pipeline: Stages.
        interleaved: Chunks of layers per stage (virtual stages).
        context: GPUs that share every sequence.
        sharded: Weights are gathered layer by layer (FSDP); "gradients": only gradients and states
            are sharded.
        gpus_per_node: Beyond them traffic leaves the node.
        link: What joins the GPUs of a node.
        sequence: Norms and residual sums are divided over the GPUs of a tensor-parallel group, too
            ("sequence parallel").
        overlapped: Communication of tensor parallelism is hidden behind products ("async TP").
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    interleaved: int = 1
    context: int = 1
    sharded: Literal["no", "full", "gradients"] = "no"
    gpus_per_node: int = 8
    link: Literal["nvlink", "pcie"] = "nvlink"
    sequence: bool = False
    overlapped: bool = False

    @property
    def gpus(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context


@dataclass(frozen=True)
class TimedStack:
    """A timed training run in declared options, and what was measured.

    Attributes:
        source: Whose measurement it is.
        configuration: The source's own name of the setting, to group by.
        family: One of FAMILIES.
        shape: The model.
        device: Exact name in brimful's hardware catalog.
        micro_batch: Sequences per micro-batch and replica.
        positions: Per sequence, padding included; the mean where lengths vary.
        accumulation: Micro-batches per optimizer step.
        measured_s: Seconds per optimizer step.
        products: Arithmetic of the linear layers: "bf16", "fp16", "tf32", "fp32", "fp8".
        weight_bytes: Per weight as held by the optimizer's owner.
        casts: Weights are converted to the 16-bit type for every micro-batch (autocast over fp32
            weights).
        hidden_bytes: Of an element of the residual stream.
        adapter: None trains every weight.
        quantize: How the frozen linear layers are stored.
        kernels: Fused ones: "norm", "rope", "mlp", "loss", "softmax", "residual".
        recompute: Share of a block's forward pass that is run again in the backward pass.
        attention: "flash1", "flash2", "flash3" (or cuDNN on Hopper), or "scores": the scores are
            written to memory.
        score_passes: Times the scores are read or written in a forward pass where they are.
        optimizer_bytes: Read and written per trained weight by the update.
        optimizer_kernels: Launches of the update per tensor of weights.
        spread: GPUs.
        metrics: Cross-entropies that are computed anew from the logits of every micro-batch, beside
            the loss.
        method: As in the table.
        spec: The step as the rehearsal runs it: its recorded operators take the place of those in
            closed form.
    """

    source: str
    configuration: str
    family: str
    shape: Shape
    device: str
    micro_batch: float
    positions: float
    accumulation: int
    measured_s: float
    method: str
    products: Literal["bf16", "fp16", "tf32", "fp32", "fp8"] = "bf16"
    weight_bytes: int = 2
    casts: bool = False
    hidden_bytes: int = 2
    adapter: Adapter | None = None
    quantize: Literal["no", "nf4", "gptq4"] = "no"
    kernels: frozenset[str] = frozenset()
    recompute: float = 0.0
    attention: Literal["flash1", "flash2", "flash3", "scores"] = "flash2"
    score_passes: float = 6.0
    optimizer_bytes: float = 28.0
    optimizer_kernels: float = 0.02
    spread: Spread = Spread()
    metrics: int = 0
    spec: StepSpec | None = None

    @property
    def tokens(self) -> float:
        """Positions of a micro-batch on one replica."""
        return self.micro_batch * self.positions


def timed(
    row: Mapping[str, str],
    *,
    measured_s: float | None = None,
    tokens_per_s: float | None = None,
    **options: Any,
) -> TimedStack:
    """What a row says in the columns of every source, with the options that its stack has beside or
    in place of these.

    Args:
        measured_s: of a step; None: it follows from `tokens_per_s` of all GPUs, or is in the row.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    columns = {"micro_batch": "micro_batch", "positions": "seq_len", "accumulation": "grad_accum"}
    for name in columns.keys() - options.keys():
        options[name] = int(row[columns[name]])
    if tokens_per_s is not None:
        sequences = options["micro_batch"] * options["accumulation"]
        replicas = options.get("spread", Spread()).data
        measured_s = sequences * options["positions"] * replicas / tokens_per_s
    elif measured_s is None:
        measured_s = float(row["step_time_s"])
    options = {"method": row["method"]} | options
    return TimedStack(source=row["source_repo"], measured_s=measured_s, **options)
