"""A family is believed only where every size is one product in all recordings; real ones are
compared with direct traces in tests/rehearsal.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.planning.block_rows import BlockRows, Irregular
from brimful.planning.family_key import StepSize, TraceFamilyKey, family_keys_of
from brimful.planning.products import SmallRecording, TooFew
from brimful.planning.recordings import Recordings
from brimful.planning.step import Lora, StepSpec
from brimful.planning.trace import Trace
from brimful.planning.work import COUNTS, GLOBAL, PARTS, Calls, Details, Work

POINTS = (
    StepSize(4, 185, 4, 185, 555),
    StepSize(5, 1121, 6, 1121, 3363),
    StepSize(4, 602, 10, 602, 1204),
    StepSize(1, 1066, 19, 1066, 800),
)
ADAPTER = {"adapter": Lora(4)}


def _key(**changes: Any) -> TraceFamilyKey:
    config = json.dumps({"model_type": "llama", "max_position_embeddings": 8192})
    return family_keys_of(
        dataclasses.replace(StepSpec(config_json=config, sequence_length=1024), **changes)
    )[0]


def _member(point: StepSize, sizes: list[int], parameters: int) -> Trace:
    """Storages that are born and stay, and one product of m x 8 x 8 that reads the first and writes
    the others.
    """
    count = len(sizes)
    zeros, outside = np.zeros(count, np.int32), np.full(count, GLOBAL, np.int32)
    counts = {name: np.array([1], np.int64) for name in COUNTS} | {
        "bytes_W": np.array([sum(sizes)]),
        "fused_bytes_W": np.array([sum(sizes)]),
    }
    counts |= {
        "m_W": np.array([point.micro_batch * point.sequence_length]),
        "flop_W": np.array([128 * point.micro_batch * point.sequence_length]),
    }
    shapes = {
        f"{name}_W": np.array([0]) for name in ("classes", "dtypes", "parts", "phases", "operators")
    } | {"layers_W": np.array([GLOBAL])}
    none = np.zeros(0, np.int64)
    details = Details(
        np.zeros(count, np.int64),
        np.array(sizes),
        np.array(sizes),
        Calls(none, none, none, none),
        parameters_P=np.array([parameters, 8 * point.rank]),
        trains_P=np.array([0, 1]),
    )
    return Trace(
        events_E=np.arange(1, count + 1, dtype=np.int32),
        event_layers_E=outside,
        sizes_S=np.array(sizes),
        kinds_S=zeros,
        places_S=zeros,
        layers_S=outside,
        places=("x",),
        parameters=parameters + 8 * point.rank,
        trainable=8 * point.rank,
        work=Work(**counts, **shapes, repeats_W=np.ones(1), operators=("mm",)),
        details=details,
    )


def _recordings(
    key: TraceFamilyKey, sizes: Any, points: tuple[StepSize, ...] = POINTS
) -> Recordings:
    """The last point checks the others."""
    *few, check = (
        SmallRecording(point, None, _member(point, sizes(point), 100)) for point in points
    )
    return Recordings(key, tuple(few), (check,), BlockRows("aa", "aa"), "aa")


def test_products_of_all_that_differs_are_found() -> None:
    spec = dataclasses.replace(
        _key(**ADAPTER).member(POINTS[0]), sequence_length=2048, adapter=Lora(32), loss_chunk=4096
    )

    def sizes(point: StepSize) -> list[int]:
        return [
            7,
            0,
            2 * point.micro_batch * point.sequence_length * point.rank,
            4 * point.sequence_length**2,
            3 * point.chunk,
            3 * point.product("L"),
        ]

    made = _recordings(_key(**ADAPTER), sizes).family().at(spec)

    assert made.at(3).sizes_S.tolist() == [7, 0, 2 * 3 * 2048 * 32, 4 * 2048**2, 3 * 4096, 3 * 2048]
    assert (made.trace.parameters, made.trace.trainable) == (100 + 8 * 32, 8 * 32)
    assert made.work is not None
    work = made.work.at(3, 4096)
    assert (work.m_W.tolist(), work.flop_W.tolist()) == ([3 * 2048], [128 * 3 * 2048])


def test_an_evaluation_batch_is_measured_by_its_own_sequences_and_pieces() -> None:
    points = tuple(
        dataclasses.replace(point, micro_batch=1, chunk=share * point.scored // 16)
        for point, share in zip(POINTS, (12, 9, 14, 11), strict=True)
    )
    numbers = {"C": 3, "L": 5, "BTT": 4, "V": 2}
    single = dataclasses.replace(_key(**ADAPTER), is_single=True)
    made = _recordings(
        single,
        lambda point: [
            number * single.evaluated(point).product(name) for name, number in numbers.items()
        ],
        points,
    )
    made = dataclasses.replace(
        made,
        few=tuple(map(_in_evaluation, made.few)),
        checks=tuple(map(_in_evaluation, made.checks)),
    )
    member = dataclasses.replace(
        _key(**ADAPTER).member(points[0]), sequence_length=2048, adapter=Lora(32), loss_chunk=3000
    )

    one = made.family().at(member)

    assert one.at(1).sizes_S.tolist() == [
        3 * 3000,
        5 * (4096 - 3000),
        4 * 2 * 2048**2,
        2 * (2048 - 2),
    ]
    assert one.work is not None
    assert one.work.at(1, 3000).bytes_W.tolist() == [one.at(1).sizes_S.sum()]


def _in_evaluation(member: SmallRecording) -> SmallRecording:
    trace = member.trace
    assert trace.work is not None
    work = dataclasses.replace(trace.work, parts_W=np.array([PARTS.index("evaluation")]))
    trace = dataclasses.replace(trace, marks={"evaluation": 0}, work=work)
    return dataclasses.replace(member, trace=trace)


def test_a_sum_is_no_product(refuses: Refuses) -> None:
    with refuses(Irregular):
        _recordings(_key(), lambda point: [point.micro_batch * point.sequence_length + 8]).family()


def test_a_further_recording_that_differs_is_refused(refuses: Refuses) -> None:
    def sizes(point: StepSize) -> list[int]:
        return [8 * point.sequence_length + (point is POINTS[-1])]

    with refuses(Irregular):
        _recordings(_key(), sizes).family()


def test_recordings_that_cannot_tell_two_products_apart_are_refused(
    refuses: Refuses,
) -> None:
    alike = tuple(
        dataclasses.replace(
            point, sequence_length=185 * point.micro_batch, scored=185 * point.micro_batch
        )
        for point in POINTS
    )

    with refuses(TooFew):
        _recordings(_key(), lambda point: [point.micro_batch * 185], alike).family()


def test_a_step_on_its_own_may_have_sums_of_the_micro_batch_and_the_pieces_of_the_loss() -> None:
    key = family_keys_of(StepSpec("{}", 128))[-1]
    points = tuple(
        StepSize(batch, 128, 1, 128, chunk)
        for batch, chunk in ((4, 384), (5, 400), (4, 256), (7, 640))
    )

    made = _recordings(
        key, lambda point: [1000 + 8 * point.micro_batch - 3 * point.chunk, point.chunk], points
    ).family()

    at = made.at(dataclasses.replace(StepSpec("{}", 128), loss_chunk=200))
    assert (at.base_S[0], at.slope_S[0], at.chunk_slope_S[0]) == (1000, 8, -3)
    with pytest.raises(TooFew):
        _recordings(key, lambda point: [1000 + point.chunk], points[2:]).family()


@pytest.mark.parametrize("change", [1, -3])
def test_large_sums_are_exact(change: int) -> None:
    key = family_keys_of(StepSpec("{}", 128))[-1]
    points = tuple(
        StepSize(batch, 128, 1, 128, chunk)
        for batch, chunk in ((17, 1792), (23, 1792), (17, 1280), (29, 2560))
    )
    large = 2**53 + change

    made = _recordings(key, lambda point: [large + 7 * point.micro_batch], points).family()

    assert made.at(StepSpec("{}", 128)).base_S.tolist() == [large]


def test_members_with_other_events_are_unlike(refuses: Refuses) -> None:
    made = _recordings(_key(), lambda point: [8, 8])
    first, second = made.few[:2]
    other = dataclasses.replace(second.trace, events_E=np.array([2, 1], np.int32))

    with refuses(Irregular):
        dataclasses.replace(
            made, few=(first, dataclasses.replace(second, trace=other))
        ).refuse_unlike()
    with refuses(Irregular):
        dataclasses.replace(
            made,
            few=(dataclasses.replace(first, trace=dataclasses.replace(first.trace, work=None)),),
        ).family()
