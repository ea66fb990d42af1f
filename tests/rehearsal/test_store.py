"""Families on disk: found again without torch, made again when damaged or when anything that decides
them changed, and not made where they come with brimful.
"""

import dataclasses
import functools
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import MakeStep, Refuses

from archives import write_archive
from brimful.base.errors import PlanError
from brimful.base.libraries import version_of
from brimful.base.types import JsonDict
from brimful.planning.block_rows import Irregular
from brimful.planning.family import Family
from brimful.planning.family_file import to_bytes
from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.planning.parametric import equal
from brimful.planning.step import StepSpec, canonical
from brimful.planning.trace import Trace, Unrecorded
from brimful.planning.work import IrregularWork
from brimful.rehearsal import store, tracer
from brimful.rehearsal.models import config_of
from brimful.rehearsal.shipped import About, library_versions, name_of
from brimful.rehearsal.store import StoredFamilies, StoredTraces, canonical_step
from brimful.rehearsal.tracer import record_family

WARM = """
import dataclasses, json, sys
from pathlib import Path
from brimful.planning.step import StepSpec
from brimful.rehearsal.store import StoredTraces

traces = StoredTraces(StepSpec(**json.loads(sys.argv[1])), Path(sys.argv[2]))
print(json.dumps([int(traces.at(size).live_E().max()) for size in (1, 4)] + [sorted({"torch", "transformers", "peft"} & set(sys.modules))]))
"""


@functools.cache
def _recorded(key: TraceFamilyKey, fewest: int) -> Family:
    return record_family(key, fewest=fewest)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TraceFamilyKey]:
    """What is recorded."""
    asked: list[TraceFamilyKey] = []

    def record(key: TraceFamilyKey, fewest: int = 0) -> Family:
        asked.append(key)
        return _recorded(key, fewest)

    monkeypatch.setattr(tracer, "record_family", record)
    return asked


