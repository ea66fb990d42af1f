"""Traces on disk: found again without torch, made again when damaged or when anything that decides
them changed.
"""

import dataclasses
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.base.version import version_of
from brimful.planning.parametric import Irregular, ParametricTrace
from brimful.planning.step import StepSpec
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import COUNTS, IrregularWork, ParametricWork, Work
from brimful.rehearsal import store, tracer
from brimful.rehearsal.family_store import StoredFamilies
from brimful.rehearsal.store import StoredTraces, canonical_step

Step = Callable[..., StepSpec]
WARM = """
import dataclasses, json, sys
from pathlib import Path
from brimful.planning.step import StepSpec
from brimful.rehearsal.store import StoredTraces

traces = StoredTraces(StepSpec(**json.loads(sys.argv[1])), Path(sys.argv[2]))
print(json.dumps([int(traces.at(size).live_E().max()) for size in (1, 4)] + [sorted({"torch", "transformers", "peft"} & set(sys.modules))]))
"""


def _trace(size_bytes: int) -> Trace:
    zeros = np.zeros(2, np.int32)
    return Trace(
        events_E=np.array([1, 2, -2], np.int32),
        event_layers_E=np.array([-1, 0, 0], np.int32),
        sizes_S=np.array([size_bytes, 7], np.int64),
        kinds_S=np.array([0, KINDS.index("activations")], np.int32),
        places_S=np.array([0, 1], np.int32),
        layers_S=zeros,
        places=("wte", "h.0 mm"),
        blocks="h",
        marks={"inputs": 0, "forward": 1},
        parameters=11,
        trainable=5,
    )


def _work(flop: int) -> Work:
    """One product and, as the last chunk of the loss, another."""
    counts = {name: np.array([flop, flop], np.int64) for name in COUNTS}
    indices = {
        f"{name}_W": np.array([0, 1], np.int64)
        for name in ("classes", "dtypes", "parts", "phases", "layers", "operators")
    }
    return Work(**counts, **indices, repeats_W=np.array([1.0, 2.0]), operators=("mm", "bmm"))


def _parametric_work(spec: StepSpec) -> ParametricWork:
    lines = (np.full((len(COUNTS), 2), value, np.int64) for value in (5, 10, 0))
    return ParametricWork(
        _work(0), *lines, chunks_W=np.zeros(2, np.int64), sequence_length=spec.sequence_length
    )


