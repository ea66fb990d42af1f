"""What follows for every rank and sequence length from a few recordings is what a direct trace of
the step shows, to the byte.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Gemma2Config

from brimful.base.errors import PlanError
from brimful.planning.family import Family, ShortFamily
from brimful.planning.family_file import DamagedFile, from_bytes, to_bytes
from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.planning.parametric import Irregular, equal
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.planning.trace import Names, Trace
from brimful.planning.work import COUNTS, PARTS, Work
from brimful.rehearsal import shipped, tracer
from brimful.rehearsal.family_store import StoredFamilies
from brimful.rehearsal.models import config_of
from brimful.rehearsal.shipped import (
    About,
    ShippedFamilies,
    library_versions,
    name_of,
    write_archive,
)
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.tracer import trace_family, trace_one
from brimful.rehearsal.training import record_training

Step = Callable[..., StepSpec]
CUDA: dict[str, Any] = {
    "cuda": True,
    "autocast": "bf16",
    "sequence_length": 256,
    "loss_chunk": 700,
    "accumulates": False,
}
FROZEN: dict[str, Any] = {**CUDA, "weights": "bf16", "adapter": Lora(4)}


def _gemma(step: Step, **changes: Any) -> StepSpec:
    config = Gemma2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=160,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        head_dim=16,
        max_position_embeddings=512,
        sliding_window=4096,
    )
    return dataclasses.replace(step("llama", **changes), config_json=canonical(config.to_dict()))


def _following(spec: StepSpec) -> StepSpec:
    """A GPT-2 with as many positions as a sequence."""
    return dataclasses.replace(
        spec, config_json=canonical({**spec.config, "n_positions": spec.sequence_length})
    )


@functools.cache
def _short(key: TraceFamilyKey) -> ShortFamily:
    return trace_family(key)


@functools.cache
def _family(key: TraceFamilyKey) -> Family:
    return _short(key).stretched(key)


def _widest(spec: StepSpec) -> TraceFamilyKey:
    return family_keys_of(spec)[0]


def _member(spec: StepSpec, *, length: int, rank: int = 4) -> StepSpec:
    adapter = None if spec.adapter is None else dataclasses.replace(spec.adapter, rank=rank)
    if "n_positions" in spec.config and spec.config["n_positions"] == spec.sequence_length:
        spec = dataclasses.replace(
            spec, config_json=canonical({**spec.config, "n_positions": length})
        )
    return dataclasses.replace(spec, sequence_length=length, adapter=adapter)  # type: ignore[arg-type]


def _totals(work: Work | None) -> dict[str, float]:
    """Of every count, by part; not bytes of fused kernels, as chains of several pieces of the loss
    meet some of them once.
    """
    assert work is not None
    rows = {part: work.parts_W == index for index, part in enumerate(PARTS)}
    names = [
        name for name in COUNTS if name not in ("m_W", "n_W", "k_W", "batch_W", "fused_bytes_W")
    ]
    return {
        f"{part} {name}": float((getattr(work, name) * work.repeats_W)[row].sum())
        for part, row in rows.items()
        for name in names
    }


def _peak_bytes(trace: Trace) -> int:
    return int(trace.live_E().max())


def _direct(spec: StepSpec, micro_batch: int) -> Trace:
    return record_training(spec, config_of(spec), micro_batch)


@pytest.mark.parametrize(
    ("changes", "length", "rank"),
    [
        ({**FROZEN, "recompute": True}, 384, 9),
        ({**FROZEN, "quantize": "nf4", "flash": False, "attention": "brimful_expanded"}, 512, 7),
        ({**CUDA, "cuda": False, "autocast": "none", "adapter": Lora(8, dropout=0.1)}, 128, 3),
        (CUDA, 1024, 1),
        ({**FROZEN, "recompute": True}, 333, 9),
        ({**CUDA, "flash": False}, 1000, 1),
        ({**CUDA, "cuda": False, "autocast": "none"}, 45, 1),
    ],
    ids=[
        "LoRA, recomputed",
        "QLoRA without a flash kernel",
        "LoRA with dropout on a CPU",
        "every weight",
        "LoRA, recomputed, an odd length",
        "an odd length without a flash kernel",
        "an odd length on a CPU",
    ],
)
def test_every_rank_and_length_is_as_a_direct_trace_shows(
    step: Step, changes: dict[str, Any], length: int, rank: int
) -> None:
    spec = _member(step("llama", blocks=1, **changes), length=length, rank=rank)

    made, direct = _family(_widest(spec)).at(spec), _direct(spec, 3)

    assert _peak_bytes(made.at(3)) == _peak_bytes(direct)
    assert (made.trace.parameters, made.trace.trainable) == (direct.parameters, direct.trainable)
    assert made.work is not None
    assert _totals(made.work.at(3, spec.loss_chunk)) == _totals(direct.work)


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_learned_positions_and_capped_scores_follow_the_length(step: Step, family: str) -> None:
    spec = (
        _gemma(step, **FROZEN, attention="eager")
        if family == "gemma2"
        else _following(step(family, blocks=1, **CUDA))
    )
    member = _member(spec, length=384, rank=12)

    made, direct = _family(_widest(spec)).at(member), _direct(member, 3)

    assert _peak_bytes(made.at(3)) == _peak_bytes(direct)
    assert made.trace.parameters == direct.parameters


@pytest.mark.parametrize(
    "place", [CUDA, {**CUDA, "cuda": False, "autocast": "none"}], ids=["CUDA", "CPU"]
)
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_one_sequence_where_it_is_a_special_case_is_as_its_own_trace_shows(
    step: Step, family: str, place: dict[str, Any]
) -> None:
    spec = (
        _gemma(step, **place, adapter=Lora(4, "q_proj,up_proj"), attention="eager")
        if family == "gemma2"
        else _following(step("gpt2", blocks=1, **place))
    )
    made = _family(dataclasses.replace(_widest(spec), is_single=True))

    for length, rank, loss_chunk in ((128, 3, 700), (512, 24, 200)):
        member = dataclasses.replace(_member(spec, length=length, rank=rank), loss_chunk=loss_chunk)
        one, direct = made.at(member), trace_one(member, 1)
        assert _peak_bytes(one.at(1)) == _peak_bytes(direct)
        assert (one.trace.parameters, one.trace.trainable) == (direct.parameters, direct.trainable)
        assert one.work is not None
        assert _totals(one.work.at(1, loss_chunk)) == _totals(direct.work)


def test_many_blocks_follow_from_few(step: Step) -> None:
    spec = step("llama", blocks=6, **{**FROZEN, "adapter": Lora(4, "q_proj,up_proj")})
    member = _member(spec, length=640, rank=24)

    made, direct = _family(_widest(spec)).at(member), _direct(member, 3)

    assert _peak_bytes(made.at(3)) == _peak_bytes(direct)
    assert (made.trace.parameters, made.trace.trainable) == (direct.parameters, direct.trainable)
    assert made.work is not None
    assert _totals(made.work.at(3, member.loss_chunk)) == pytest.approx(
        _totals(direct.work), rel=1e-12, abs=2
    )


def test_once_a_trace_shows_that_four_blocks_do_not_repeat_five_are_taken(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = step("llama", blocks=7, cuda=True, adapter=Lora(4, "q_proj,up_proj"))
    traced = []

    def record(*arguments: Any) -> Trace:
        traced.append(arguments[1].num_hidden_layers)
        if len(traced) > 1:
            raise PlanError("two traces are enough here")
        return record_training(*arguments)

    monkeypatch.setattr(tracer, "record_training", record)
    with pytest.raises(PlanError):
        trace_family(_widest(spec))
    assert traced == [4, 5]


@pytest.mark.parametrize(
    ("family", "changes", "recordings"),
    [("llama", FROZEN, 3), ("gpt2", CUDA, 4), ("gpt2", FROZEN, 4)],
    ids=["adapters", "one sequence is a special case", "adapters beside learned positions"],
)
def test_no_more_is_recorded_than_it_takes(
    step: Step,
    family: str,
    changes: dict[str, Any],
    recordings: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = []

    def record(*arguments: Any) -> Trace:
        recorded.append(arguments)
        return record_training(*arguments)

    monkeypatch.setattr(tracer, "record_training", record)
    spec = step(family, blocks=1, **changes)
    trace_family(_widest(_following(spec) if family == "gpt2" else spec))
    assert len(recorded) == recordings


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TraceFamilyKey]:
    """What families were made."""
    made: list[TraceFamilyKey] = []

    def trace(key: TraceFamilyKey, like: Family | None) -> ShortFamily:
        made.append(key)
        return _short(key)

    monkeypatch.setattr(tracer, "trace_family", trace)
    return made


def test_a_family_is_made_once_and_found_on_disk(
    step: Step, asked: list[TraceFamilyKey], tmp_path: Any
) -> None:
    spec = step("llama", blocks=1, **CUDA)
    other = _member(spec, length=128)
    first, again = StoredFamilies(tmp_path), StoredFamilies(tmp_path)

    one = StoredTraces(spec, tmp_path, first).at(3), StoredTraces(other, tmp_path, first).at(3)
    two = StoredTraces(spec, tmp_path, again).at(3), StoredTraces(other, tmp_path, again).at(3)

    assert len(asked) == 1
    assert equal(one[0], two[0])
    assert equal(one[1], two[1])
    assert np.array_equal(
        StoredTraces(other, tmp_path, first).work_at(3).counts(),
        StoredTraces(other, tmp_path, again).work_at(3).counts(),
    )


def test_one_sequence_has_a_family_of_its_own_only_where_it_is_a_special_case(
    step: Step, asked: list[TraceFamilyKey], tmp_path: Any
) -> None:
    usual, special = step("llama", blocks=1, **CUDA), _following(step("gpt2", blocks=1, **CUDA))
    families = StoredFamilies(tmp_path)

    for spec in (usual, special, _member(special, length=128)):
        StoredTraces(spec, tmp_path, families).at(1)
    again = StoredTraces(special, tmp_path, StoredFamilies(tmp_path))

    assert asked == [
        _widest(usual),
        _widest(special),
        dataclasses.replace(_widest(special), is_single=True),
    ]
    assert equal(again.at(1), _family(asked[-1]).at(special).at(1))
    assert len(again.work_at(1)) > 0
    assert len(asked) == 3


def test_what_is_no_product_is_traced_by_itself(
    step: Step, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    spec = step("llama", blocks=1, **CUDA)
    member = _family(_widest(spec)).at(spec)

    def irregular(key: TraceFamilyKey, like: Family | None) -> ShortFamily:
        raise Irregular("for a test")

    monkeypatch.setattr(tracer, "trace_family", irregular)
    monkeypatch.setattr(tracer, "trace_all", lambda spec: member)

    assert equal(StoredTraces(spec, tmp_path).at(3), member.at(3))
    assert StoredFamilies(tmp_path).member(spec) is None


def test_a_file_holds_all_of_a_family_in_few_bytes(step: Step) -> None:
    spec = step("llama", blocks=6, **{**FROZEN, "adapter": Lora(4, "q_proj,up_proj")})
    member, key = _member(spec, length=640, rank=24), _widest(spec)
    content = to_bytes(_short(key))

    read = from_bytes(content)

    assert to_bytes(read) == content
    assert len(content) < 16_000
    made, again = _family(key).at(member), read.stretched(key).at(member)
    _assert_equal(made.at(3), again.at(3))
    assert made.work is not None
    assert again.work is not None
    _assert_equal(made.work.at(3, 700), again.work.at(3, 700))


def _assert_equal(one: Any, other: Any) -> None:
    for each in dataclasses.fields(one):
        values = getattr(one, each.name), getattr(other, each.name)
        if each.name == "marks":
            values = tuple(list(marks.items()) for marks in values)  # their order counts
        same = (
            np.array_equal(*values)
            if isinstance(values[0], np.ndarray | Names)
            else values[0] == values[1]
        )
        assert same, each.name


@pytest.mark.parametrize(
    "damage",
    [lambda content: b"", lambda content: content[:-9], lambda content: b"x" * len(content)],
    ids=["empty", "cut off", "other bytes"],
)
def test_a_damaged_file_is_traced_anew(
    step: Step,
    asked: list[TraceFamilyKey],
    tmp_path: Any,
    damage: Callable[[bytes], bytes],
) -> None:
    spec = step("llama", blocks=1, **CUDA)
    StoredFamilies(tmp_path).member(spec)
    path = StoredFamilies(tmp_path).path(_widest(spec))
    assert path is not None
    content = path.read_bytes()
    path.write_bytes(damage(content))
    with pytest.raises(DamagedFile):
        from_bytes(path.read_bytes())

    StoredFamilies(tmp_path).member(spec)

    assert len(asked) == 2
    assert path.read_bytes() == content


def test_what_comes_with_brimful_is_not_traced(
    step: Step, asked: list[TraceFamilyKey], tmp_path: Any
) -> None:
    spec = step("llama", blocks=1, **CUDA)
    key = _widest(spec)
    path = _archive(tmp_path, key)

    found = StoredFamilies(None, ShippedFamilies(tmp_path)).member(spec)
    shipped._archives.cache_clear()
    path.write_bytes(b"damaged")
    traced = StoredFamilies(None, ShippedFamilies(tmp_path)).member(spec)

    assert found is not None
    assert traced is not None
    assert asked == [key]
    _assert_equal(found.at(2), traced.at(2))


def _archive(folder: Path, key: TraceFamilyKey, versions: dict[str, str] | None = None) -> Path:
    """Write an archive with one family, as `benchmarks/ship_families.py` does."""
    path = folder / f"{key.spec.config['model_type']}.tiny.zip"
    values = json.loads(json.dumps(config_of(key.spec).to_dict()))
    about = About("tiny", versions or library_versions(), key.spec.config_json, values)
    write_archive(path, dataclasses.asdict(about), {name_of(key): to_bytes(_short(key))})
    return path


def test_what_comes_with_brimful_serves_libraries_of_the_same_minor_version(
    step: Step, tmp_path: Path
) -> None:
    key = _widest(step("llama", blocks=1, **CUDA))
    major, minor, *_ = library_versions()["torch"].split(".")
    found = []
    for number, version in enumerate((f"{major}.{minor}.99", f"{major}.{int(minor) + 1}.0")):
        folder = tmp_path / str(number)
        folder.mkdir()
        _archive(folder, key, {**library_versions(), "torch": version, "not_installed": "1.0"})
        found.append(ShippedFamilies(folder).read(key))

    assert found == [to_bytes(_short(key)), None]


def test_a_folders_config_is_that_of_the_catalog_with_defaults_and_tokens(
    step: Step, tmp_path: Path
) -> None:
    key = _widest(step("llama", blocks=1, **CUDA))
    _archive(tmp_path, key)
    values = config_of(key.spec).to_dict() | {"pad_token_id": 2, "initializer_range": 0.01}

    def of(values: dict[str, Any]) -> bytes | None:
        spec = dataclasses.replace(key.spec, config_json=canonical(values))
        return ShippedFamilies(tmp_path).read(dataclasses.replace(key, spec=spec))

    assert of(values) == to_bytes(_short(key))
    assert of(values | {"intermediate_size": 8}) is None
    assert of(values | {"attention_dropout": 0.5}) is None
    assert of(values | {"something_new": True}) is None
