"""The probe: this CPU for real, CUDA devices through torch's replaced answers."""

import dataclasses
from collections.abc import Callable

import psutil
import pytest
import torch
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DeviceError
from brimful.base.units import GIB
from brimful.hardware import catalog, probe
from brimful.hardware.probe import moved

T4_MEMORY_BYTES = round(14.74 * GIB)
T4 = ("Tesla T4", 14.74, (7, 5))
V100 = ("Tesla V100-SXM2-16GB", 15.77, (7, 0))
A100 = ("NVIDIA A100-SXM4-40GB", 39.5, (8, 0))

FakeCuda = Callable[..., None]

without_mps = pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has MPS")
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")


def test_the_cpu_is_measured() -> None:
    device = probe.probe("cpu")
    assert device.kind == "cpu"
    assert device.name
    assert device.threads is not None
    assert 1 <= device.threads <= (psutil.cpu_count() or 1)
    assert device.free_memory_bytes is not None
    assert 0 < device.free_memory_bytes <= device.memory_bytes <= psutil.virtual_memory().total
    assert (device.index, device.compute_capability, dict(device.dense_flop_per_s)) == (
        None,
        None,
        {},
    )
    assert probe.torch_device(device) == torch.device("cpu")
    assert probe.devices_here()[-1].name == device.name


@without_cuda
@without_mps
def test_auto_is_the_cpu_where_there_is_nothing_else() -> None:
    assert probe.probe("auto").kind == "cpu"


@pytest.fixture
def _built_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)


