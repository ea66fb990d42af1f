"""Commands of a proof run in its folder, and say why they failed."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from brimful.hardware import catalog
from brimful.hardware.probe import cpu_device
from brimful.prove.workplace import Refused, Workplace, device_choice

pytestmark = pytest.mark.usefixtures("warm_processes")


def test_a_recipe_names_its_run_and_the_device(place: Workplace, toy: Mapping[str, Any]) -> None:
    path = place.write_recipe("first", toy)

    values = yaml.safe_load((place.folder / path).read_text())
    assert values["name"] == "first"
    assert values["plan"] == {"device": "cpu", **toy["plan"]}


def test_a_command_that_fails_is_told_with_its_last_line(place: Workplace) -> None:
    with pytest.raises(Refused, match=r"`brimful train` refused: .*nowhere"):
        place.call("wrong", "train", "nowhere")

    assert place.output_of("wrong").read_text().startswith("$ brimful train nowhere\n")


def test_a_device_is_chosen_as_recipes_name_it() -> None:
    assert device_choice(cpu_device()) == "cpu"
    assert device_choice(catalog.get("NVIDIA L4")) == "cuda"
