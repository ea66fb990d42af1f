"""The catalog: every row is complete and consistent, and a name finds the one it can mean."""

import math
import re
import tomllib
from importlib import resources

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DeviceError
from brimful.base.types import JsonDict
from brimful.base.units import GIB
from brimful.hardware import catalog
from brimful.hardware.catalog import DRIVER_KEEPS_GIB, DRIVER_KEEPS_SHARE
from brimful.hardware.device import DTYPES
from brimful.hardware.naming import split

CATALOG: dict[str, list[JsonDict]] = tomllib.loads(
    resources.files("brimful.hardware").joinpath("catalog.toml").read_text(encoding="utf-8")
)
ROWS, FAMILIES = CATALOG["accelerator"], CATALOG["family"]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])


@every_row
def test_a_row_becomes_a_device_with_sane_values(row: JsonDict) -> None:
    device = catalog.get(row["name"])
    assert device.name == row["name"]
    assert 4 * GIB < device.memory_bytes < 300 * GIB
    assert device.bandwidth_bytes_per_s is not None
    assert 50e9 < device.bandwidth_bytes_per_s < 10e12
    assert (device.index, device.free_memory_bytes, device.threads) == (None, None, None)
    assert row["source"] in device.source
    assert row["read"] in device.source


@every_row
def test_rates_of_a_row_are_dense_and_ordered(row: JsonDict) -> None:
    rates = catalog.get(row["name"]).dense_flop_per_s
    assert 1e12 < rates["fp32"] < 200e12
    assert all(math.isfinite(rate) and rate <= 5000e12 for rate in rates.values())
    assert rates.get("bf16", 0) <= 2500e12  # twice that would be the rate with sparsity
    if "tf32" in rates:
        assert rates["tf32"] == pytest.approx(rates["bf16"] / 2, rel=0.03)
    if "fp8" in rates:
        assert rates["fp8"] == pytest.approx(2 * rates["bf16"], rel=0.03)
    if "measured_bf16_matmul_tflops" in row:
        assert 0.4 < row["measured_bf16_matmul_tflops"] * 1e12 / rates["bf16"] <= 1


@every_row
def test_a_row_has_rates_only_for_what_its_generation_can_do(row: JsonDict) -> None:
    device = catalog.get(row["name"])
    for dtype in ("bf16", "tf32", "fp8"):
        assert (dtype in device.dense_flop_per_s) == getattr(device.abilities, dtype), dtype
    assert "fp16" in device.dense_flop_per_s or not device.abilities.fp16


@every_row
def test_a_row_says_exactly_one_thing_about_its_generation(row: JsonDict) -> None:
    generation = {"compute_capability", "architecture"} & row.keys()
    assert len(generation) == (0 if row["kind"] == "mps" else 1)
    assert (row["vendor"] == "AMD") == ("architecture" in row)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["read"])


@every_row
def test_a_row_has_no_key_that_nobody_reads_or_explains(row: JsonDict) -> None:
    known = {
        "name",
        "aliases",
        "vendor",
        "kind",
        "compute_capability",
        "architecture",
        "memory_mib",
        "memory_sizes_gib",
        "memory_sizes_source",
        "torch_memory_gib",
        "torch_memory_source",
        "usable_memory_share",
    }
    known |= {
        "bandwidth_gb_per_s",
        "measured_bf16_matmul_tflops",
        "multiprocessors",
        "l2_cache_mb",
        "power_w",
        "link",
        "link_gb_per_s",
    }
    known |= {
        "price_usd_per_hour",
        "price_offers",
        "price_source",
        "source",
        "read",
        "uncertain",
        "note",
    }
    assert row.keys() <= known | {f"dense_{dtype}_tflops" for dtype in DTYPES}


def test_names_and_other_names_are_unique() -> None:
    every_name = [
        name.casefold() for row in ROWS for name in (row["name"], *row.get("aliases", ()))
    ]
    assert len(every_name) == len(set(every_name))
    assert catalog.names() == [row["name"] for row in ROWS]
    assert len(ROWS) >= 99


def test_memory_is_what_torch_reports_where_that_is_known_and_doubted_elsewhere() -> None:
    t4, h200 = catalog.get("Tesla T4"), catalog.get("NVIDIA H200")
    assert t4.memory_bytes == pytest.approx(14.563 * GIB)
    assert not any(doubt.startswith("memory") for doubt in t4.uncertain)
    assert h200.memory_bytes < 143771 * 2**20
    assert any(doubt.startswith("memory") for doubt in h200.uncertain)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("GB10", "NVIDIA GB10"),
        ("dgx spark", "NVIDIA GB10"),
        ("strix halo", "AMD Radeon 8060S"),
        ("M5", "Apple M5"),
        ("m5 max 64gb", "Apple M5 Max 64GB"),
        ("5070", "NVIDIA GeForce RTX 5070"),
        ("5070 Ti", "NVIDIA GeForce RTX 5070 Ti"),
        ("rtx5060", "NVIDIA GeForce RTX 5060"),
        ("RTX 4090 D", "NVIDIA GeForce RTX 4090 D"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("A800", "NVIDIA A800-SXM4-80GB"),
        ("H800", "NVIDIA H800"),
        ("L20", "NVIDIA L20"),
        ("MI350X", "AMD Instinct MI350X"),
        ("9070 xt", "AMD Radeon RX 9070 XT"),
    ],
)
def test_devices_of_2025_and_2026_are_found_as_people_type_them(typed: str, name: str) -> None:
    assert catalog.get(typed).name == name


