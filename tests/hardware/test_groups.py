"""Several devices of one kind, as a person writes them."""

import re

import pytest
from fixture_types import Refuses

from brimful.base.errors import DeviceError
from brimful.hardware import catalog
from brimful.hardware.groups import alone_though_asked, family_notes, growing, parse


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("T4", "Tesla T4", 1),
        ("8 x H100 80GB HBM3", "8 x NVIDIA H100 80GB HBM3", 8),
        ("4xH200", "4 x NVIDIA H200", 4),
        ("2 * 8 × b200", "2 x 8 x NVIDIA B200", 16),
        ("1 x T4", "Tesla T4", 1),
    ],
)
def test_a_number_before_a_name_makes_a_group(text: str, name: str, count: int) -> None:
    group = parse(text)

    assert (group.name, group.count) == (name, count)
    assert parse(group.name) == group


def test_more_than_a_machine_holds_is_written_as_machines(refuses: Refuses) -> None:
    with refuses(DeviceError) as refused:
        parse("20 x T4")

    advised = re.findall(r"Write '(.+?)'", str(refused.value))[0]
    assert (parse(advised).machines, parse(advised).per_machine) == (3, 8)


@pytest.mark.parametrize("text", ["T4 x 8", "4090 x 2", "M1 x 1"])
def test_a_number_after_the_name_is_told_to_stand_first(text: str, refuses: Refuses) -> None:
    with refuses(DeviceError) as refused:
        parse(text)

    number, name = re.findall(r"first, '(\d) x (.+?)'", str(refused.value))[0]
    assert parse(f"{number} x {name}").count == int(number)


@pytest.mark.parametrize(
    "text", ["2 x here", "4 x T4 + 4 x L4", "0 x T4", "2 x M3 Max", "2 x no such card"]
)
def test_what_cannot_share_a_job_is_refused(text: str) -> None:
    with pytest.raises(DeviceError):
        parse(text)


@pytest.mark.parametrize("text", ["2 x T4 and 2 x L4", "2 x T4; 4 x L4", "4 x 2 x 8 x L4"])
def test_a_second_number_is_told_to_be_another_job(text: str) -> None:
    with pytest.raises(DeviceError, match="separate them by a comma") as refused:
        parse(text)

    advised = re.findall(r"such as '(.+?) x NAME'", str(refused.value))[0]
    assert parse(f"{advised} x L4").count == 16


def test_each_family_of_devices_is_told_once_whether_alone_or_in_a_group() -> None:
    notes = family_notes(["8 x H100", "T4", "h100 ", "2 x 8 x A100", "H100"])
    assert [note.partition(" is taken for ")[0] for note in notes] == ["H100", "h100", "A100"]


def test_groups_grow_by_powers_of_two_and_then_by_machines() -> None:
    grown = growing(catalog.get("T4"), 20)

    assert [group.count for group in grown] == [1, 2, 4, 8, 16]
    assert grown[-1].machines == 2
    assert [group.count for group in growing(catalog.get("Apple M1"), 8)] == [1]


def test_devices_that_stay_alone_are_named_and_counted() -> None:
    apple = [each for each in map(catalog.get, catalog.names()) if each.kind == "mps"]

    assert alone_though_asked([catalog.get("T4"), apple[0]]) == (
        f"{apple[0].name} cannot share a job with others, so --up-to adds no groups: one is"
        " planned."
    )
    many = alone_though_asked(apple) or ""
    assert many.startswith(f"{apple[0].name}, {apple[1].name}, {apple[2].name} and ")
    assert f"and {len(apple) - 3} more cannot share" in many
    assert alone_though_asked([catalog.get("T4")]) is None


def test_every_gpu_of_the_catalog_says_what_joins_several() -> None:
    devices = [catalog.get(name) for name in catalog.names()]
    links = {each.name: catalog.link_of(each.name) for each in devices if each.kind == "cuda"}

    # A machine holds one of these.
    assert {name for name, link in links.items() if link is None} == {
        "NVIDIA GB10",
        "AMD Radeon 8060S",
    }
    rates = {name: link.bytes_per_s for name, link in links.items() if link is not None}
    assert rates["NVIDIA H200"] > rates["NVIDIA A100-SXM4-80GB"] > rates["Tesla T4"]
