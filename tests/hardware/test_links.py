"""What was measured between devices is kept by the device's name."""

import pytest

from brimful.hardware import links

LINK = links.MeasuredLink("NVIDIA L4", 2, 11e9, 3e-5, "nccl", "2.13.0", 1.7e9)


def test_a_measurement_is_kept_until_it_is_forgotten() -> None:
    assert links.measured("NVIDIA L4") is None

    links.save(LINK)

    assert links.measured("NVIDIA L4") == LINK
    assert links.measured("NVIDIA T4") is None
    assert "11 GB/s" in LINK.told
    assert links.forget("NVIDIA L4")
    assert not links.forget("NVIDIA L4")
    assert links.measured("NVIDIA L4") is None


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"device": "NVIDIA L4"}'])
def test_a_damaged_file_counts_as_none(damaged: str) -> None:
    links.save(LINK)
    links.path_of("NVIDIA L4").write_text(damaged)

    assert links.measured("NVIDIA L4") is None
