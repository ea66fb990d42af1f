"""What a person calls a device: the one row it can mean, or all it could."""

import time

import pytest

from brimful.base.errors import DeviceError
from brimful.hardware import catalog
from brimful.hardware.naming import Named, matching, short_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("T4", "Tesla T4"),
        ("nvidia t4", "Tesla T4"),
        ("T4 GPU", "Tesla T4"),
        ("t4 16gb", "Tesla T4"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("RTX 4090 24GB", "NVIDIA GeForce RTX 4090"),
        ("3060", "NVIDIA GeForce RTX 3060"),
        ("3060ti", "NVIDIA GeForce RTX 3060 Ti"),
        ("M3 Max", "Apple M3 Max"),
        ("m3max", "Apple M3 Max"),
        ("M3", "Apple M3"),
        ("H200", "NVIDIA H200"),
        ("h100 sxm", "NVIDIA H100 80GB HBM3"),
        ("h100-nvl", "NVIDIA H100 NVL"),
        ("a100-80-sxm", "NVIDIA A100-SXM4-80GB"),
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("pcie v100 32", "Tesla V100-PCIE-32GB"),
        ("6000 ada", "NVIDIA RTX 6000 Ada Generation"),
        ("MI250X", "AMD Instinct MI250X (per GCD)"),
        ("7900 xtx", "AMD Radeon RX 7900 XTX"),
        ("L4", "NVIDIA L4"),
    ],
)
def test_a_name_that_can_mean_one_device_means_it(text: str, name: str) -> None:
    assert catalog.get(text).name == name


@pytest.mark.parametrize("name", catalog.names())
def test_the_short_name_of_every_row_means_that_row(name: str) -> None:
    short = short_name(name)
    assert catalog.get(short).name == name
    assert " " not in short
    assert "," not in short


@pytest.mark.parametrize(
    "text", ["", " ", "nvidia", "rtx", "16gb", "40", "4090 laptop", "t4 80gb", "h300", "a100 t4"]
)
def test_a_maker_a_size_or_a_word_too_many_mean_no_device(text: str) -> None:
    devices = [Named((name,), 16 if name.endswith("T4") else 80) for name in catalog.names()]
    assert matching(text, devices) == []


@pytest.mark.parametrize(
    "text",
    ["a" * 300, "t4" * 31 + "x", "x" + "-" * 20_000, "t4 " + "9" * 400, f"m3 max {'9' * 5000}gb"],
    ids=["letters", "words", "dashes", "memory", "size"],
)
def test_a_name_made_to_be_slow_is_refused_at_once(text: str) -> None:
    started_s = time.process_time()
    with pytest.raises(DeviceError):
        catalog.get(text)

    assert time.process_time() - started_s < 2
