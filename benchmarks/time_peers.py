"""What two other estimators say about the step time of a published run, or that they cannot take
it.

Each peer is asked as its own documentation says, with the settings it offers for the run. What each
one counts was read in the code of the versions pinned in `benchmarks/requirements.txt`.

ftuneai 0.4.1, `TimeEstimator.estimate` (core/time.py)
    6 FLOPs per parameter and token (three quarters of it with adapters), over the data sheet's
    16-bit rate times 0.35 (0.30 for QLoRA), and a factor per GPU for sharding. Leaves out:
    attention, recomputation, micro-batch, kernels, bandwidth. Its table has twelve GPUs. No split
    layers.

llm-analysis 0.2.2, `LLMAnalysis.training` (analysis.py)
    FLOPs of the layers, of attention and of what is recomputed, over the data sheet's 16-bit rate
    times an efficiency that the user gives: 0.5 here, as its README says for training. Leaves out:
    adapters, quantised bases, the update, bubbles. It needs an MLP width that is a multiple of the
    hidden width, and a GPU of its table.
"""

import logging
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from time_stack import TimedStack

PINNED = {"ftuneai": "0.4.1", "llm-analysis": "0.2.2"}
EFFICIENCY = 0.5
SAMPLES = 10_000_000
"""ftuneai rounds to hundredths of an hour, so it is asked about many."""
FTUNE_GPUS = {
    "NVIDIA H200": "H200-141GB",
    "NVIDIA H100 80GB HBM3": "H100-80GB",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA A100-SXM4-40GB": "A100-40GB",
    "NVIDIA L4": "L4-24GB",
    "NVIDIA GeForce RTX 4090": "RTX-4090-24GB",
    "NVIDIA GeForce RTX 3090": "RTX-3090-24GB",
    "Tesla V100-SXM2-16GB": "V100-16GB",
    "Tesla V100-SXM2-32GB": "V100-32GB",
}
ANALYSIS_GPUS = {
    "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA RTX A6000": "a6000-48gb",
    "Tesla V100-SXM2-16GB": "v100-sxm-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm-32gb",
}


def ftuneai(stack: TimedStack) -> float | None:
    """Seconds per step by ftuneai; None where it cannot take the run.

    Raises:
        ImportError: the pinned version is not installed.
    """
    _require("ftuneai")
    from ftuneai.core.models import FineTuneMethod, ModelSpec, ShardingStrategy, TrainingConfig
    from ftuneai.core.time import TimeEstimator
    from ftuneai.loader import get_gpu

    spread, shape = stack.spread, stack.shape
    gpu = FTUNE_GPUS.get(stack.device)
    if gpu is None or spread.gpus != spread.data or stack.products not in ("bf16", "fp16"):
        return None
    method = "full" if stack.adapter is None else "lora" if stack.quantize == "no" else "qlora"
    sharding = {
        "no": ShardingStrategy.NONE,
        "full": ShardingStrategy.FSDP,
        "gradients": ShardingStrategy.FSDP_SHARD_GRAD,
    }[spread.sharded]
    config = TrainingConfig(
        method=FineTuneMethod(method),
        batch_size=1,
        seq_length=round(stack.positions),
        sharding=sharding,
        num_gpus=spread.gpus,
    )
    mixture = (
        {"is_moe": True, "num_experts": shape.experts, "num_active_experts": shape.active}
        if shape.experts > 1
        else {}
    )
    spec = ModelSpec(
        "",
        shape.weights(),
        shape.hidden,
        shape.layers,
        shape.heads,
        shape.groups,
        shape.mlp,
        shape.vocabulary,
        round(stack.positions),
        "bfloat16" if stack.products == "bf16" else "float16",
        **mixture,
    )
    told = TimeEstimator(spec, config).estimate(
        get_gpu(gpu), SAMPLES, 1, spread.gpus, round(stack.positions)
    )
    return (
        float(told.total_hours)
        * 3600
        / SAMPLES
        * stack.micro_batch
        * stack.accumulation
        * spread.data
    )


def llm_analysis(stack: TimedStack) -> float | None:
    """Seconds per step by llm-analysis; None where it cannot take the run.

    Raises:
        ImportError: the pinned version is not installed.
    """
    _require("llm-analysis")
    from llm_analysis.analysis import ActivationRecomputation, LLMAnalysis
    from llm_analysis.config import ModelConfig, ParallelismConfig, get_gpu_config_by_name

    logging.getLogger("llm_analysis").setLevel(logging.CRITICAL)
    logging.disable(logging.WARNING)
    spread, shape = stack.spread, stack.shape
    gpu = ANALYSIS_GPUS.get(stack.device)
    if (
        gpu is None
        or stack.adapter is not None
        or spread.context > 1
        or stack.products not in ("bf16", "fp16")
    ):
        return None
    if stack.recompute not in (0.0, 1.0):
        return None
    try:
        model = ModelConfig(
            "",
            shape.layers,
            shape.heads,
            shape.hidden,
            shape.vocabulary,
            round(stack.positions),
            shape.groups,
            ffn_embed_dim=shape.mlp,
            moe_num_experts=shape.experts,
            moe_top_k=shape.active,
        )
        parallel = ParallelismConfig(spread.tensor, spread.pipeline, spread.data)
        analysis = LLMAnalysis(
            model,
            get_gpu_config_by_name(gpu),
            parallelism_config=parallel,
            flops_efficiency=EFFICIENCY,
        )
        told: Mapping[str, Any] = analysis.training(
            batch_size_per_gpu=round(stack.micro_batch),
            gradient_accumulation_steps=stack.accumulation,
            seq_len=round(stack.positions),
            activation_recomputation=(
                ActivationRecomputation.FULL if stack.recompute else ActivationRecomputation.NONE
            ),
            flash_attn=stack.attention != "scores",
            mlp_gated_linear_units=shape.gated,
        )
    except (AssertionError, ValueError, ZeroDivisionError):
        return None  # its own checks refuse the model
    finally:
        logging.disable(logging.NOTSET)
    return float(told["latency_per_iter"])


PEERS: Mapping[str, Callable[[TimedStack], float | None]] = {
    "ftuneai": ftuneai,
    "llm-analysis": llm_analysis,
}


def _require(name: str) -> None:
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError as missing:
        raise ImportError(f"{name} is not installed: see benchmarks/requirements.txt") from missing
    if installed != PINNED[name]:
        raise ImportError(
            f"{name} {installed} is installed, {PINNED[name]} is meant: see"
            " benchmarks/requirements.txt"
        )
