"""Which steps differ in length and rank only, and around which lengths a network does nothing
else.
"""

import dataclasses
import json

import pytest

from brimful.integrations.other_tools.stand_ins import PeftAdapter
from brimful.planning.family_key import LONGEST, SHORTEST, StepSize, family_keys_of
from brimful.planning.step import Lora, StepSpec

CONFIG = {"model_type": "llama", "max_position_embeddings": 8192}


def _spec(length: int = 1024, **changes: object) -> StepSpec:
    config = {**CONFIG, **changes.pop("config", {})}  # type: ignore[dict-item]
    return dataclasses.replace(
        StepSpec(config_json=json.dumps(config), sequence_length=length), **changes
    )  # type: ignore[arg-type]


def test_steps_of_other_lengths_ranks_and_pieces_share_a_family() -> None:
    one, other = (
        _spec(1024, adapter=Lora(4), loss_chunk=64),
        _spec(2048, adapter=Lora(99), loss_chunk=128),
    )

    assert family_keys_of(one)[0] == family_keys_of(other)[0]
    assert family_keys_of(one)[1] != family_keys_of(other)[1]


@pytest.mark.parametrize(
    ("length", "config", "lengths"),
    [
        (1024, {}, (SHORTEST, 8192)),
        (1024, {"sliding_window": 4096}, (SHORTEST, 4095)),
        (4096, {"sliding_window": 4096}, (4096, 8192)),
        (5120, {"sliding_window": 4096}, (4096, 8192)),
        (1000, {}, (SHORTEST, 8192)),
        (1000, {"sliding_window": 512}, (512, 8192)),
        (511, {"sliding_window": 512}, (SHORTEST, 511)),
        (1024, {"rope_scaling": {"original_max_position_embeddings": 2048}}, (SHORTEST, 2048)),
        (1024, {"max_position_embeddings": 1000}, (1001, LONGEST)),
    ],
)
def test_windows_and_stretched_positions_bound_the_lengths(
    length: int, config: dict[str, object], lengths: tuple[int, int]
) -> None:
    assert family_keys_of(_spec(length, config=config))[0].lengths == lengths


@pytest.mark.parametrize(
    "changes",
    [
        {"length": 31},
        {"attention": "brimful_blocks"},
        {"method": "feedback", "options_json": '{"feedback": "block"}'},
        {"config": {"model_type": "okadfa"}},
    ],
)
def test_other_kernels_and_very_short_sequences_share_no_family_with_other_lengths(
    changes: dict[str, object],
) -> None:
    assert [key.is_alone for key in family_keys_of(_spec(**changes))] == [True]  # type: ignore[arg-type]
    ranks = [key.has_rank for key in family_keys_of(_spec(**changes, adapter=Lora(4)))]  # type: ignore[arg-type]
    assert ranks == [True, False]


def test_what_blocks_keep_selectively_may_depend_on_length_and_rank() -> None:
    (key,) = family_keys_of(_spec(recompute="selective", adapter=Lora(4)))
    assert key.is_alone


@pytest.mark.parametrize("adapter", [Lora(1), PeftAdapter("IA3", "{}")])
def test_adapters_without_a_rank_to_vary_share_no_family(adapter: object) -> None:
    (key,) = family_keys_of(_spec(adapter=adapter))
    assert key.is_alone


def test_a_model_with_as_many_positions_as_a_sequence_keeps_to_that() -> None:
    key, _ = family_keys_of(
        _spec(
            1024,
            config={"model_type": "gpt2", "n_positions": 1024, "max_position_embeddings": None},
        )
    )
    member = key.member(StepSize(2, 512, 1, 512, 100))

    assert (
        key.follows,
        member.sequence_length,
        member.config["n_positions"],
        member.loss_chunk,
    ) == ("n_positions", 512, 512, 100)


def test_a_member_has_the_rank_and_the_length_of_its_point() -> None:
    member = family_keys_of(_spec(adapter=Lora(4)))[0].member(StepSize(2, 512, 7, 512, 100))

    assert member == _spec(512, adapter=Lora(7), loss_chunk=100)


def test_products_are_those_that_the_step_can_have() -> None:
    assert set(family_keys_of(_spec(loss="model"))[0].products) == {
        "",
        "B",
        "T",
        "BT",
        "TT",
        "BTT",
        "BU",
        "V",
        "G",
        "BG",
        "E",
        "BE",
    }
    assert family_keys_of(_spec(attention="brimful_blocks", adapter=Lora(2)))[0].products == (
        "",
        "B",
        "C",
        "L",
        "r",
        "rB",
        "rC",
        "rL",
    )
    assert (
        "BM"
        in family_keys_of(_spec(method="mlm", options_json='{"masked_share": 0.15}'))[0].products
    )
    with_kernels = family_keys_of(_spec(kernels=True))
    assert set(with_kernels[0].products) >= {"K", "BK", "Q", "BQ", "S", "BS"}
    assert not {"K", "BK"} & set(with_kernels[-1].products)
    alone = family_keys_of(_spec())[-1]
    assert (alone.products, alone.sums) == (("", "B", "C", "L"), (("", "B", "C"),))


def test_one_sequence_at_a_time_leaves_no_products_of_the_micro_batch() -> None:
    key = family_keys_of(_spec())[0]
    single = dataclasses.replace(key, is_single=True)
    one = dataclasses.replace(family_keys_of(_spec())[-1], micro_batch=3)
    size = StepSize(1, 128, 1, 128, 96)

    assert single.products == ("", "T", "TT", "U", "V", "C", "L", "G", "E")
    assert (one.products, one.sums) == (("",), ())
    assert (key.evaluated(size), single.evaluated(size), one.evaluated(size)) == (
        size,
        StepSize(2, 128, 1, 128, 192),
        StepSize(2, 128, 1, 128, 96),
    )


def test_a_product_is_worth_what_its_letters_are() -> None:
    size = StepSize(micro_batch=3, sequence_length=128, rank=5, scored=128, chunk=300)

    assert [size.product(name) for name in ("", "rBT", "BTT", "BU", "V", "C", "L")] == [
        1,
        5 * 3 * 128,
        3 * 128**2,
        3 * 129,
        125,
        300,
        84,
    ]