class _Made:
    """Counts what is traced, and stands in for it: 100 bytes, 10 for every sequence and 1 for every
    token of a chunk.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.irregular, self.works = False, True

    def trace_all(self, spec: StepSpec) -> ParametricTrace:
        self.asked.append("all")
        if self.irregular:
            raise Irregular("for a test")
        slopes = {
            name: np.array([value, 0], np.int64)
            for name, value in (("base_S", 100), ("slope_S", 10), ("chunk_slope_S", 1))
        }
        work = _parametric_work(spec) if self.works else None
        return ParametricTrace(
            _trace(100),
            **slopes,
            sequence_length=spec.sequence_length,
            loss_chunk=spec.loss_chunk,
            work=work,
        )

    def trace_one(self, spec: StepSpec, micro_batch: int) -> Trace:
        self.asked.append(str(micro_batch))
        return dataclasses.replace(
            _trace(1000 + micro_batch), work=_work(1000 + micro_batch) if self.works else None
        )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> _Made:
    """What is traced, of steps without a family."""
    stand_in = _Made()
    monkeypatch.setattr(StoredFamilies, "member", lambda *_, **__: None)
    monkeypatch.setattr(tracer, "trace_all", stand_in.trace_all)
    monkeypatch.setattr(tracer, "trace_one", stand_in.trace_one)
    return stand_in


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
    store._versions.cache_clear()
    store.library_versions.cache_clear()


def _sizes(spec: StepSpec, folder: Path | None, *micro_batches: int) -> list[int]:
    traces = StoredTraces(spec, folder)
    return [int(traces.at(size).sizes_S[0]) for size in micro_batches]


def _same(one: Trace, other: Trace) -> bool:
    arrays = ("events_E", "event_layers_E", "sizes_S", "kinds_S", "places_S", "layers_S")
    words = ("places", "blocks", "marks", "parameters", "trainable")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays) and all(
        getattr(one, name) == getattr(other, name) for name in words
    )


def test_from_a_warm_folder_a_new_process_needs_no_torch(step: Step, tmp_path: Path) -> None:
    spec = step("llama", sequence_length=16, accumulates=False)
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


def test_what_comes_back_is_what_was_made(step: Step, tmp_path: Path, made: _Made) -> None:
    first = StoredTraces(step(), tmp_path).at(3)
    second = StoredTraces(step(), tmp_path).at(3)

    assert made.asked == ["all"]
    assert _same(first, second)
    assert dict(second.marks) == {"inputs": 0, "forward": 1}


def _flop(spec: StepSpec, folder: Path | None, *micro_batches: int) -> list[float]:
    traces = StoredTraces(spec, folder)
    return [float(traces.work_at(size).flop_W[0]) for size in micro_batches]


def test_work_comes_back_as_it_was_made(step: Step, tmp_path: Path, made: _Made) -> None:
    first, second = (StoredTraces(step(), tmp_path).work_at(3) for _ in range(2))

    assert made.asked == ["all"]
    assert first.flop_W.tolist() == [5 + 10 * 3] * 2
    assert first.operators == second.operators
    arrays = [each.name for each in dataclasses.fields(Work) if each.name != "operators"]
    assert all(np.array_equal(getattr(first, name), getattr(second, name)) for name in arrays)


def test_work_of_an_irregular_step_is_that_of_its_own_trace(
    step: Step, tmp_path: Path, made: _Made
) -> None:
    made.irregular = True

    assert _flop(step(), tmp_path, 3, 4) == [1003, 1004]
    assert _flop(step(), tmp_path, 4) == [1004]
    assert made.asked == ["all", "3", "4"]


def test_work_that_was_not_recorded_is_an_error(
    step: Step, tmp_path: Path, made: _Made, refuses: Refuses
) -> None:
    made.works = False

    assert _sizes(step(), tmp_path, 3) == [258]
    with refuses(IrregularWork):
        StoredTraces(step(), tmp_path).work_at(3)


def test_one_file_serves_every_micro_batch_and_every_size_of_chunk(
    step: Step, tmp_path: Path, made: _Made
) -> None:
    """100 + 10 per sequence + the tokens of a chunk, of which there are 64 in a sequence."""
    assert _sizes(step(loss_chunk=128), tmp_path, 1, 2, 5) == [
        100 + 10 + 64,
        100 + 20 + 128,
        100 + 50 + 128,
    ]
    assert _sizes(step(loss_chunk=32), tmp_path, 2, 5) == [100 + 20 + 32, 100 + 50 + 32]

    assert made.asked == ["all"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:40],
        lambda content: b"x" * len(content),
        lambda content: content[:-8],
    ],
)
def test_a_damaged_file_is_made_again(
    step: Step, tmp_path: Path, made: _Made, damage: Callable[[bytes], bytes]
) -> None:
    sizes = _sizes(step(), tmp_path, 3)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))

    assert _sizes(step(), tmp_path, 3) == sizes
    assert _sizes(step(), tmp_path, 3) == sizes
    assert made.asked == ["all", "all"]
    assert list(tmp_path.iterdir()) == [path]


def test_another_file_under_a_traces_name_is_made_again(
    step: Step, tmp_path: Path, made: _Made
) -> None:
    """safetensors without what a trace says in words."""
    from safetensors.numpy import save_file

    _sizes(step(), tmp_path, 3)
    (path,) = tmp_path.iterdir()
    save_file({"events_E": np.zeros(3, np.int32)}, path)

    _sizes(step(), tmp_path, 3)
    assert made.asked == ["all", "all"]


@pytest.mark.parametrize("library", ["torch", "transformers", "peft"])
def test_another_version_of_a_library_is_another_file(
    step: Step, tmp_path: Path, made: _Made, installed: dict[str, str], library: str
) -> None:
    _sizes(step(), tmp_path, 3)
    installed[library] = "99.0"
    _forget_versions()
    _sizes(step(), tmp_path, 3)

    assert made.asked == ["all", "all"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "changes",
    [{"sequence_length": 32}, {"recompute": True}, {"flash": False}, {"optimizer": "8bit"}],
)
def test_another_step_is_another_file(
    step: Step, tmp_path: Path, made: _Made, changes: dict[str, Any]
) -> None:
    for spec in (step(), step(**changes)):
        _sizes(spec, tmp_path, 3)

    assert made.asked == ["all", "all"]


def test_an_irregular_step_is_traced_at_every_micro_batch_and_that_is_remembered(
    step: Step, tmp_path: Path, made: _Made
) -> None:
    made.irregular = True

    assert _sizes(step(), tmp_path, 3, 4, 3) == [1003, 1004, 1003]
    assert _sizes(step(), tmp_path, 4, 5) == [1004, 1005]
    assert made.asked == ["all", "3", "4", "5"]


def test_a_line_that_does_not_hold_for_one_sequence_is_not_asked_about_it(
    step: Step, tmp_path: Path, made: _Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tracer, "trace_all", lambda spec: dataclasses.replace(made.trace_all(spec), lowest=2)
    )

    for _ in range(2):
        assert _sizes(step(), tmp_path, 1, 2) == [1001, 248]
        assert _flop(step(), tmp_path, 1, 2) == [1001, 25]
    assert made.asked == ["all", "1"]


def test_without_a_folder_nothing_is_kept(step: Step, tmp_path: Path, made: _Made) -> None:
    assert _sizes(step(), None, 3, 4) == [258, 268]
    _sizes(step(), None, 3)

    assert made.asked == ["all", "all"]
    assert list(tmp_path.iterdir()) == []


def test_both_16_bit_types_take_the_same_room_on_cuda_only(step: Step) -> None:
    on_cuda, on_cpu = (
        [step(cuda=cuda, weights=name, autocast=name) for name in ("fp16", "bf16")]
        for cuda in (True, False)
    )

    assert canonical_step(on_cuda[0]) == canonical_step(on_cuda[1]) == on_cuda[1]
    assert canonical_step(on_cpu[0]) == on_cpu[0]
    assert canonical_step(step(cuda=True)) == step(cuda=True)
