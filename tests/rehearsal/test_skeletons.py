"""A skeleton says of a network what its own trace shows, to the byte."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.planning.architecture import KEYS, network_of, values_of, widths
from brimful.planning.family import ShortFamily
from brimful.planning.family_file import DamagedFile
from brimful.planning.family_file import to_bytes as family_bytes
from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.planning.parametric import Irregular
from brimful.planning.skeleton import Skeleton
from brimful.planning.skeleton_file import from_bytes, to_bytes
from brimful.planning.skeleton_recordings import SkeletonRecordings
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.planning.trace import Trace
from brimful.rehearsal.shipped import library_versions, write_archive
from brimful.rehearsal.shipped_skeletons import (
    AboutType,
    ShippedSkeletons,
    about_type,
    name_of_skeleton,
    network_of_key,
    obstacle,
)
from brimful.rehearsal.skeletons import first_recordings, with_check
from brimful.rehearsal.tracer import trace_family
from ship_skeletons import content_of

NETWORK = widths(h=192, d=24, n=12, g=4, f=328, v=777, blocks=8)
"""Matrices of which most are no multiple of what shares a scale in 4 bits."""
STRUCTURE = {"model_type": "llama", "tie_word_embeddings": True, "max_position_embeddings": 131072}
CONFIG = canonical({**STRUCTURE, **values_of(NETWORK)})
STEP = StepSpec(
    CONFIG,
    512,
    weights="bf16",
    autocast="bf16",
    adapter=Lora(8, "q_proj,down_proj"),
    quantize="nf4",
    accumulates=False,
)


def _key() -> TraceFamilyKey:
    return family_keys_of(STEP)[0]


@pytest.fixture(scope="module")
def recordings() -> SkeletonRecordings:
    key = _key()
    spec = dataclasses.replace(key.spec, config_json=canonical(STRUCTURE))
    return with_check(first_recordings(dataclasses.replace(key, spec=spec), 4), 2)


@pytest.fixture(scope="module")
def skeleton(recordings: SkeletonRecordings) -> Skeleton:
    return recordings.skeleton()


@pytest.fixture(scope="module")
def family(skeleton: Skeleton) -> ShortFamily:
    made = skeleton.at(NETWORK)
    assert made is not None
    return made


def test_a_network_that_was_not_recorded_is_as_its_own_traces_show(family: ShortFamily) -> None:
    assert content_of(family) == content_of(trace_family(_key()))


def test_a_file_holds_all_of_a_skeleton_in_few_bytes(
    skeleton: Skeleton, family: ShortFamily
) -> None:
    content = to_bytes(skeleton)

    read = from_bytes(content)

    assert len(content) < 16_000
    assert to_bytes(read) == content
    again = read.at(NETWORK)
    assert again is not None
    assert content_of(again) == content_of(family)
    for damaged in (b"", content[:-9], family_bytes(family)):
        with pytest.raises(DamagedFile):
            from_bytes(damaged)


def test_too_few_blocks_have_no_skeleton(skeleton: Skeleton) -> None:
    assert skeleton.at(dataclasses.replace(NETWORK, blocks=5)) is None
    assert skeleton.at(dataclasses.replace(NETWORK, blocks=6)) is not None


def _with_size(trace: Trace, change: int) -> Trace:
    sizes_S = trace.sizes_S.copy()
    sizes_S[np.flatnonzero(trace.layers_S == 2)[-1]] += change
    return dataclasses.replace(trace, sizes_S=sizes_S)


@pytest.mark.parametrize("number", [0, 2])
def test_a_size_that_is_no_product_is_refused(
    recordings: SkeletonRecordings, number: int, refuses: Refuses
) -> None:
    traces = list(recordings.traces)
    traces[number] = _with_size(traces[number], 4)

    with refuses(Irregular):
        dataclasses.replace(recordings, traces=tuple(traces)).skeleton()


def test_networks_with_other_events_are_refused(
    recordings: SkeletonRecordings, refuses: Refuses
) -> None:
    first, second, check = recordings.traces
    events_E = second.events_E.copy()
    events_E[[40, 41]] = events_E[[41, 40]]
    other = dataclasses.replace(second, events_E=events_E)

    with refuses(Irregular):
        dataclasses.replace(recordings, traces=(first, other, check)).skeleton()


@pytest.fixture
def shipped(skeleton: Skeleton, tmp_path: Path) -> Callable[..., ShippedSkeletons]:
    """`shipped(torch="9.9")` has the skeleton, traced with that version."""

    def ship(**versions: str) -> ShippedSkeletons:
        about = AboutType({**library_versions(), **versions}, {"mlp_bias": False})
        name = name_of_skeleton(_key(), network_of_key(_key(), about.defaults).structure)
        write_archive(tmp_path / "llama.zip", dataclasses.asdict(about), {name: to_bytes(skeleton)})
        about_type.cache_clear()
        return ShippedSkeletons(tmp_path)

    return ship


def _of(config: dict[str, Any]) -> TraceFamilyKey:
    key = _key()
    return dataclasses.replace(
        key, spec=dataclasses.replace(key.spec, config_json=canonical(config))
    )


def test_any_network_of_the_structure_finds_what_comes_with_brimful(
    shipped: Callable[..., ShippedSkeletons], family: ShortFamily
) -> None:
    archive, config = shipped(), json.loads(CONFIG)
    other = dataclasses.replace(NETWORK, blocks=30)

    found = archive.family(_of(config | {"mlp_bias": False, "pad_token_id": 3}))
    wider = archive.family(_of(config | values_of(other)))

    assert found is not None
    assert content_of(found) == content_of(family)
    assert wider is not None
    assert wider.blocks == 30
    assert archive.family(_of(config | {"mlp_bias": True})) is None
    assert archive.family(_of(config | {"model_type": "mistral"})) is None
    assert (
        archive.family(_of({name: config[name] for name in config if name != "vocab_size"})) is None
    )
    assert archive.family(dataclasses.replace(_key(), is_single=True)) is None


def test_kernels_of_nvidia_cards_make_no_difference_elsewhere() -> None:
    on_cuda, elsewhere = (
        [
            name_of_skeleton(
                dataclasses.replace(
                    key := _key(), spec=dataclasses.replace(key.spec, cuda=cuda, flash=flash)
                ),
                "{}",
            )
            for flash in (True, False)
        ]
        for cuda in (True, False)
    )

    assert on_cuda[0] != on_cuda[1]
    assert elsewhere[0] == elsewhere[1]


def test_what_comes_with_brimful_serves_libraries_of_the_same_minor_version(
    shipped: Callable[..., ShippedSkeletons],
) -> None:
    major, minor, *_ = library_versions()["torch"].split(".")

    same = shipped(torch=f"{major}.{minor}.99", not_installed="1.0").family(_key())
    newer = shipped(torch=f"{major}.{int(minor) + 1}.0").family(_key())

    assert same is not None
    assert newer is None


@pytest.mark.parametrize("content", [b"", b"damaged"])
def test_a_damaged_archive_is_none(
    shipped: Callable[..., ShippedSkeletons], tmp_path: Path, content: bytes
) -> None:
    archive = shipped()
    (tmp_path / "llama.zip").write_bytes(content)
    about_type.cache_clear()

    assert archive.family(_key()) is None


def test_why_an_archive_cannot_be_used_is_said(
    shipped: Callable[..., ShippedSkeletons], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = tmp_path / "llama.zip"

    shipped()
    assert [obstacle(each, tmp_path) for each in ("llama", "mistral")] == [None, None]
    shipped(torch="9.9.1")
    stale = obstacle("llama", tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:300] + b"damage" + whole[306:])
    about_type.cache_clear()
    damaged = obstacle("llama", tmp_path)
    path.write_bytes(b"a foreign file")
    about_type.cache_clear()
    foreign = obstacle("llama", tmp_path)

    assert stale is not None
    assert stale == snapshot
    for said in (damaged, foreign):
        assert said is not None
        assert f"{path} is damaged" in said
        assert said == snapshot


def test_the_keys_of_widths_are_those_of_a_config() -> None:
    assert network_of(json.loads(CONFIG), {}, eight_bit=False).widths == NETWORK
    assert KEYS.keys() < NETWORK.values.keys()
