"""Readings of this machine, and of machines that are made up of files."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.base.units import GIB
from brimful.hardware import host, nvml, sensors
from brimful.hardware.device import Device
from brimful.hardware.probe import cpu_device
from brimful.hardware.sensors import (
    Counter,
    Machine,
    PackageEnergy,
    Process,
    Sensors,
    pci_address,
    rapl_packages,
    sensors_of,
)


def read(found: Sensors, seconds: float = 1.0) -> JsonDict:
    values: JsonDict = {}
    for reader in found.readers.values():
        values |= reader(seconds)
    return values


def test_a_cpu_run_reads_process_machine_and_disk(tmp_path: Path) -> None:
    found = sensors_of(cpu_device(), tmp_path)
    first = read(found, 0.0)
    _ = sum(range(300_000))
    second = read(found, 1.0)

    assert first["rss_bytes"] > 10 << 20
    assert "process_cpu_cores" not in first, "a rate needs two looks"
    assert 0 < second["process_cpu_cores"] < 64
    assert 0 < second["memory_available_bytes"] < found.limits["memory_bytes"]
    assert second["disk_free_bytes"] > 0
    assert found.limits["cores"] >= 1
    assert not {"device_utilization", "torch_reserved_bytes", "sm_clock_mhz"} & second.keys()
    for name in ("energy_j", "temperature_c", "cpu_clock_mhz"):
        assert (name in second) != (name in found.absent)


def test_all_cores_are_a_share() -> None:
    machine = Machine(host.ControlGroupLimits())
    machine(0.0)

    assert 0 <= machine(1.0).get("machine_cpu_share", 0.5) <= 1


def packages(root: Path, **energies_uj: int) -> None:
    for number, (name, energy_uj) in enumerate(energies_uj.items()):
        folder = root / f"intel-rapl:{number}"
        folder.mkdir(exist_ok=True)
        (folder / "name").write_text(name.replace("_", "-") + "\n")
        (folder / "energy_uj").write_text(f"{energy_uj}\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")


def test_energy_of_all_packages_is_counted_also_over_the_end_of_a_counter(tmp_path: Path) -> None:
    packages(tmp_path, package_0=9_000_000, package_1=1_000_000, psys=5)
    energy = PackageEnergy(rapl_packages(tmp_path))

    assert energy(0.0) == {"energy_j": 0.0}
    packages(tmp_path, package_0=1_000_000, package_1=2_000_000)  # the first ran over at 10 J
    assert energy(2.0) == {"energy_j": 3.0, "power_w": 1.5}


def test_a_package_under_two_drivers_counts_once_and_unreadable_ones_not(tmp_path: Path) -> None:
    packages(tmp_path, package_0=1)
    (tmp_path / "intel-rapl-mmio:0").mkdir()
    for name in ("name", "energy_uj"):
        (tmp_path / "intel-rapl-mmio:0" / name).write_text(
            (tmp_path / "intel-rapl:0" / name).read_text()
        )
    (tmp_path / "intel-rapl:9").mkdir()

    assert len(rapl_packages(tmp_path)) == 1
    assert rapl_packages(tmp_path / "nothing") == ()


def test_a_counter_begins_with_the_session_and_again_after_the_driver_was_loaded_anew() -> None:
    values = iter([1000.0, 1250.0, 30.0, 40.0])
    counter = Counter(lambda: {"energy_j": next(values)}, "energy_j")

    assert [counter(1.0)["energy_j"] for _ in range(4)] == [0.0, 250.0, 0.0, 10.0]


def test_traffic_to_the_disk_is_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    monkeypatch.setattr(
        process,
        "_process",
        SimpleNamespace(
            memory_info=lambda: SimpleNamespace(rss=5),
            io_counters=iter(
                [
                    SimpleNamespace(read_bytes=0, write_bytes=100),
                    SimpleNamespace(read_bytes=50, write_bytes=300),
                ]
            ).__next__,
        ),
    )

    assert "disk_write_bytes_per_s" not in process(0.0)
    found = process(2.0)
    assert (found["disk_read_bytes_per_s"], found["disk_write_bytes_per_s"]) == (25.0, 100.0)


GPU = dataclasses.replace(
    cpu_device(), name="NVIDIA T4", kind="cuda", index=1, memory_bytes=15 * GIB, threads=None
)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(index: int) -> SimpleNamespace:
        return SimpleNamespace(
            total_memory=15 * GIB,
            uuid=f"uuid-{index}",
            pci_domain_id=0,
            pci_bus_id=59,
            pci_device_id=0,
        )

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    memory = {"allocated_bytes": {"all": {"current": 3}}, "reserved_bytes": {"all": {"current": 4}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda index: memory)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (5 * GIB, 15 * GIB))


def test_a_gpu_is_known_to_the_driver_by_what_torch_says_of_it(
    two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def find_device(uuid: str, address: str | None) -> nvml.NvmlDevice:
        asked.append((uuid, address))
        queries = {"power_w": lambda: {"power_w": 70.0}, "energy_j": lambda: {"energy_j": 9.0}}
        return nvml.NvmlDevice(
            queries,
            {"uuid": "GPU-uuid-1"},
            {"power_limit_w": 70.0},
            {"temperature_c": "Not Supported"},
        )

    monkeypatch.setattr(nvml, "find_device", find_device)
    found = sensors_of(GPU, tmp_path)
    values = read(found)

    assert asked == [("uuid-1", "0000:3B:00.0")]
    assert (values["power_w"], values["energy_j"]) == (70.0, 0.0)
    assert (values["torch_allocated_bytes"], values["torch_reserved_bytes"]) == (3, 4)
    assert found.device == {"kind": "cuda", "name": "NVIDIA T4", "uuid": "GPU-uuid-1"}
    assert (found.limits["power_limit_w"], found.limits["device_memory_bytes"]) == (70.0, 15 * GIB)
    assert found.absent == {"temperature_c": "Not Supported"}


def test_a_gpu_without_nvml_still_tells_its_memory(
    two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(uuid: str, address: str | None) -> nvml.NvmlDevice:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(nvml, "find_device", refuse)
    found = sensors_of(GPU, tmp_path)

    assert read(found)["device_memory_bytes"] == 10 * GIB
    assert found.absent == {"NVML": "NVML Shared Library Not Found"}


def test_a_torch_that_tells_no_address_has_none() -> None:
    assert pci_address(SimpleNamespace(uuid="u")) is None


def test_an_apple_gpu_tells_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 3)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 7)
    apple: Device = dataclasses.replace(GPU, name="Apple M2", kind="mps", index=None)
    values = read(sensors_of(apple, tmp_path))

    assert [
        values[f"{name}_bytes"] for name in ("torch_allocated", "torch_reserved", "device_memory")
    ] == [3, 7, 7]


def test_sensors_of_a_cpu_are_those_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chips = {
        "nvme": [SimpleNamespace(current=80.0)],
        "coretemp": [SimpleNamespace(current=51.0), SimpleNamespace(current=64.0)],
    }
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: chips, raising=False)
    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)

    assert sensors._cpu_temperature(1.0) == {"temperature_c": 64.0}
    assert sensors._cpu_clock(1.0) == {}


def failing(*_: Any, **__: Any) -> Any:
    raise TypeError("an answer of another kind")


def test_a_sensor_that_raises_while_it_is_looked_for_is_named_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = cpu_device()
    monkeypatch.setattr(psutil, "cpu_freq", failing)
    monkeypatch.setattr(psutil, "sensors_temperatures", failing, raising=False)
    monkeypatch.setattr(sensors, "rapl_packages", failing)
    monkeypatch.setattr(sensors, "Process", failing)
    monkeypatch.setattr(host, "control_group_limits", failing)
    found = sensors_of(device, tmp_path)

    assert found.absent == dict.fromkeys(
        ("energy_j", "cpu_clock_mhz", "temperature_c", "process", "machine"),
        "TypeError: an answer of another kind",
    )
    assert read(found).keys() == {"disk_free_bytes"}


def test_a_gpu_that_fails_while_it_is_looked_for_is_named_and_the_machine_is_read(
    two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(nvml, "find_device", failing)
    found = sensors_of(GPU, tmp_path)
    assert found.absent == snapshot
    assert {"device_memory_bytes", "rss_bytes"} < read(found).keys()

    monkeypatch.setattr(torch.cuda, "get_device_properties", failing)
    found = sensors_of(GPU, tmp_path)
    assert found.absent == snapshot
    assert {"rss_bytes", "disk_free_bytes"} < read(found).keys()
