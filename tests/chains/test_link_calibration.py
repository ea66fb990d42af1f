"""Links are measured by processes that add up tensors, here two that share the processor."""

from fixture_types import Refuses

from brimful.base.errors import DeviceError
from brimful.chains.link_calibration import measure_links
from brimful.hardware import links
from brimful.hardware.probe import probe


def test_two_processes_measure_what_they_exchange() -> None:
    link = measure_links(probe("cpu"), 2, large_bytes=2**20)

    assert (link.devices, link.backend, link.device) == (2, "gloo", probe("cpu").name)
    assert link.bytes_per_s > 0
    assert link.latency_s > 0
    links.save(link)
    assert links.measured(link.device) == link


def test_one_device_has_no_link(refuses: Refuses) -> None:
    with refuses(DeviceError, names=["--devices 2"]):
        measure_links(probe("cpu"), 1)
