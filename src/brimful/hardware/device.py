"""Device: one accelerator (or the CPU) as a plain value. Imports no torch, so that a plan for any
device needs none.

Abilities follow from the compute capability (NVIDIA), the gfx architecture (AMD) or the kind, never
from a name.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, Self

from brimful.base.discover import did_you_mean
from brimful.base.errors import DeviceError
from brimful.base.types import JsonDict, Numbers

Kind = Literal["cuda", "mps", "cpu"]
KINDS: tuple[Kind, ...] = ("cuda", "mps", "cpu")
DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""Arithmetic of a matrix product that a rate can be given for. `cuda` includes AMD devices, as in
torch.
"""


@dataclasses.dataclass(frozen=True)
class Abilities:
    """What a device does in hardware, at a speed that makes it worth doing.

    Attributes:
        bf16: Native bfloat16 matrix products. A False here does not forbid bf16, it says that it is
            emulated or unproven.
        fp16: float16 matrix units. Training in fp16 needs loss scaling.
        tf32: TensorFloat-32 for matrix products of fp32 tensors.
        flash_attention: A fused attention kernel of scaled_dot_product_attention with linear
            memory, written for the device generation. Older CUDA devices still have the
            memory-efficient kernel, which is linear in memory too.
        fp8: 8-bit floating-point matrix units.
        compile: torch.compile can generate code (Triton on GPUs, a C++ compiler on CPUs).
    """

    bf16: bool = False
    fp16: bool = False
    tf32: bool = False
    flash_attention: bool = False
    fp8: bool = False
    compile: bool = False


AMD_ABILITIES: Mapping[str, Abilities] = {
    "gfx908": Abilities(bf16=True, fp16=True, compile=True),
    "gfx90a": Abilities(bf16=True, fp16=True, flash_attention=True, compile=True),
    "gfx942": Abilities(
        bf16=True, fp16=True, tf32=True, flash_attention=True, fp8=True, compile=True
    ),
    "gfx950": Abilities(bf16=True, fp16=True, flash_attention=True, fp8=True, compile=True),
    "gfx1100": Abilities(bf16=True, fp16=True, compile=True),
    "gfx1151": Abilities(bf16=True, fp16=True, compile=True),
    "gfx1201": Abilities(bf16=True, fp16=True, compile=True),
}
"""ROCm: which architectures AOTriton's flash kernels are released for (gfx11 and gfx12
experimental, so not counted).
"""


