"""Which versions were tried, which installed libraries do not fit each other, and what to type."""

import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import pytest
from fixture_types import Refuses
from packaging.requirements import Requirement
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import LibraryError
from brimful.base.libraries import (
    _required_by,
    how_to_install,
    installed_version,
    misfits,
    refuse_unfit_adapters,
    untried,
    version_of,
)

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: Mapping[str, list[str]] = PROJECT["optional-dependencies"]
TRIED = {Requirement(each).name: Requirement(each) for each in EXTRAS["tried"]}
NEEDED = {Requirement(each).name: Requirement(each) for each in PROJECT["dependencies"]}

Installed = Callable[..., None]


@pytest.fixture(autouse=True)
def _metadata_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.base.libraries._required_by", _required_by.__wrapped__)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Lets metadata say that a version of a library is installed, which needs others."""
    monkeypatch.syspath_prepend(tmp_path)
    version_of.cache_clear()
    monkeypatch.setattr("brimful.base.libraries.version_of", version_of.__wrapped__)

    def install(name: str, version: str, *needs: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {each}" for each in needs]
        (folder / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")

    return install


@pytest.fixture
def brimful_here(installed: Installed) -> None:
    """brimful, as pyproject.toml has it; an editable one may be older."""
    extras = [f'{each}; extra == "{name}"' for name in EXTRAS for each in EXTRAS[name]]
    installed("brimful", "0.1.0", *PROJECT["dependencies"], *extras)


def with_peft_in_transformers(folder: Path, wanted: str) -> None:
    table = folder / "transformers" / "dependency_versions_table.py"
    table.parent.mkdir(exist_ok=True)
    table.write_text(f'deps = {{\n    "peft": "peft{wanted}",\n}}\n', encoding="utf-8")


@pytest.mark.usefixtures("brimful_here")
@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_is_named_with_its_packages(extra: str) -> None:
    told = how_to_install(extra)
    assert f"extra {extra}," in told
    wanted = map(Requirement, shlex.split(told.partition("pip install ")[2]))
    assert [*map(str, wanted)] == [str(Requirement(each)) for each in EXTRAS[extra]]


def test_without_metadata_the_extra_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert how_to_install("studio") == "It comes with brimful's extra studio."


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_what_is_tested_with_is_what_is_declared(extra: str) -> None:
    """CI's versions are in the ranges, and what was tried is a part of what is allowed."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(each.split("==") for each in lines if "==" in each and not each.startswith("#"))
    pinned = {name.lower(): version for name, version in pinned.items()}
    for requirement in map(Requirement, EXTRAS.get(extra, PROJECT["dependencies"])):
        version = pinned.get(requirement.name.lower())
        assert version is None or version in requirement.specifier, requirement
    for name, tried in TRIED.items():
        lower = {each for each in tried.specifier if each.operator == ">="}
        assert lower <= set(NEEDED[name].specifier)


@pytest.mark.usefixtures("brimful_here")
def test_a_version_outside_of_what_was_tried_is_named_with_the_range(installed: Installed) -> None:
    installed("torch", "2.99.0+cu140")
    installed("transformers", "5.24.0")
    installed("numpy", "2.2.1")
    told = [each for each in untried() if each.split()[0] in {"torch", "transformers", "numpy"}]
    assert told == [
        "torch 2.99.0+cu140 is none of the versions tried with brimful: torch>=2.11,<2.16",
        "transformers 5.24.0 is none of the versions tried with brimful: transformers>=5.17,<5.24",
    ]


@pytest.mark.usefixtures("brimful_here")
def test_a_peft_that_transformers_does_not_take_is_refused(
    tmp_path: Path, installed: Installed, refuses: Refuses
) -> None:
    installed("transformers", "5.24.0", "tokenizers<0.24,>=0.23.1", "numpy>=1.17")
    installed("peft", "0.21.2", "transformers")
    with_peft_in_transformers(tmp_path, ">=0.20.0")
    refuse_unfit_adapters()
    with_peft_in_transformers(tmp_path, ">=0.22.0")
    with refuses(LibraryError, names=["transformers 5.24.0", "peft>=0.22.0", "peft 0.21.2"]):
        refuse_unfit_adapters()


@pytest.mark.usefixtures("brimful_here")
def test_libraries_that_need_other_versions_are_named_with_what_to_type(
    installed: Installed,
) -> None:
    installed("transformers", "5.23.0", "tokenizers<0.24,>=0.23.1", "missing-library>=2")
    installed("tokenizers", "0.22.2")
    assert [sentence for _, sentence in misfits("transformers")] == [
        "transformers 5.23.0 needs tokenizers>=0.23.1,<0.24, and tokenizers 0.22.2 is installed."
        " Install versions that fit each other: pip install 'transformers>=5.17,<5.24'"
        " 'tokenizers>=0.23.1,<0.24'",
        "transformers 5.23.0 needs missing-library>=2, and it is not installed. Install versions"
        " that fit each other: pip install 'transformers>=5.17,<5.24' 'missing-library>=2'",
    ]
    installed("numpy", "1.26.4")
    told = dict(misfits("brimful"))
    assert told["numpy"].endswith("fit each other: pip install 'numpy>=2.1,<3'")


def brimful_with(folder: Path, *words: str) -> str:
    """What a command says that ends with exit code 2, where metadata of a folder come first."""
    done = subprocess.run(
        [sys.executable, "-m", "brimful", *words],
        env=os.environ | {"PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.usefixtures("brimful_here")
def test_tuning_adapters_is_refused_before_data_are_looked_at(
    tmp_path: Path, installed: Installed, snapshot: SnapshotAssertion
) -> None:
    installed("transformers", "5.24.0", "tokenizers<0.24,>=0.23.1")
    installed("peft", "0.21.2", "transformers")
    with_peft_in_transformers(tmp_path, ">=0.22.0")
    assert brimful_with(tmp_path, "train", "lora", "data.path=absent.jsonl") == snapshot


@pytest.mark.usefixtures("brimful_here")
def test_a_library_that_refuses_another_one_ends_in_a_sentence(
    tmp_path: Path, installed: Installed
) -> None:
    """transformers looks for its tokenizers when it is imported, and raises ImportError."""
    installed("tokenizers", "0.22.2")
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 99, encoding="utf-8")
    told = brimful_with(tmp_path, "train", "tiny-gpt", "data.path=text.txt")
    assert told.startswith(f"brimful: transformers {version_of('transformers')} needs tokenizers>=")
    assert told.endswith("'tokenizers>=0.23.1,<0.24'\n")
    assert told.count("\n") == 1


def test_what_is_installed_here_fits_each_other() -> None:
    assert not [name for name, _ in misfits("torch", "transformers", "peft", "datasets")]


def test_the_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_version() == metadata.version("brimful")

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    version_of.cache_clear()
    assert installed_version() == "unknown"
    version_of.cache_clear()
