"""What a result was measured with."""

import importlib.metadata
import json
import platform
import time

import pytest

from brimful.hardware import catalog
from brimful.hardware.environment import describe_environment


def test_versions_machine_and_command_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/brimful", "train", "a b.yaml", "seed=1"])
    device = catalog.get("Tesla T4")

    told = json.loads(json.dumps(describe_environment(device)))

    assert told["command"] == "brimful train 'a b.yaml' seed=1"
    assert told["python"] == platform.python_version()
    assert told["packages"]["torch"] == importlib.metadata.version("torch")
    assert told["device"]["name"] == "Tesla T4"
    assert time.strptime(told["started"], "%Y-%m-%dT%H:%M:%S%z").tm_year >= 2024


def test_packages_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "brimful.hardware.environment.PACKAGES", ("numpy", "no-such-package-anywhere")
    )

    assert list(describe_environment(catalog.get("Tesla T4"))["packages"]) == ["numpy"]
