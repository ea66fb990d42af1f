"""Families of all networks of a structure that come with brimful: which networks they serve, and what
is said where they cannot be used.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from archives import write_archive
from brimful.base.types import JsonDict
from brimful.planning.architecture import KEYS, values_of, widths
from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.rehearsal.shipped import (
    About,
    library_versions,
    name_of,
    obstacle,
    widened,
)
from brimful.rehearsal.store import canonical_step

NETWORK = widths(h=192, d=24, n=12, g=4, f=328, v=777, blocks=8)
STRUCTURE = {"model_type": "llama", "tie_word_embeddings": True, "max_position_embeddings": 131072}
CONFIG = {**STRUCTURE, **values_of(NETWORK)}
DEFAULTS = {"mlp_bias": False}


def _key(config: JsonDict = CONFIG, **changes: Any) -> TraceFamilyKey:
    spec = StepSpec(canonical(config), 512, adapter=Lora(8))
    return family_keys_of(canonical_step(dataclasses.replace(spec, **changes)))[0]


def _name(key: TraceFamilyKey) -> str | None:
    wide = widened(key, DEFAULTS)
    return None if wide is None else name_of(wide[0], DEFAULTS)


def test_any_network_of_the_structure_finds_one_family() -> None:
    other = values_of(dataclasses.replace(NETWORK, blocks=30))
    wide = widened(_key(), DEFAULTS)

    assert wide is not None
    assert wide[1] == NETWORK
    assert _name(_key()) == _name(_key(CONFIG | {"mlp_bias": False, "pad_token_id": 3}))
    assert _name(_key()) == _name(_key({**CONFIG, **other}))
    assert _name(_key()) == _name(_key(sequence_length=1000, adapter=Lora(99)))


@pytest.mark.parametrize(
    "key",
    [
        _key(CONFIG | {"mlp_bias": True}),
        _key(CONFIG | {"model_type": "mistral"}),
        _key({name: value for name, value in CONFIG.items() if name != "vocab_size"}),
        dataclasses.replace(_key(), is_single=True),
        _key(flash=False),
        _key(adapter=None),
        family_keys_of(StepSpec(canonical(CONFIG), 512))[-1],
    ],
    ids=["bias", "type", "no vocabulary", "single", "kernels", "every weight", "one length"],
)
def test_what_shapes_a_step_beside_its_widths_makes_another_family(key: TraceFamilyKey) -> None:
    assert _name(key) != _name(_key())


def test_kernels_of_nvidia_cards_make_no_difference_elsewhere() -> None:
    assert _name(_key(cuda=False)) == _name(_key(cuda=False, flash=False))


@pytest.fixture
def archive(tmp_path: Path) -> MakeRun:
    """`archive(torch="9.9")` was made with that version."""

    def write(**versions: str) -> Path:
        about = About({**library_versions(), **versions}, DEFAULTS)
        write_archive(tmp_path / "llama.zip", about, {"a.xz": b"content" * 100})
        return tmp_path / "llama.zip"

    return write


def test_why_an_archive_cannot_be_used_is_said(
    archive: MakeRun, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = archive()
    assert [obstacle(each, tmp_path) for each in ("llama", "mistral")] == [None, None]
    archive(torch="9.9.1")
    stale = obstacle("llama", tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:300] + b"damage" + whole[306:])
    damaged = obstacle("llama", tmp_path)
    path.write_bytes(b"a foreign file")
    foreign = obstacle("llama", tmp_path)

    assert stale is not None
    assert stale == snapshot
    for said in (damaged, foreign):
        assert said is not None
        assert f"{path} is damaged" in said
        assert said == snapshot


def test_the_keys_of_widths_are_those_of_a_config() -> None:
    assert KEYS.keys() < NETWORK.values.keys()
    assert json.loads(_key().spec.config_json) == CONFIG
