"""The page of licences is what its command makes, and an audit that asked nobody says so."""

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from audit import NOT_ASKED, PAGE, WEAK, needed, page, verdict

PINS = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8")


def test_the_page_is_what_its_command_makes() -> None:
    pins = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", PINS, re.MULTILINE)
    }
    others = [
        each.name
        for each in needed("brimful")
        if pins.get(canonicalize_name(each.name)) != each.version.partition("+")[0]
    ]
    if others:
        pytest.skip(f"other versions than those of constraints.txt are installed: {others}")
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_package_states_a_licence() -> None:
    rows = PAGE.read_text(encoding="utf-8").splitlines()
    packages = [row.split(" | ") for row in rows if row.startswith("| ")][1:]
    assert len(packages) > 50
    assert [row for row in packages if "not stated" in row[2]] == []


SOUND = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "not found"}
WEAKNESS = {"id": "X-1", "fix_versions": ["2"]}


@pytest.mark.parametrize(
    ("packages", "code"),
    [
        ([], NOT_ASKED),
        ([SOUND], 0),
        ([SOUND, SKIPPED], NOT_ASKED),
        ([{**SOUND, "vulns": [WEAKNESS]}, SKIPPED], WEAK),
    ],
)
def test_what_could_not_be_looked_up_is_no_clean_bill(
    packages: list[dict[str, object]], code: int
) -> None:
    assert verdict(packages)[1] == code


def test_no_jinja_with_known_ways_out_of_its_sandbox_is_admitted() -> None:
    """3.1.6 mended the last of them (CVE-2025-27516)."""
    needs = [Requirement(each) for each in requires("brimful") or ()]
    (jinja,) = [each.specifier for each in needs if each.name == "jinja2" and not each.marker]
    assert "3.1.6" in jinja
    assert not {"3.1.0", "3.1.4", "3.1.5"} & {*jinja.filter(["3.1.0", "3.1.4", "3.1.5"])}