def test_memory_that_the_system_shares_is_planned_in_part() -> None:
    for name in ("NVIDIA GB10", "AMD Radeon 8060S"):
        assert 90 * GIB < catalog.get(name).memory_bytes < 120 * GIB


def test_a_card_of_24_gb_gives_torch_less_than_24_gib() -> None:
    """The driver keeps 0.3 GiB, so that a plan of 23.7 GiB ends in out of memory."""
    for name, seen_gib in (("RTX 4090", 23.64), ("RTX 3090", 23.70), ("RTX A5000", 23.67)):
        assert catalog.get(name).memory_bytes == pytest.approx(seen_gib * GIB)
    for name in ("TITAN RTX", "RTX 3090 Ti"):
        assert catalog.get(name).memory_bytes < 23.7 * GIB


def test_what_the_driver_keeps_is_close_to_what_it_kept_where_somebody_looked() -> None:
    seen = [row for row in ROWS if row["vendor"] == "NVIDIA" and "torch_memory_gib" in row]
    assert len(seen) >= 20
    for row in seen:
        total_gib = row["memory_mib"] / 1024
        estimate_gib = total_gib - DRIVER_KEEPS_GIB - DRIVER_KEEPS_SHARE * total_gib
        assert -0.36 < estimate_gib - row["torch_memory_gib"] < 0.15, row["name"]


@every_row
def test_a_report_of_what_torch_sees_has_its_address(row: JsonDict) -> None:
    if "torch_memory_source" in row:
        assert row["torch_memory_source"].startswith("https://")
        assert 0.9 < row["torch_memory_gib"] * 1024 / row["memory_mib"] <= 1.001


@every_row
def test_other_sizes_of_memory_have_a_source_and_end_with_the_one_of_the_row(
    row: JsonDict,
) -> None:
    assert ("memory_sizes_gib" in row) == (row["vendor"] == "Apple")
    if row["vendor"] == "Apple":
        assert row["memory_sizes_gib"] == sorted(row["memory_sizes_gib"])
        assert row["memory_sizes_gib"][-1] * 1024 == row["memory_mib"]
        assert row["memory_sizes_source"].startswith("https://")


@pytest.mark.parametrize(
    ("text", "name", "gib"),
    [
        ("M3 Max 48GB", "Apple M3 Max 48GB", 48),
        ("apple m3 max 36 gb", "Apple M3 Max 36GB", 36),
        ("m1-8gb", "Apple M1 8GB", 8),
        ("M3 Max 128GB", "Apple M3 Max", 128),
        ("M4 Pro", "Apple M4 Pro", 64),
    ],
)
def test_an_apple_chip_comes_with_several_sizes_of_memory(text: str, name: str, gib: int) -> None:
    device = catalog.get(text)

    assert device.name == name
    assert device.memory_bytes == pytest.approx(0.65 * gib * GIB)
    assert catalog.find(name) == device
    assert catalog.power_of(name)


def test_a_size_that_a_chip_does_not_come_with_is_refused_with_those_that_it_does(
    refuses: Refuses,
) -> None:
    with refuses(DeviceError, names=["36, 48, 64, 96, 128", "m3-max-36gb"]):
        catalog.get("M3 Max 40GB")
    assert catalog.get("m3-max-36gb").name == "Apple M3 Max 36GB"


def test_other_sizes_have_no_line_of_their_own() -> None:
    assert "Apple M3 Max 48GB" not in catalog.names()


def test_apple_memory_is_the_part_that_metal_recommends(snapshot: SnapshotAssertion) -> None:
    device = catalog.get("Apple M2 Max")
    assert device.memory_bytes == pytest.approx(0.65 * 96 * GIB)
    assert device.uncertain == snapshot


def test_a_t4_has_no_bf16_and_a_v100_no_tf32(refuses: Refuses) -> None:
    t4, v100 = catalog.get("Tesla T4"), catalog.get("Tesla V100-SXM2-16GB")
    assert (t4.abilities.bf16, t4.abilities.fp16, t4.compute_capability) == (False, True, (7, 5))
    assert (v100.abilities.tf32, v100.abilities.flash_attention) == (False, False)
    with refuses(DeviceError):
        t4.flop_per_s("bf16")


