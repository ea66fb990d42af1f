"""NVML at its boundary: a library of C functions that write through pointers, as the driver's does,
and the real one where there is a GPU.
"""

import subprocess
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
import torch

from brimful.base.types import JsonDict
from brimful.hardware.nvml import find_device, reasons_in_words

UUID = "GPU-6e5a1c2b-0000-0000-0000-00000000c0de"
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


class FakeNvml:
    """Functions of libnvidia-ml by their C names; those that are not set do not exist in this
    driver.
    """

    def __init__(self) -> None:
        self.handles: list[str] = []
        self.nvmlInitWithFlags = lambda flags: 0
        self.nvmlDeviceGetHandleByUUID = self._by_uuid
        self.nvmlDeviceGetUUID = lambda handle, text, size: self._set(text, "value", UUID.encode())
        self.nvmlSystemGetDriverVersion = lambda text, size: self._set(text, "value", b"580.1")
        self.nvmlDeviceGetUtilizationRates = lambda handle, rates: self._write(
            rates, gpu=87, memory=41
        )
        self.nvmlDeviceGetMemoryInfo_v2 = lambda handle, memory: self._write(
            memory, total=80 << 30, used=30 << 30
        )
        self.nvmlDeviceGetMemoryInfo = lambda handle, memory: self._write(
            memory, total=80 << 30, used=31 << 30
        )
        self.nvmlDeviceGetPowerUsage = self._number(312_500)
        self.nvmlDeviceGetTotalEnergyConsumption = self._number(5_000_000)
        self.nvmlDeviceGetTemperature = lambda handle, sensor, degrees: self._write(
            degrees, value=64
        )
        self.nvmlDeviceGetClockInfo = lambda handle, kind, clock: self._write(
            clock, value={1: 1410, 2: 1593}[kind.value]
        )
        self.nvmlDeviceGetCurrentClocksEventReasons = self._number(
            pynvml.nvmlClocksEventReasonSwPowerCap
        )
        self.nvmlDeviceGetEnforcedPowerLimit = self._number(400_000)
        self.nvmlDeviceGetTemperatureThreshold = lambda handle, which, degrees: self._write(
            degrees, value=90
        )

    def _by_uuid(self, name: Any, handle: Any) -> int:
        self.handles.append(name.value.decode())
        return 0 if name.value.decode() == UUID else pynvml.NVML_ERROR_NOT_FOUND

    def _number(self, value: int) -> Callable[..., int]:
        return lambda handle, target: self._write(target, value=value)

    @staticmethod
    def _set(target: Any, name: str, value: Any) -> int:
        setattr(target, name, value)
        return 0

    @staticmethod
    def _write(pointer: Any, **values: int) -> int:
        for name, value in values.items():
            setattr(pointer._obj, name, value)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return fake


def readings(uuid: str = UUID) -> JsonDict:
    found: JsonDict = {}
    for query in find_device(uuid).queries.values():
        found |= query()
    return found


def test_every_figure_comes_in_our_units(driver: FakeNvml) -> None:
    assert readings() == {
        "device_utilization": 0.87,
        "memory_access_utilization": 0.41,
        "device_memory_bytes": 30 << 30,
        "power_w": 312.5,
        "energy_j": 5000.0,
        "temperature_c": 64,
        "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1593,
        "throttle_reasons": ("power cap",),
    }
    found = find_device(UUID)
    assert found.facts == {"uuid": UUID, "driver": "580.1"}
    assert found.limits == {
        "power_limit_w": 400.0,
        "device_memory_bytes": 80 << 30,
        "temperature_limit_c": 90,
    }
    assert found.absent == {}


def test_torchs_uuid_finds_the_device_whatever_its_number_is(driver: FakeNvml) -> None:
    find_device(UUID.removeprefix("GPU-"))

    assert driver.handles == [UUID]


def test_a_uuid_that_the_driver_does_not_know_leaves_the_pci_address(driver: FakeNvml) -> None:
    asked = []
    driver.nvmlDeviceGetHandleByPciBusId_v2 = lambda address, handle: (
        asked.append(address.value) or 0
    )  # type: ignore[attr-defined]

    find_device("other", "0000:3B:00.0")

    assert driver.handles == ["GPU-other", "MIG-other"]
    assert asked == [b"0000:3B:00.0"]
    with pytest.raises(pynvml.NVMLError):
        find_device("other")