def abilities_of(
    kind: Kind, compute_capability: tuple[int, int] | None, architecture: str | None = None
) -> Abilities:
    """What follows from the kind and generation of a device.

    Thresholds are those of the CUDA programming guide's table of arithmetic per compute capability,
    of torch's flash kernel (8.0 on) and of Triton (7.0 on). An unknown GPU generation gets no
    ability at all: nothing is promised that is not known. For the CPU, instruction set and compiler
    decide bf16 and compile; the probe of the machine fills those two in.

    Args:
        kind: "cuda", "mps" or "cpu".
        compute_capability: NVIDIA's (major, minor), None for everything else.
        architecture: AMD's gfx name, such as "gfx942".
    """
    if kind == "cpu":
        return Abilities(flash_attention=True)
    if kind == "mps":
        return Abilities(bf16=True, fp16=True)
    if architecture is not None:
        return AMD_ABILITIES.get(architecture, Abilities())
    if compute_capability is None:
        return Abilities()
    ampere = compute_capability >= (8, 0)
    volta = compute_capability >= (7, 0)
    return Abilities(
        bf16=ampere,
        fp16=volta,
        tf32=ampere,
        flash_attention=ampere,
        fp8=compute_capability >= (8, 9),
        compile=volta,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """One device, known from the catalog or measured.

    Attributes:
        name: Exact name, as the driver reports it.
        kind: torch's device type; AMD GPUs are "cuda" too.
        index: Number of a CUDA device on this machine; None for catalog rows and devices without
            numbers.
        memory_bytes: All the memory a program can have when nothing else runs.
        free_memory_bytes: Measured just now; None for catalog rows.
        bandwidth_bytes_per_s: Memory bandwidth; None where unknown.
        dense_flop_per_s: Peak of dense matrix products per dtype of DTYPES; only known ones.
        compute_capability: NVIDIA's (major, minor), else None.
        abilities: See Abilities.
        threads: CPU threads to compute with; None for GPUs.
        source: Where the values come from.
        uncertain: Which values the source doubts, in words.
        architecture: AMD's gfx name, else None.
        multiprocessors: Streaming multiprocessors or compute units; None where unknown.
        shares_memory: A GPU whose memory is the system's: what is allocated beyond it freezes the
            machine instead of failing.

    Raises:
        DeviceError: an unknown kind or dtype, or a value that is not positive and finite.
    """

    name: str
    kind: Kind
    index: int | None = None
    memory_bytes: int
    free_memory_bytes: int | None = None
    bandwidth_bytes_per_s: float | None = None
    dense_flop_per_s: Numbers = dataclasses.field(hash=False, default_factory=dict)
    compute_capability: tuple[int, int] | None = None
    abilities: Abilities
    threads: int | None = None
    source: str
    uncertain: tuple[str, ...] = ()
    architecture: str | None = None
    multiprocessors: int | None = None
    shares_memory: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dense_flop_per_s", dict(self.dense_flop_per_s))
        if self.kind not in KINDS:
            raise DeviceError(
                f"device {self.name!r}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}."
            )
        for dtype in self.dense_flop_per_s:
            _check_dtype(dtype)
        values = {
            f"dense_flop_per_s[{dtype}]": rate for dtype, rate in self.dense_flop_per_s.items()
        }
        values |= {"memory_bytes": self.memory_bytes}
        if self.bandwidth_bytes_per_s is not None:
            values["bandwidth_bytes_per_s"] = self.bandwidth_bytes_per_s
        for key, value in values.items():
            if not (math.isfinite(value) and value > 0):
                raise DeviceError(
                    f"device {self.name!r}: {key} must be positive and finite, got {value}."
                )

    def flop_per_s(self, dtype: str) -> float:
        """Peak rate of dense matrix products in `dtype`.

        Raises:
            DeviceError: not a dtype, or no rate known for it. Another dtype's rate is never given
                instead.
        """
        _check_dtype(dtype)
        if dtype not in self.dense_flop_per_s:
            known = ", ".join(self.dense_flop_per_s) or "none"
            raise DeviceError(
                f"no {dtype} rate is known for {self.name!r} (known: {known}; source:"
                f" {self.source}). Measure it on the machine itself, or choose a precision with a"
                " known rate."
            )
        return self.dense_flop_per_s[dtype]

    @property
    def emulated_flop_per_s(self) -> Numbers:
        """`dense_flop_per_s`, and for a 16-bit type without units the fp32 rate, in which libraries
        then compute it.
        """
        rates = dict(self.dense_flop_per_s)
        if "fp32" in rates:
            rates = {"bf16": rates["fp32"], "fp16": rates["fp32"], **rates}
        return rates

    def with_rates(self, dense_flop_per_s: Numbers, source: str) -> Self:
        """Return the device with these rates in place of the known ones, and their source."""
        return dataclasses.replace(
            self, dense_flop_per_s=dense_flop_per_s, source=f"{self.source}; {source}"
        )

    @property
    def is_present(self) -> bool:
        """Whether this is a device of this machine, not a catalog row."""
        return self.free_memory_bytes is not None

    def to_json(self) -> JsonDict:
        """Return plain values for JSON."""
        return {
            **dataclasses.asdict(self),
            "compute_capability": (
                list(self.compute_capability) if self.compute_capability else None
            ),
            "uncertain": list(self.uncertain),
        }


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise DeviceError(
            f"unknown dtype {dtype!r}{did_you_mean(dtype, DTYPES)} Rates are kept for"
            f" {', '.join(DTYPES)}."
        )
