"""Environment variables are read in one module, when asked, never at import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.base import env


def test_folders_come_from_their_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BRIMFUL_CACHE", "BRIMFUL_RUNS", "BRIMFUL_DATA"):
        monkeypatch.setenv(name, str(tmp_path))

    assert env.cache_folder() == env.runs_folder() == env.shared_data_folder() == tmp_path


def test_folders_have_defaults_when_nothing_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("BRIMFUL_CACHE", "BRIMFUL_RUNS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert env.cache_folder() == tmp_path / ".cache" / "brimful"
    assert env.runs_folder() == Path("runs")


def test_the_cache_follows_the_desktop_standard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("BRIMFUL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert env.cache_folder() == tmp_path / "brimful"


def test_an_absent_data_folder_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRIMFUL_DATA", str(tmp_path / "nothing"))

    assert env.shared_data_folder() is None


@pytest.mark.parametrize(
    ("value", "offline"), [("1", True), ("true", True), ("yes", True), ("0", False), ("", False)]
)
def test_the_hub_is_offline_when_its_libraries_would_say_so(
    monkeypatch: pytest.MonkeyPatch, value: str, offline: bool
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)

    assert env.hub_is_offline() is offline


def test_unset_variables_of_others_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CXX", raising=False)

    assert env.visible_cuda_devices() is None
    assert env.cpp_compiler() is None


def test_variables_of_others_are_passed_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CXX", "clang++")

    assert env.visible_cuda_devices() == ""
    assert env.cpp_compiler() == "clang++"


def test_waiting_threads_spin_briefly_unless_the_user_chose_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    env.wait_politely()
    assert "GOMP_SPINCOUNT" not in os.environ

    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    env.wait_politely()
    assert os.environ["GOMP_SPINCOUNT"] == "5"

    monkeypatch.delenv("GOMP_SPINCOUNT")
    env.wait_politely()
    assert os.environ["GOMP_SPINCOUNT"] == "1000"


def test_kernels_kept_per_shape_are_bounded_unless_the_user_chose_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "x")  # so that what follows is undone
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    env.keep_few_kernels()

    assert (os.environ["LRU_CACHE_CAPACITY"], os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) == (
        "7",
        "256",
    )


_STARTED = """
import os, sys
from brimful.base import env
env.start_again_with_whole_heap(sys.argv[1:])
print(os.environ.get("GLIBC_TUNABLES", "as it was"), *sys.argv[1:], os.getpid())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or env._NVIDIA.exists(), reason="only on Linux without an NVIDIA GPU"
)
def test_a_command_starts_again_once_with_a_heap_of_joined_blocks(tmp_path: Path) -> None:
    command = tmp_path / "brimful"
    command.write_text(_STARTED)
    other = tmp_path / "other.py"
    other.write_text(_STARTED)
    plain = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"}

    def said(script: Path, variables: dict[str, str]) -> tuple[str, bool]:
        words = [sys.executable, str(script), "train", "two words"]
        with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True) as process:
            text, pid = process.communicate()[0].rsplit(maxsplit=1)
        return text, int(pid) == process.pid

    whole = env.WHOLE_HEAP["GLIBC_TUNABLES"]
    assert said(command, plain) == (f"{whole} train two words", True)
    own = {**plain, "GLIBC_TUNABLES": "glibc.malloc.check=0"}
    assert said(command, own) == ("glibc.malloc.check=0 train two words", True)
    assert said(other, plain) == ("as it was train two words", True)


def test_notebooks_run_small_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRIMFUL_NOTEBOOK", raising=False)
    assert not env.notebook_is_small()
    monkeypatch.setenv("BRIMFUL_NOTEBOOK", "small")
    assert env.notebook_is_small()


def test_a_process_that_is_read_by_a_program_is_not_told_to_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("BRIMFUL_RUNS", "here")
    environment = env.of_a_plain_process()
    assert "FORCE_COLOR" not in environment
    assert environment["BRIMFUL_RUNS"] == "here"