@pytest.fixture
def irregular(made: list[TraceFamilyKey], monkeypatch: pytest.MonkeyPatch) -> list[TraceFamilyKey]:
    """The same of steps that repeat in nothing."""
    record = tracer.record_family

    def refuse(key: TraceFamilyKey, fewest: int = 0) -> Family:
        family = record(key, fewest=fewest)
        if not key.micro_batch:
            raise Irregular("for a test")
        return family

    monkeypatch.setattr(tracer, "record_family", refuse)
    return made


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Versions that libraries pretend to have."""
    version, pretended = importlib.metadata.version, dict[str, str]()
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: pretended.get(name) or version(name)
    )
    _forget_versions()
    yield pretended
    _forget_versions()


def _forget_versions() -> None:
    version_of.cache_clear()
    store.library_versions.cache_clear()


def _small(step: MakeStep, **changes: Any) -> StepSpec:
    """A step that belongs to no family of several lengths."""
    return step("llama", **({"sequence_length": 16, "accumulates": False} | changes))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.xz"))


def test_from_a_warm_folder_a_new_process_needs_no_torch(step: MakeStep, tmp_path: Path) -> None:
    spec = _small(step)
    traces = StoredTraces(spec, tmp_path)
    peaks = [int(traces.at(size).live_E().max()) for size in (1, 4)]

    words = json.dumps(
        {key: value for key, value in dataclasses.asdict(spec).items() if key != "config"}
    )
    warm = subprocess.run(
        [sys.executable, "-c", WARM, words, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(warm.stdout) == [*peaks, []]


def test_one_file_serves_every_micro_batch_and_every_size_of_chunk(
    step: MakeStep, tmp_path: Path, made: list[TraceFamilyKey]
) -> None:
    first = [StoredTraces(_small(step), tmp_path).at(rows) for rows in (2, 3, 5, 2.5)]
    again = [StoredTraces(_small(step), tmp_path).at(rows) for rows in (2, 3, 5, 2.5)]
    work, work_again = (StoredTraces(_small(step), tmp_path).work_at(3) for _ in range(2))
    StoredTraces(_small(step, loss_chunk=32), tmp_path).at(4)

    assert len(made) == len(_files(tmp_path)) == 1
    assert all(map(equal, first, again))
    assert list(first[0].marks.items()) == list(again[0].marks.items())
    assert np.array_equal(work.counts(), work_again.counts())


@pytest.mark.long
def test_members_of_a_family_share_a_file(
    step: MakeStep, tmp_path: Path, made: list[TraceFamilyKey]
) -> None:
    """One sequence has a family of its own only where it is a special case."""
    usual, special = (
        step(name, blocks=1, cuda=True, autocast="bf16", sequence_length=64, accumulates=False)
        for name in ("llama", "gpt2")
    )
    families = StoredFamilies(tmp_path)

    for spec in (usual, special):
        for length in (64, 50):
            config = {**spec.config, "n_positions": length}
            member = dataclasses.replace(
                spec, sequence_length=length, config_json=canonical(config)
            )
            StoredTraces(member, tmp_path, families).at(1)

    assert [key.is_single for key in made] == [False, False, True]
    assert dataclasses.replace(made[2], is_single=False) == made[1]


def test_a_step_that_repeats_in_nothing_is_recorded_at_every_micro_batch_and_that_is_remembered(
    step: MakeStep, tmp_path: Path, irregular: list[TraceFamilyKey]
) -> None:
    for _ in range(2):
        traces = StoredTraces(_small(step), tmp_path)
        assert [len(traces.at(rows).sizes_S) > 0 for rows in (3, 2.5)] == [True, True]
        assert traces.work_at(3).flop() > 0

    assert [key.micro_batch for key in irregular] == [0, 3]


def test_a_compiled_step_that_repeats_in_nothing_is_refused(
    step: MakeStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_recorded", lambda *_: None)

    with pytest.raises(PlanError, match="compiled step"):
        StoredTraces(_small(step, compiled="blocks"), tmp_path).at(3)


def test_work_that_was_not_recorded_is_an_error(
    step: MakeStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    def record(key: TraceFamilyKey, fewest: int = 0) -> Family:
        return dataclasses.replace(_recorded(key, fewest), work=None)

    monkeypatch.setattr(tracer, "record_family", record)

    assert len(StoredTraces(_small(step), tmp_path).at(3).sizes_S)
    with refuses(IrregularWork):
        StoredTraces(_small(step), tmp_path).work_at(3)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-8],
        lambda content: b"x" * len(content),
    ],
    ids=["empty", "cut off", "other bytes"],
)
def test_a_damaged_file_is_made_again(
    step: MakeStep, tmp_path: Path, made: list[TraceFamilyKey], damage: Callable[[bytes], bytes]
) -> None:
    first = StoredTraces(_small(step), tmp_path).at(3)
    (path,) = _files(tmp_path)
    content = path.read_bytes()
    path.write_bytes(damage(content))

    assert equal(StoredTraces(_small(step), tmp_path).at(3), first)
    assert equal(StoredTraces(_small(step), tmp_path).at(3), first)
    assert len(made) == 2
    assert [each.read_bytes() for each in _files(tmp_path)] == [content]


@pytest.mark.parametrize("library", ["torch", "transformers", "peft"])
def test_another_version_of_a_library_is_another_file(
    step: MakeStep,
    tmp_path: Path,
    made: list[TraceFamilyKey],
    installed: dict[str, str],
    library: str,
) -> None:
    StoredTraces(_small(step), tmp_path).at(3)
    installed[library] = "99.0"
    _forget_versions()
    StoredTraces(_small(step), tmp_path).at(3)

    assert len(made) == len(_files(tmp_path)) == 2


@pytest.mark.parametrize(
    "changes",
    [{"sequence_length": 24}, {"recompute": True}, {"cuda": True}, {"optimizer": "8bit"}],
)
def test_another_step_is_another_file(step: MakeStep, changes: JsonDict) -> None:
    names = [name_of(family_keys_of(_small(step, **each))[-1], {}) for each in ({}, changes)]

    assert names[0] != names[1]


def test_without_a_folder_nothing_is_kept(
    step: MakeStep, tmp_path: Path, made: list[TraceFamilyKey]
) -> None:
    for _ in range(2):
        StoredTraces(_small(step), None).at(3)

    assert len(made) == 2
    assert list(tmp_path.iterdir()) == []


def test_both_16_bit_types_take_the_same_room_on_cuda_only(step: MakeStep) -> None:
    on_cuda, on_cpu = (
        [step(cuda=cuda, weights=name, autocast=name) for name in ("fp16", "bf16")]
        for cuda in (True, False)
    )

    assert canonical_step(on_cuda[0]) == canonical_step(on_cuda[1]) == on_cuda[1]
    assert canonical_step(on_cpu[0]) != canonical_step(on_cpu[1])
    assert canonical_step(step(cuda=True)) == step(cuda=True)


def test_results_of_replays_are_kept(step: MakeStep, tmp_path: Path) -> None:
    StoredTraces(_small(step), tmp_path).write_known({"a": [1, 2]})

    assert StoredTraces(_small(step), tmp_path).read_known() == {"a": [1, 2]}
    assert StoredTraces(_small(step, recompute=True), tmp_path).read_known() == {}


def _archive(folder: Path, key: TraceFamilyKey, **versions: str) -> Path:
    """Write an archive with one family."""
    path = folder / f"{key.spec.config['model_type']}.zip"
    about = About({**library_versions(), **versions}, config_of(key.spec).to_dict())
    content = to_bytes(_recorded(key, 0))
    write_archive(path, about, {name_of(key, json.loads(json.dumps(about.defaults))): content})
    return path


@pytest.mark.parametrize("damage", [b"", b"a foreign file"])
def test_what_comes_with_brimful_is_not_recorded(
    step: MakeStep, tmp_path: Path, made: list[TraceFamilyKey], damage: bytes
) -> None:
    spec = _small(step)
    path = _archive(tmp_path, family_keys_of(canonical_step(spec))[-1])

    def found() -> Trace:
        return StoredTraces(spec, None, StoredFamilies(None, tmp_path)).at(2)

    shipped, recorded_before = found(), len(made)
    path.write_bytes(damage)
    recorded = found()

    assert (recorded_before, len(made)) == (0, 1)
    assert equal(shipped, recorded)


def test_what_comes_with_brimful_serves_libraries_of_the_same_minor_version(
    step: MakeStep, tmp_path: Path, made: list[TraceFamilyKey]
) -> None:
    key = family_keys_of(canonical_step(_small(step)))[-1]
    major, minor, *_ = library_versions()["torch"].split(".")
    for version in (f"{major}.{minor}.99", f"{major}.{int(minor) + 1}.0"):
        _archive(tmp_path, key, torch=version, not_installed="1.0")
        StoredFamilies(None, tmp_path).find(key)

    assert len(made) == 1


def test_a_folders_config_is_that_of_the_catalog_with_defaults_and_tokens(step: MakeStep) -> None:
    key = family_keys_of(canonical_step(_small(step)))[-1]
    defaults = json.loads(json.dumps(config_of(key.spec).to_dict()))

    def named(**changes: Any) -> str:
        config = canonical({**json.loads(key.spec.config_json), **changes})
        spec = dataclasses.replace(key.spec, config_json=config)
        return name_of(dataclasses.replace(key, spec=spec), defaults)

    assert named() == named(pad_token_id=2, initializer_range=0.01, attention_dropout=0.0)
    assert len({named(), named(intermediate_size=8), named(attention_dropout=0.5)}) == 3


def test_without_torch_what_is_not_kept_cannot_be_made(
    step: MakeStep, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(store, "library_versions", dict)

    with refuses(Unrecorded):
        StoredTraces(_small(step), None).at(2)
