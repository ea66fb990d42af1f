"""What the view of a watched run shows of the monitor's samples. docs/monitor.md has the names."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SensorReadings:
    """Readings of one sample; None where one could not be read."""

    device_utilization: float | None
    device_memory_bytes: float | None
    power_w: float | None
    temperature_c: float | None
    sm_clock_mhz: float | None
    cpu_clock_mhz: float | None
    process_cpu_cores: float | None
    rss_bytes: float | None
    memory_available_bytes: float | None
    process_swap_bytes: float | None
    disk_free_bytes: float | None

    @property
    def clock_mhz(self) -> float | None:
        """The clock of the device, or else of the processor."""
        return self.cpu_clock_mhz if self.sm_clock_mhz is None else self.sm_clock_mhz


@dataclass(frozen=True)
class SensorLimits:
    """Upper limits of the readings on this machine; None where one is not known."""

    device_memory_bytes: float | None = None
    power_limit_w: float | None = None
    cores: float | None = None
