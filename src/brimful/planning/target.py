"""Memory of a device beside a step's tensors: library workspaces, the context, and the share that a
program can use.
"""

from dataclasses import dataclass, replace

from brimful.base.units import GIB, MIB
from brimful.hardware.device import Device
from brimful.hardware.host import brim_bytes
from brimful.hardware.residuals import NO_RESIDUALS, Residuals

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""4096 KiB x 2 + 16 KiB x 8, torch's default per handle and stream
(aten/native/../cuda/CublasHandlePool.cpp; ESTIMATION of truth: +16.3 MiB).
"""
CUBLAS_WORKSPACE_HOPPER_BYTES = 33_554_432
"""Compute capability 9.0 and, since torch 2.12 (pytorch#175344), 10.0 and later."""
WORKSPACES = 2
"""Number of workspaces: the forward pass and autograd's thread have a handle each."""
CONTEXT_MIB_PER_MULTIPROCESSOR = 3.37
"""Slope over 20 NVIDIA GPUs that ran one program (40 readings of nvidia-smi, residual 24 MiB)."""
CONTEXT_OFFSET_MIB = {(7, 5): 6, (8, 0): 67, (9, 0): 184, (10, 0): 273}
"""Difference of these generations from the slope. Measured: RTX 6000 Ada 426 MiB, H100 609
to 620 MiB (torch 2.10), T4 140.9 MiB (one reading).
"""
CONTEXT_DEFAULT_OFFSET_MIB = -52
CONTEXT_UNCERTAINTY_MIB = {True: 75, False: 250}
"""Largest residual on generations that were measured (True: 8.0 on), and a guess for the others."""
HOST_GROWTH_BYTES = 60 * MIB
"""Memory that a training process allocates after planning, beside tensors, plus or minus as much:
libraries imported late (peft alone 28 MiB, where the data are not known yet), the monitor, and
kernels that the matrix library makes for each shape and keeps (docs/log).
"""
GROWTH_WITH_KERNELS_BYTES = (150 * MIB, 70 * MIB)
"""Expected growth, and by how much it may be more or less, of runs in bf16 whose passes have many
lengths: the matrix library then keeps as many kernels as it may, 256. One takes 0.37 MiB on an EPYC
(mean of a run) and 0.54 to 1.03 MiB on a Xeon with AMX (by product); in fp32 6 KiB.
"""
HOST_USABLE_SHARE = 0.9
"""Share of the free host memory that a run may use, at most all but `host.brim_bytes`; the rest is
left to other programs.
"""
ROOM_SHARE, ROOM_BYTES, MOST_ROOM_SHARE = 0.03, 512 * MIB, 0.1
"""What a plan leaves free on a GPU, where it can: a share of the memory or so many bytes, whichever
is more, but at most the last share (assumption). A driver of another version gives torch up to
0.3 GiB less (hardware/catalog.toml), and a plan is right to about 1 %.
"""
HOST_ROOM_SHARE = 0.01
"""The same elsewhere, where the prediction's interval holds what the allocator may lose."""
COMMUNICATION_BYTES, COMMUNICATION_UNCERTAINTY_BYTES = GIB, 600 * MIB
"""What NCCL takes on each of several GPUs outside torch's allocator, plus or minus (assumption:
reports are of the order of 1 GiB; it grows with the number of channels).
"""
OLDER_TORCH_BELOW, OLDER_COMMUNICATION_BYTES = (2, 9), 2_841 * MIB
"""What it took with older versions: a rank of DDP on an H100 showed 3,451 MiB in all with torch 2.7
and 1,504 to 1,520 with 2.9 and 2.10, each with a context of 610 (public issues; which version of
NCCL changed it is not known).
"""
METAL_SLACK = 0.10
"""Share of the live tensors that Metal's allocator adds (assumption, not measured)."""


@dataclass(frozen=True)
class Target:
    """The memory of a device.

    Attributes:
        kind: "cuda", "mps" or "cpu".
        usable_bytes: What the process can have in all, context and libraries included.
        context_bytes: Driver context and loaded libraries, outside torch's allocator; on a CPU what
            the process holds before the model.
        context_uncertainty_bytes: Plus or minus.
        workspace_bytes: Bytes of each of the WORKSPACES of the matrix library; 0 without any.
        residuals: How much more than predicted earlier runs took here.
        shares_memory: As of the device: a plan that may not fit does not.
    """

    kind: str
    usable_bytes: int
    context_bytes: int = 0
    context_uncertainty_bytes: int = 0
    workspace_bytes: int = 0
    residuals: Residuals = NO_RESIDUALS
    shares_memory: bool = False

    @property
    def torch_bytes(self) -> int:
        """Memory left for torch's allocator."""
        return max(0, self.usable_bytes - self.context_bytes)

    @property
    def room_bytes(self) -> int:
        """Memory that a plan leaves free, where it can."""
        if self.kind != "cuda":
            return int(HOST_ROOM_SHARE * self.usable_bytes)
        room_bytes = max(ROOM_SHARE * self.usable_bytes, ROOM_BYTES)
        return int(min(room_bytes, MOST_ROOM_SHARE * self.usable_bytes))


def target_of(
    device: Device,
    process_bytes: int = 0,
    leave_bytes: int = 0,
    *,
    keeps_kernels: bool = False,
) -> Target:
    """Return workspaces, context and usable memory of a device.

    Args:
        device: A catalog row or this machine. Free memory counts where it was measured.
        process_bytes: Bytes that the process holds before the model exists, on a CPU; they are no
            longer free.
        leave_bytes: Memory to leave to other programs, such as a desktop.
        keeps_kernels: Whether the run computes in bf16 in passes of many lengths, or with experts
            that get ever other numbers of tokens: a CPU's matrix library then keeps a kernel for
            each shape.
    """
    usable_bytes = device.memory_bytes
    if device.free_memory_bytes is not None:
        usable_bytes = device.free_memory_bytes
    usable_bytes = max(0, usable_bytes - leave_bytes)
    if device.kind == "cpu" or (device.shares_memory and device.is_present):
        kept_bytes = max(usable_bytes * (1 - HOST_USABLE_SHARE), brim_bytes(device.memory_bytes))
        usable_bytes = max(0, int(usable_bytes - kept_bytes))
    if device.kind == "cpu":
        growth_bytes, uncertain_bytes = HOST_GROWTH_BYTES, HOST_GROWTH_BYTES
        if keeps_kernels:
            growth_bytes, uncertain_bytes = GROWTH_WITH_KERNELS_BYTES
        if not process_bytes:
            growth_bytes = uncertain_bytes = 0
        return Target(
            "cpu", usable_bytes + process_bytes, process_bytes + growth_bytes, uncertain_bytes
        )
    if device.kind != "cuda":
        return Target(
            device.kind,
            usable_bytes + process_bytes,
            process_bytes,
            shares_memory=device.shares_memory,
        )
    capability = device.compute_capability or (0, 0)
    known = capability >= (8, 0)
    slope_mib = CONTEXT_MIB_PER_MULTIPROCESSOR * (device.multiprocessors or 80)
    context_mib = slope_mib + CONTEXT_OFFSET_MIB.get(capability, CONTEXT_DEFAULT_OFFSET_MIB)
    workspace_bytes = CUBLAS_WORKSPACE_BYTES
    if (9, 0) <= capability < (12, 0):
        workspace_bytes = CUBLAS_WORKSPACE_HOPPER_BYTES
    return Target(
        "cuda",
        usable_bytes,
        round(context_mib * MIB),
        CONTEXT_UNCERTAINTY_MIB[known] * MIB,
        workspace_bytes,
        shares_memory=device.shares_memory,
    )


def with_communication(target: Target, torch_version: tuple[int, ...] | None = None) -> Target:
    """Return the same GPU with what its library for communication takes of it.

    Args:
        torch_version: Its first numbers, of the program that runs; None: of today.
    """
    if target.kind != "cuda":
        return target
    is_older = torch_version is not None and torch_version < OLDER_TORCH_BELOW
    taken_bytes = OLDER_COMMUNICATION_BYTES if is_older else COMMUNICATION_BYTES
    return replace(
        target,
        context_bytes=target.context_bytes + taken_bytes,
        context_uncertainty_bytes=(
            target.context_uncertainty_bytes + COMMUNICATION_UNCERTAINTY_BYTES
        ),
    )