def test_well_known_values_are_the_dense_ones() -> None:
    assert catalog.get("NVIDIA A100-SXM4-80GB").flop_per_s("bf16") == 312e12
    assert catalog.get("NVIDIA H100 80GB HBM3").flop_per_s("bf16") == 989e12
    assert catalog.get("NVIDIA L40S").flop_per_s("bf16") == 362e12
    assert catalog.get("NVIDIA A100-SXM4-80GB").bandwidth_bytes_per_s == 2039e9


def test_case_and_listed_other_names_are_understood() -> None:
    assert catalog.get("nvidia h200 ").name == "NVIDIA H200"
    assert catalog.get("NVIDIA GH200 120GB").name == "NVIDIA GH200 480GB"
    assert catalog.find("T4") is None, "what a driver reports is looked up by its exact name"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("nvidia h100 80gb", "NVIDIA H100 80GB HBM3"),
        ("A100", "NVIDIA A100-SXM4-40GB"),
        ("a100-80", "NVIDIA A100-SXM4-80GB"),
        ("A100 PCIe", "NVIDIA A100 80GB PCIe"),
        ("v100", "Tesla V100-SXM2-16GB"),
        ("v100 32", "Tesla V100-SXM2-32GB"),
    ],
)
def test_the_name_of_a_family_means_its_most_common_member_and_a_sentence_says_so(
    text: str, name: str
) -> None:
    note = catalog.family_note(text)
    assert catalog.get(text).name == name
    assert note is not None
    assert note.startswith(f"{text} is taken for {name}: ")
    others = note.partition("Others of that name: ")[2].removesuffix(".").split(", ")
    assert others
    assert all(catalog.get(other).name != name for other in others)
    assert all(catalog.family_note(other) is None for other in [*others, name])


@pytest.mark.parametrize("text", ["T4", "4090", "H200", "M3 Max 48GB", "RTX 6000", "here", "all"])
def test_a_name_of_one_device_or_of_no_family_has_no_such_sentence(text: str) -> None:
    assert catalog.family_note(text) is None


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family["name"])
def test_a_family_has_all_devices_of_its_name_with_reason_and_source(
    family: JsonDict,
) -> None:
    assert family.keys() == {"name", "members", "reason", "source", "read"}
    named = [row["name"] for row in ROWS if family["name"].casefold() in split(row["name"])]
    assert sorted(family["members"]) == sorted(named)
    assert catalog.get(family["name"]).name == family["members"][0]
    assert "https://" in family["source"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", family["read"])


@pytest.mark.parametrize("name", ["RTX 6000", "pcie", "ada"])
def test_an_ambiguous_name_lists_all_it_could_be(name: str, refuses: Refuses) -> None:
    with refuses(DeviceError) as caught:
        catalog.get(name)
    listed = [line.split() for line in str(caught.value).splitlines()[1:]]
    for short, *exact in listed:
        assert catalog.get(short).name == catalog.get(" ".join(exact)).name == " ".join(exact)


def test_a_list_of_candidates_is_not_endless(refuses: Refuses) -> None:
    everything = [{**row, "name": f"NVIDIA X1 {number}00"} for number, row in enumerate(ROWS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "_rows", lambda: tuple(everything))
        catalog._called.cache_clear()
        with refuses(DeviceError, names=["and 87 more"]):
            catalog.get("x1")
    catalog._called.cache_clear()


def test_words_select_rows_by_what_they_can_mean_or_by_parts_of_names() -> None:
    assert catalog.having("") == catalog.names()
    assert catalog.having("t4") == ["Tesla T4"]
    assert "NVIDIA A100-SXM4-80GB" in catalog.having("a1")
    assert len(catalog.having("amd")) == 12
    assert catalog.having("h100 sxm") == ["NVIDIA H100 80GB HBM3"]
    assert catalog.having("typewriter") == []


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H300", ""],
)
def test_an_unknown_name_is_an_error_never_a_neighbour(name: str, refuses: Refuses) -> None:
    assert catalog.find(name) is None
    with refuses(DeviceError):
        catalog.get(name)


def test_a_price_comes_with_its_source_or_not_at_all() -> None:
    price = catalog.price_of("NVIDIA A100-PCIE-40GB")
    assert price is not None
    assert (price.usd_per_hour, price.read) == (1.29, "2026-11-21")
    assert price.offers == "0.79 spot / 1.29"
    assert price.source
    assert catalog.price_of("Apple M1") is None
    priced = [found for name in catalog.names() if (found := catalog.price_of(name))]
    assert len(priced) > 20
    assert all(0 <= found.usd_per_hour < 20 and found.source for found in priced)


def test_power_is_the_limit_of_the_board_and_unknown_elsewhere() -> None:
    assert catalog.power_of("tesla t4") == 70
    assert catalog.power_of("NVIDIA H100 80GB HBM3") == 700
    assert catalog.power_of("a CPU") is None
    assert all((catalog.power_of(name) or 1) < 2000 for name in catalog.names())
