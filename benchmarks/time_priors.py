"""What is believed of the parameters of `time_model` before the table is seen: literature, data
sheets, and assumptions that say so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from time_stack import FAMILIES


@dataclass(frozen=True)
class Prior:
    """What is believed of a parameter before the table is seen.

    Attributes:
        guess: Its value.
        width: Standard deviation of its logarithm.
        source: Why.
    """

    guess: float
    width: float
    source: str


_MAMF = "best measured bf16 product over data sheet, stas00/ml-engineering (ESTIMATION.md 4)"
_FA2 = "Dao 2023, FlashAttention-2, figures 4 to 6"
_FA3 = "Shah et al. 2024, FlashAttention-3, figure 5"
PRIORS: Mapping[str, Prior] = {
    "matrix 7.0": Prior(0.80, 0.10, "assumption, as 8.0"),
    "matrix 7.5": Prior(0.75, 0.10, "assumption, below 7.0: the T4 is held back by its power"),
    "matrix 10.0": Prior(0.78, 0.05, _MAMF),
    "matrix 8.0": Prior(0.87, 0.05, _MAMF),
    "matrix 8.6": Prior(0.85, 0.10, "assumption, as 8.0"),
    "matrix 8.9": Prior(0.85, 0.10, "assumption, as 8.0"),
    "matrix 9.0": Prior(0.80, 0.05, _MAMF),
    "matrix 12.0": Prior(0.85, 0.10, "assumption, as 8.0"),
    "geforce": Prior(
        1.10,
        0.10,
        "GeForce boards clock above the boost clock that their data sheet's rate is for;"
        " assumption",
    ),
    "fp32": Prior(0.90, 0.10, "large fp32 products, assumption"),
    "fp8": Prior(
        0.73, 0.15, "H200 fp8 1,453 of 1,979 TFLOP/s, stas00/ml-engineering (PERFORMANCE.md 4)"
    ),
    "batched": Prior(0.55, 0.25, "small products of attention without a fused kernel; assumption"),
    "attention 7": Prior(0.30, 0.20, "memory-efficient kernel; assumption"),
    "attention": Prior(0.60, 0.15, _FA2),
    "attention 9.0": Prior(0.37, 0.15, _FA2 + ", on H100"),
    "attention flash1": Prior(
        0.35, 0.15, _FA2 + ": the first version reaches 25 to 40 % of an A100"
    ),
    "attention cudnn": Prior(0.60, 0.15, _FA3),
    "attention backward": Prior(0.80, 0.15, _FA2 + ": backward over forward"),
    "bandwidth": Prior(
        0.82, 0.10, "STREAM-like kernels reach 80 to 92 % on NVIDIA GPUs; assumption"
    ),
    "cached": Prior(3.0, 0.20, "L2 over memory bandwidth: 2.3 to 5 by generation; assumption"),
    "optimizer": Prior(0.90, 0.15, "of the bandwidth of other element-wise kernels; assumption"),
    "dequantise": Prior(
        0.40, 0.30, "bitsandbytes and AutoGPTQ kernels are bound by arithmetic; assumption"
    ),
    "picojoule 7.0": Prior(2.4, 0.30, "12 nm; assumption"),
    "picojoule 7.5": Prior(2.4, 0.30, "12 nm; assumption: a T4 holds some 28 TFLOP/s at 70 W"),
    "picojoule 10.0": Prior(0.5, 0.30, "4 nm; assumption"),
    "picojoule 8.0": Prior(
        1.1,
        0.30,
        "board power over the rate that a board of this process can hold: 7 nm; assumption",
    ),
    "picojoule 8.6": Prior(1.7, 0.30, "8 nm; assumption"),
    "picojoule 8.9": Prior(1.3, 0.30, "5 nm; assumption"),
    "picojoule 9.0": Prior(0.7, 0.30, "4 nm; assumption"),
    "picojoule 12.0": Prior(1.2, 0.30, "4 nm; assumption"),
    "launch": Prior(2.5e-6, 0.25, "an empty kernel in a stream; assumption"),
    "host eager": Prior(
        7e-6, 0.25, "PyTorch's eager dispatch with autograd on server CPUs; assumption"
    ),
    "host compiled": Prior(3e-6, 0.40, "Inductor's generated launcher; assumption"),
    "host megatron": Prior(
        40e-6,
        0.50,
        "eager dispatch, and random states that are saved, switched and restored around every"
        " dropout and block; assumption",
    ),
    "host unit": Prior(1e-3, 0.50, "FSDP: one gathered unit, hooks and copies; assumption"),
    "nvlink": Prior(
        0.75, 0.15, "NCCL's bus bandwidth over the data sheet (235 of 300 GB/s on A100); NCCL tests"
    ),
    "node": Prior(0.70, 0.20, "of the network of a node; assumption"),
    "node ring": Prior(
        50e9,
        0.50,
        "tensor parallelism over two nodes: one direction of a ring over their network; assumption",
    ),
    "pcie": Prior(8e9, 0.50, "between consumer GPUs through the host; assumption"),
    "exposed": Prior(
        0.30, 0.40, "share of a gather that no product hides, or that slows products; assumption"
    ),
    "exposed eager": Prior(
        1.00, 0.40, "the same without prefetching, the default of transformers' Trainer; assumption"
    ),
    "step": Prior(
        0.008, 0.40, "what a program does once per step: data, logging, schedule; assumption"
    ),
    **{
        f"stack {name}": Prior(1.0, 0.10, "other programs than ours; assumption")
        for name in FAMILIES
        if name not in ("eager", "compiled")
    },
}
