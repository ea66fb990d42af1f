"""What can be given away: an sdist that stands alone, and the wheel that is built from it, with a
compiler and without one.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = (
    "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
)
MADE_HERE = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.pyd")
MAX_WHEEL_BYTES = 10_000_000
"""Nine tenths of it are recordings of models' steps (`brimful/rehearsal/`)."""


def _build(what: str, source: Path, into: Path, compiler: str | None = None) -> Path:
    """Return the file that is built, as by a front end such as `python -m build`."""
    environment = {**os.environ} | ({"CC": compiler} if compiler else {})
    subprocess.run(
        [sys.executable, "-c", BUILD, what, into],
        cwd=source,
        env=environment,
        check=True,
        capture_output=True,
    )
    (built,) = into.iterdir()
    return built


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of the checkout, unpacked."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "src", folder / "checkout" / "src", ignore=MADE_HERE)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "checkout")
    with tarfile.open(_build("build_sdist", folder / "checkout", folder / "sdist")) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    return source


@pytest.fixture(scope="module")
def checked_in(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The package's files, without what is made of them here."""
    folder = tmp_path_factory.mktemp("package") / "brimful"
    shutil.copytree(ROOT / "src" / "brimful", folder, ignore=MADE_HERE)
    return {f"brimful/{name}" for name in _files(folder)}


def test_the_sdist_has_every_file_of_the_package_and_no_tests(
    unpacked: Path, checked_in: set[str]
) -> None:
    held = _files(unpacked)

    assert {f"src/{name}" for name in checked_in} <= held
    assert {"CHANGELOG.md", "LICENSE", "README.md"} <= held
    assert not [name for name in held if name.startswith("tests/")]


@pytest.mark.parametrize("compiler", [None, "false"])
def test_the_wheel_has_every_file_and_quick_replays_where_there_is_a_compiler(
    compiler: str | None, unpacked: Path, checked_in: set[str], tmp_path: Path
) -> None:
    source = shutil.copytree(unpacked, tmp_path / "source")  # what is built is left in it
    wheel = _build("build_wheel", source, tmp_path / "wheel", compiler)

    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert checked_in <= held
    is_compiled = any(name.startswith("brimful/planning/_replay.abi3.") for name in held)
    assert is_compiled == (compiler is None and shutil.which("cc") is not None)
    assert not [name for name in held if not name.startswith("brimful")]
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert changelog.partition("\n## ")[2].split()[0] == project["version"]