def test_a_gpu_that_shares_the_systems_memory_has_what_the_system_could_free(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver counts page cache as taken."""
    monkeypatch.setattr(probe.host, "memory_free_bytes", lambda limits: 90 * GIB)
    gb10 = ("NVIDIA GB10", 119.7, (12, 1))

    fake_cuda(gb10, built=("sm_121",), busy_bytes=80 * GIB, integrated=True)
    device = probe.probe("cuda:0")
    assert (device.shares_memory, device.free_memory_bytes) == (True, 90 * GIB)

    fake_cuda(T4)
    assert not probe.probe("cuda:0").shares_memory


@without_cuda
@pytest.mark.usefixtures("_built_for_cpus")
def test_an_absent_device_is_refused_with_what_there_is(refuses: Refuses) -> None:
    with refuses(DeviceError):
        probe.probe("cuda:1")


@without_mps
@pytest.mark.usefixtures("_built_for_cpus")
def test_mps_is_refused_where_there_is_none(refuses: Refuses) -> None:
    with refuses(DeviceError):
        probe.probe("mps")


@pytest.mark.parametrize("choice", ["gpu", "cuda:", "cuda:-1", "cuda:x", ""])
def test_a_choice_that_means_nothing_is_refused(choice: str) -> None:
    with pytest.raises(DeviceError, match="unknown device"):
        probe.probe(choice)


def test_a_known_gpu_gets_the_catalogs_rates_and_its_own_memory(
    fake_cuda: FakeCuda, snapshot: SnapshotAssertion
) -> None:
    fake_cuda(T4, busy_bytes=GIB)
    device = probe.probe("cuda")
    assert (device.index, device.compute_capability, device.multiprocessors) == (0, (7, 5), 10)
    assert device.memory_bytes == T4_MEMORY_BYTES
    assert device.free_memory_bytes == T4_MEMORY_BYTES - GIB
    assert device.flop_per_s("fp16") == 65e12
    assert device.bandwidth_bytes_per_s == 320e9
    assert device.source == snapshot
    assert probe.torch_device(device) == torch.device("cuda", 0)


def test_an_unknown_gpu_gets_abilities_but_no_rates(
    fake_cuda: FakeCuda, snapshot: SnapshotAssertion
) -> None:
    fake_cuda(("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4.75, (8, 0)))
    device = probe.probe("cuda:0")
    assert device.abilities.bf16
    assert dict(device.dense_flop_per_s) == {}
    assert device.bandwidth_bytes_per_s is None
    assert device.source == snapshot


def test_a_card_with_the_same_name_and_another_memory_size_gets_no_rates(
    fake_cuda: FakeCuda,
    snapshot: SnapshotAssertion,
) -> None:
    fake_cuda(("NVIDIA GeForce RTX 3080", 11.76, (8, 6)))
    device = probe.probe("cuda:0")
    assert dict(device.dense_flop_per_s) == {}
    assert device.source == snapshot


def test_auto_takes_the_largest_gpu_and_cuda_the_current_one(fake_cuda: FakeCuda) -> None:
    fake_cuda(T4, A100, A100)
    assert probe.probe("auto").index == 1
    assert probe.probe("cuda").index == 0
    assert probe.probe("cuda:2").index == 2
    assert [device.kind for device in probe.devices_here()[:3]] == ["cuda"] * 3


def test_auto_passes_over_a_gpu_that_torch_has_no_code_for(
    fake_cuda: FakeCuda, refuses: Refuses
) -> None:
    fake_cuda(V100, T4)
    assert probe.probe("auto").name == "Tesla T4"
    with refuses(DeviceError):
        probe.probe("cuda:0")


def test_a_number_beyond_the_last_gpu_is_refused(fake_cuda: FakeCuda, refuses: Refuses) -> None:
    fake_cuda(T4, A100)
    with refuses(DeviceError):
        probe.probe("cuda:2")


def test_a_gpu_that_refuses_is_an_error_to_use_but_not_to_list(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    def refuse(index: int) -> tuple[int, int]:
        raise RuntimeError(
            "CUDA error: all CUDA-capable devices are busy or unavailable\nmore lines"
        )

    fake_cuda(T4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    with refuses(DeviceError):
        probe.probe("auto")
    assert probe.devices_here()[0].free_memory_bytes is None


@pytest.mark.usefixtures("_built_for_cpus")
def test_nothing_runs_on_a_row_of_the_catalog(refuses: Refuses) -> None:
    with refuses(DeviceError):
        probe.torch_device(catalog.get("NVIDIA H200"))


@pytest.mark.parametrize(
    ("name", "built", "runs"),
    [
        ("Tesla V100-SXM2-16GB", ("sm_75", "sm_80", "compute_90"), False),
        ("Tesla V100-SXM2-16GB", ("sm_50", "sm_60", "sm_70"), True),
        ("NVIDIA RTX A6000", ("sm_80",), True),
        ("NVIDIA A100-SXM4-40GB", ("sm_86",), False),
        ("NVIDIA H200", ("sm_80", "compute_80"), True),
        ("NVIDIA H200", ("sm_90a",), True),
        ("NVIDIA B200", ("sm_90a", "compute_90a"), False),
        ("NVIDIA B300 SXM6 AC", ("sm_100f",), True),
        ("NVIDIA GeForce RTX 5090", ("sm_90", "sm_100"), False),
        ("NVIDIA GeForce RTX 5090", ("sm_120",), True),
        ("AMD Instinct MI300X", ("gfx90a", "gfx942:sramecc+"), True),
        ("AMD Instinct MI300X", ("gfx90a",), False),
        ("Apple M1", ("sm_90",), True),
        ("NVIDIA H200", (), True),
    ],
)
def test_code_runs_on_its_own_major_version_and_ptx_on_newer_ones(
    name: str, built: tuple[str, ...], runs: bool
) -> None:
    assert probe.is_built_for(catalog.get(name), built) is runs


def test_amd_devices_are_known_by_architecture(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cuda(
        ("AMD Instinct MI300X", 191.98, (9, 4), "gfx942:sramecc+:xnack-"),
        built=("gfx90a", "gfx942"),
    )
    monkeypatch.setattr(torch.version, "hip", "6.4")
    device = probe.probe("auto")
    assert (device.compute_capability, device.architecture) == (None, "gfx942")
    assert device.abilities.fp8
    assert device.flop_per_s("bf16") == 1307.4e12


def test_an_apple_gpu_is_measured_and_rated_by_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M2 Max")
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 21 * GIB)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 20 * GIB)
    device = probe.probe("mps")
    assert (device.memory_bytes, device.free_memory_bytes, device.bandwidth_bytes_per_s) == (
        21 * GIB,
        GIB,
        400e9,
    )
    assert probe.torch_device(device) == torch.device("mps")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_cuda_device_is_measured() -> None:
    device = probe.probe("cuda:0")
    assert device.compute_capability == torch.cuda.get_device_capability(0)
    assert device.free_memory_bytes is not None
    assert 0 < device.free_memory_bytes <= device.memory_bytes
    assert dataclasses.asdict(device)["name"] == torch.cuda.get_device_name(0)


def test_a_copy_has_the_values_and_the_device() -> None:
    tensor = torch.arange(3)

    assert torch.equal(moved(tensor, torch.device("cpu")), tensor)
    assert moved(tensor, torch.device("meta")).device.type == "meta"