def test_what_a_gpu_does_not_answer_is_absent_and_said(driver: FakeNvml) -> None:
    driver.nvmlDeviceGetTotalEnergyConsumption = lambda handle, target: NOT_SUPPORTED
    driver.nvmlDeviceGetUtilizationRates = lambda handle, rates: NOT_SUPPORTED
    driver.nvmlDeviceGetEnforcedPowerLimit = lambda handle, target: NOT_SUPPORTED
    found = find_device(UUID)

    assert found.absent == {"device_utilization": "Not Supported", "energy_j": "Not Supported"}
    assert "power_limit_w" not in found.limits
    assert not {"device_utilization", "energy_j"} & readings().keys()


def test_an_answer_that_the_binding_cannot_read_costs_only_its_own_reading(
    driver: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.nvmlDeviceGetUtilizationRates = lambda handle, rates: 1 // 0
    driver.nvmlDeviceGetEnforcedPowerLimit = lambda handle, target: 1 // 0
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption")
    found = find_device(UUID)

    assert found.absent.keys() == {"device_utilization", "energy_j"}
    assert found.queries.keys() == {
        "device_memory_bytes",
        "power_w",
        "temperature_c",
        "sm_clock_mhz",
        "memory_clock_mhz",
        "throttled_s",
    }
    assert "power_limit_w" not in found.limits


def test_older_drivers_are_asked_under_older_names(driver: FakeNvml) -> None:
    del driver.nvmlDeviceGetMemoryInfo_v2, driver.nvmlDeviceGetCurrentClocksEventReasons
    driver.nvmlDeviceGetCurrentClocksThrottleReasons = FakeNvml()._number(0)  # type: ignore[attr-defined]

    assert readings()["device_memory_bytes"] == 31 << 30
    assert readings()["throttle_reasons"] == ()


def test_without_a_driver_there_is_an_error_of_nvmls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(
        pynvml, "CDLL", lambda name: (_ for _ in ()).throw(OSError("no such library"))
    )

    with pytest.raises(pynvml.NVMLError):
        find_device(UUID)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, ()),
        (1 | 2 | 0x100, ()),
        (4, ("power cap",)),
        (8, ("hardware slowdown",)),
        (8 | 0x40, ("thermal (hardware)",)),
        (0x80, ("power brake",)),
        (4 | 0x20, ("power cap", "thermal (software)")),
        (0x10, ("sync boost",)),
    ],
)
def test_idle_and_user_set_clocks_are_no_throttling(bits: int, words: tuple[str, ...]) -> None:
    assert reasons_in_words(bits) == words


@pytest.mark.gpu
def test_figures_agree_with_nvidia_smi() -> None:
    """Both ask one driver, a moment apart: constants are equal, memory and temperature nearly, the
    rest plausible.
    """
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    held = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    fields = "uuid,driver_version,memory.total,memory.used,temperature.gpu,power.draw,power.limit,utilization.gpu"
    told = subprocess.run(
        [
            "nvidia-smi",
            f"--id=GPU-{uuid}",
            f"--query-gpu={fields}",
            "--format=csv,noheader,nounits",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    smi = dict(zip(fields.split(","), (word.strip() for word in told.split(",")), strict=True))
    device, seen = find_device(uuid), readings(uuid)

    assert device.facts == {"uuid": smi["uuid"], "driver": smi["driver_version"]}
    assert device.limits["device_memory_bytes"] / 2**20 == pytest.approx(
        float(smi["memory.total"]), abs=1
    )
    assert seen["device_memory_bytes"] / 2**20 == pytest.approx(float(smi["memory.used"]), abs=64)
    assert seen["temperature_c"] == pytest.approx(float(smi["temperature.gpu"]), abs=5)
    assert device.limits["power_limit_w"] == pytest.approx(float(smi["power.limit"]), abs=1)
    assert 0 < seen["power_w"] < 1.2 * device.limits["power_limit_w"]
    assert 0 <= seen["device_utilization"] <= 1
    assert seen["device_memory_bytes"] >= held.nbytes
