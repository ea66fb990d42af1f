"""What follows from a few small recordings is what a direct recording of the whole step shows, to the
byte: for every micro-batch and piece of the loss; where a family leaves them open, also for every
rank, sequence length and network.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from fixture_types import MakeStep, Refuses
from transformers import (
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    JambaConfig,
    Lfm2Config,
    PretrainedConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
    SmolLM3Config,
    Zamba2Config,
)

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.planning.architecture import Widths, values_of, widths
from brimful.planning.block_rows import Irregular
from brimful.planning.family import Family
from brimful.planning.family_file import from_bytes, to_bytes
from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.planning.parametric import ParametricTrace, equal
from brimful.planning.recordings import Recordings
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.planning.trace import Names, Trace
from brimful.planning.work import COUNTS, PARTS, Work
from brimful.rehearsal import tracer
from brimful.rehearsal.models import config_of
from brimful.rehearsal.shipped import widened
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.tracer import record_family
from brimful.rehearsal.training import record_training

CUDA: JsonDict = {
    "cuda": True,
    "autocast": "bf16",
    "sequence_length": 256,
    "loss_chunk": 700,
    "accumulates": False,
}
FROZEN: JsonDict = {**CUDA, "weights": "bf16", "adapter": Lora(4)}
ALONE: JsonDict = {"blocks": 6, "sequence_length": 32, "loss_chunk": 64, "accumulates": False}
NETWORK = widths(h=192, d=24, n=12, g=4, f=328, v=777, blocks=8)
"""Matrices of which most are no multiple of what shares a scale in 4 bits."""


def _gemma(step: MakeStep, **changes: Any) -> StepSpec:
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
def _family(key: TraceFamilyKey, example: Widths | None = None) -> Family:
    return record_family(key, example)


def _alone(spec: StepSpec) -> ParametricTrace:
    """The trace of a step's own micro-batches."""
    return _family(family_keys_of(spec)[-1]).at(spec)


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


@functools.cache
def _direct(spec: StepSpec, micro_batch: int) -> Trace:
    return record_training(spec, config_of(spec), micro_batch)


def _assert_as_traced(family: Family, spec: StepSpec, micro_batch: int) -> None:
    made, direct = family.at(spec), _direct(spec, micro_batch)
    assert _peak_bytes(made.at(micro_batch)) == _peak_bytes(direct)
    assert (made.trace.parameters, made.trace.trainable) == (direct.parameters, direct.trainable)
    assert made.work is not None
    assert _totals(made.work.at(micro_batch, spec.loss_chunk)) == pytest.approx(
        _totals(direct.work), rel=1e-12
    )


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
@pytest.mark.long_but("LoRA, recomputed", "LoRA, recomputed, an odd length", "every weight")
def test_every_rank_and_length_is_as_a_direct_trace_shows(
    step: MakeStep, changes: JsonDict, length: int, rank: int
) -> None:
    spec = _member(step("llama", blocks=1, **changes), length=length, rank=rank)

    _assert_as_traced(_family(_widest(spec)), spec, 3)


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
@pytest.mark.long_but("gpt2")
def test_learned_positions_and_capped_scores_follow_the_length(step: MakeStep, family: str) -> None:
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
    ("family", "place"),
    [("gpt2", {**CUDA, "cuda": False, "autocast": "none"}), ("gemma2", CUDA)],
    ids=["gpt2 on a CPU", "gemma2 on CUDA"],
)
@pytest.mark.long_but("gpt2 on a CPU")
def test_one_sequence_where_it_is_a_special_case_is_as_its_own_trace_shows(
    step: MakeStep, family: str, place: JsonDict
) -> None:
    spec = (
        _gemma(step, **place, adapter=Lora(4, "q_proj,up_proj"), attention="eager")
        if family == "gemma2"
        else _following(step("gpt2", blocks=1, **place))
    )
    made = _family(dataclasses.replace(_widest(spec), is_single=True))

    for length, rank, loss_chunk in ((128, 3, 700), (512, 24, 200)):
        member = _member(spec, length=length, rank=rank)
        _assert_as_traced(made, dataclasses.replace(member, loss_chunk=loss_chunk), 1)


def test_many_blocks_follow_from_few(step: MakeStep) -> None:
    spec = step("llama", blocks=6, **{**FROZEN, "adapter": Lora(4, "q_proj,up_proj")})
    member = _member(spec, length=640, rank=24)

    made, direct = _family(_widest(spec)).at(member), _direct(member, 3)

    assert _peak_bytes(made.at(3)) == _peak_bytes(direct)
    assert (made.trace.parameters, made.trace.trainable) == (direct.parameters, direct.trainable)
    assert made.work is not None
    assert _totals(made.work.at(3, member.loss_chunk)) == pytest.approx(
        _totals(direct.work), rel=1e-12, abs=2
    )


@pytest.mark.parametrize("key", ["widest", "alone"])
def test_a_file_holds_all_of_a_family_in_few_bytes(step: MakeStep, key: str) -> None:
    spec = step("llama", blocks=6, **{**FROZEN, "adapter": Lora(4, "q_proj,up_proj")})
    family = _family(family_keys_of(spec)[0 if key == "widest" else -1])
    content = to_bytes(family)

    read = from_bytes(content)

    assert to_bytes(read) == content
    assert len(content) < 16_000
    made, again = family.at(spec), read.at(spec)
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


def test_once_a_trace_shows_that_four_blocks_do_not_repeat_five_are_taken(
    step: MakeStep, monkeypatch: pytest.MonkeyPatch
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
        record_family(_widest(spec))
    assert traced == [4, 5]


@pytest.mark.parametrize(
    ("family", "changes", "recordings"),
    [("llama", FROZEN, 3), ("gpt2", CUDA, 4)],
    ids=["adapters", "one sequence is a special case"],
)
def test_no_more_is_recorded_than_it_takes(
    step: MakeStep,
    family: str,
    changes: JsonDict,
    recordings: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = []

    def record(*arguments: Any) -> Trace:
        recorded.append(arguments)
        return record_training(*arguments)

    monkeypatch.setattr(tracer, "_ONE_IS_SPECIAL", set())  # what other tests found
    monkeypatch.setattr(tracer, "record_training", record)
    spec = step(family, blocks=1, **changes)
    record_family(_widest(_following(spec) if family == "gpt2" else spec))
    assert len(recorded) == recordings


@pytest.mark.parametrize(
    ("family", "micro_batches", "changes"),
    [
        ("llama", (1, 6), {"autocast": "bf16", "cuda": True}),
        ("bert", (6,), {"recompute": True}),
        ("modernbert", (12,), {"blocks": 2, "loss_chunk": 16, "cuda": True, "autocast": "bf16"}),
        ("gpt2", (5,), {"blocks": 1, "sequence_length": 33, "loss_chunk": 50}),
        (
            "llama",
            (3,),
            {
                "blocks": 2,
                "adapter": Lora(4, dropout=0.1),
                "quantize": "nf4",
                "weights": "bf16",
                "recompute": True,
                "cuda": True,
                "accumulates": True,
            },
        ),
    ],
    ids=[
        "llama on CUDA",
        "bert, recomputed",
        "hidden words in one piece of the loss and in many, on CUDA",
        "pieces that divide no sequence, and an odd length",
        "QLoRA, recomputed, accumulating",
    ],
)
@pytest.mark.long_but("llama on CUDA", "pieces that divide no sequence, and an odd length")
def test_any_micro_batch_is_as_a_direct_trace_shows(
    step: MakeStep, family: str, micro_batches: tuple[int, ...], changes: JsonDict
) -> None:
    spec = step(family, **(ALONE | changes))
    traces = _alone(spec)

    for micro_batch in micro_batches:
        derived, direct = traces.at(micro_batch), _direct(spec, micro_batch)
        assert _peak_bytes(derived) == _peak_bytes(direct), micro_batch
        assert (derived.parameters, derived.trainable) == (direct.parameters, direct.trainable)
        assert equal(derived, direct) or spec.loss == "chunked"
        assert traces.work is not None
        assert _totals(traces.work.at(micro_batch, spec.loss_chunk)) == pytest.approx(
            _totals(direct.work), rel=1e-12, abs=2
        )


@pytest.mark.parametrize(
    "loss_chunk", [32, 48, 64, 96, 1000], ids=lambda tokens: f"{tokens} of 96 tokens"
)
def test_one_set_of_traces_gives_the_peak_for_every_size_of_chunk(
    step: MakeStep, tmp_path_factory: pytest.TempPathFactory, loss_chunk: int
) -> None:
    """The chunked loss of 3 sequences of 32 tokens; logits of 512 entries are most of this model's
    memory.
    """
    folder = tmp_path_factory.getbasetemp() / "traces of chunks"
    spec = step("llama", sequence_length=32, loss_chunk=loss_chunk, accumulates=False)

    traces = StoredTraces(spec, folder)

    assert _peak_bytes(traces.at(3)) == _peak_bytes(_direct(spec, 3))
    assert _totals(traces.work_at(3)) == _totals(_direct(spec, 3).work)


@pytest.mark.long
def test_an_encoder_that_keeps_what_its_blocks_return_has_one_family_of_every_length(
    step: MakeStep,
) -> None:
    """DeBERTa's model asks for all hidden states, which end after its last block. Lengths
    of recordings are rounded up to different multiples of 128: 384 alone could be the width.
    """
    spec = step("deberta-v2", **(ALONE | {"cuda": True, "autocast": "bf16", "attention": "eager"}))
    assert _widest(spec).lengths == (32, 512)
    family = _family(_widest(spec))

    assert len(family.rows.few) < 6
    for length, micro_batch in ((100, 3), (200, 5)):
        _assert_as_traced(family, _member(spec, length=length), micro_batch)


def _one(spec: StepSpec, micro_batch: int) -> ParametricTrace:
    return _family(TraceFamilyKey(spec, micro_batch=micro_batch)).at(spec)


def test_one_micro_batch_of_many_blocks_follows_from_few(step: MakeStep) -> None:
    spec = step("llama", **ALONE)

    made, direct = _one(spec, 1), _direct(spec, 1)

    assert equal(made.at(1), direct)
    assert made.work is not None
    assert _totals(made.work.at(1, spec.loss_chunk)) == pytest.approx(
        _totals(direct.work), rel=1e-12, abs=2
    )


SMALL: JsonDict = {
    "vocab_size": 480,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}
FULL, SLIDING = "full_attention", "sliding_attention"
OF_KINDS: dict[str, PretrainedConfig] = {
    "attention and convolutions in no regular order": Lfm2Config(
        **SMALL,
        num_hidden_layers=16,
        layer_types=[FULL if at in (2, 5, 8, 10, 12, 15) else "conv" for at in range(16)],
    ),
    "windows in five of six blocks": Gemma3TextConfig(
        **SMALL, num_hidden_layers=10, sliding_window=24
    ),
    "windows in every other block": GptOssConfig(
        **SMALL,
        num_hidden_layers=10,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=24,
    ),
    "every fourth block without positions": SmolLM3Config(**SMALL, num_hidden_layers=16),
    "linear attention in three of four blocks": Qwen3_5TextConfig(
        **SMALL,
        num_hidden_layers=12,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    ),
    "experts, and their buffers, in all blocks but the first": DeepseekV3Config(
        **SMALL,
        num_hidden_layers=9,
        first_k_dense_replace=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=32,
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,
    ),
}


FEW: JsonDict = {**FROZEN, "adapter": Lora(4, "q_proj")}


def _of_kinds(name: str, *, recompute: bool) -> StepSpec:
    """Where kinds differ in their own layers, all of them are adapted."""
    config = OF_KINDS[name]
    attention = "eager" if isinstance(config, GptOssConfig) else "sdpa"
    adapted = FROZEN if isinstance(config, Lfm2Config | Qwen3_5TextConfig) else FEW
    values: JsonDict = {**adapted, "kernels": True, "attention": attention, "recompute": recompute}
    return StepSpec(canonical(config.to_dict()), **values)


@pytest.mark.parametrize("name", OF_KINDS)
@pytest.mark.long_but("experts, and their buffers, in all blocks but the first")
def test_blocks_of_several_kinds_follow_from_few(name: str) -> None:
    """Of half of them, what blocks computed is kept; the others are recomputed."""
    spec = _of_kinds(name, recompute=list(OF_KINDS).index(name) % 2 == 1)
    is_eager = spec.attention == "eager"  # whose scores are no product of one length
    key = next(key for key in family_keys_of(spec) if bool(key.lengths) != is_eager)

    family = _family(key)

    assert len(family.rows.few) < len(family.rows.all)
    _assert_as_traced(family, spec, 3)


@pytest.mark.long
def test_blocks_whose_kinds_no_list_tells_are_all_recorded_once_for_all_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Experts in every other block: what is small does not show it, and nothing is tried twice."""
    config = Qwen3MoeConfig(
        **SMALL,
        num_hidden_layers=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        decoder_sparse_step=2,
    )
    spec = StepSpec(canonical(config.to_dict()), **{**FEW, "loss": "model"})
    recorded = []

    def record(*arguments: Any) -> Trace:
        recorded.append(arguments[1].num_hidden_layers)
        return record_training(*arguments)

    monkeypatch.setattr(tracer, "record_training", record)
    *wider, alone = family_keys_of(spec)
    for key in wider:
        with pytest.raises(Irregular):
            record_family(key)
    family = record_family(alone)

    assert family.rows.few == family.rows.all
    assert recorded == [4, 5, 8, 8, 8, 8]
    _assert_as_traced(family, spec, 3)


def test_a_further_trace_that_disagrees_is_believed(
    step: MakeStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that are affine in 5 and 7 sequences, and not in any other number."""
    record = record_training

    def bent(spec: StepSpec, config: Any, micro_batch: int, *rest: Any) -> Trace:
        trace = record(spec, config, micro_batch, *rest)
        return (
            trace
            if micro_batch in (5, 7)
            else dataclasses.replace(trace, sizes_S=trace.sizes_S + 8)
        )

    monkeypatch.setattr(tracer, "record_training", bent)

    with pytest.raises(Irregular):
        record_family(
            family_keys_of(step("llama", sequence_length=24, loss="model", accumulates=False))[-1]
        )


def test_a_model_with_other_blocks_than_its_config_says_has_no_family() -> None:
    config = Zamba2Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=7,
        num_attention_heads=4,
        layer_types=[*["mamba"] * 6, "hybrid"],
        mamba_d_state=16,
        n_mamba_heads=8,
        mamba_ngroups=1,
        adapter_rank=8,
    )
    spec = StepSpec(canonical(config.to_dict()), **{**FROZEN, "kernels": True})

    for key in family_keys_of(spec):
        with pytest.raises(Irregular):
            record_family(key)


def test_blocks_that_multiply_by_packed_weights_are_refused_in_one_sentence(
    step: MakeStep, capfd: pytest.CaptureFixture[str]
) -> None:
    config = JambaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_experts=1, mamba_dt_rank=4
    )
    spec = dataclasses.replace(
        step("llama", **FROZEN, quantize="nf4"), config_json=canonical(config.to_dict())
    )

    with pytest.raises(PlanError, match=r"jamba model cannot be traced: .*; use quantize=none$"):
        StoredTraces(spec, None).at(2)
    assert capfd.readouterr().err == ""


STRUCTURE = {"model_type": "llama", "tie_word_embeddings": True, "max_position_embeddings": 131072}


@functools.cache
def _of_every_width() -> tuple[StepSpec, Recordings, Family]:
    """A step, and recordings and the family of all networks of its structure."""
    spec = StepSpec(
        canonical({**STRUCTURE, **values_of(NETWORK)}),
        512,
        weights="bf16",
        autocast="bf16",
        adapter=Lora(8, "q_proj,down_proj"),
        quantize="nf4",
        accumulates=False,
    )
    wide = widened(family_keys_of(spec)[0], {})
    assert wide is not None
    plain = dataclasses.replace(wide[0].spec, config_json=canonical(STRUCTURE))
    made: list[Recordings] = []

    def remembered(recordings: Recordings) -> Family:
        made.append(recordings)
        return family(recordings)

    family = Recordings.family
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recordings, "family", remembered)
        recorded = record_family(dataclasses.replace(wide[0], spec=plain), NETWORK)
    return spec, made[-1], recorded


@pytest.mark.long
def test_a_network_that_was_not_recorded_is_as_its_own_recordings_show() -> None:
    spec, _, wide = _of_every_width()
    of_network = wide.of(NETWORK)
    assert of_network is not None

    made, own = of_network.at(spec), _family(_widest(spec)).at(spec)

    _assert_equal(made.at(3), own.at(3))
    assert made.work is not None
    assert own.work is not None
    _assert_equal(made.work.at(3, 700), own.work.at(3, 700))
    assert wide.of(dataclasses.replace(NETWORK, blocks=5)) is None
    assert to_bytes(from_bytes(to_bytes(wide))) == to_bytes(wide)


@pytest.mark.parametrize("which", ["few", "checks"])
def test_a_size_of_a_network_that_is_no_product_is_refused(which: str, refuses: Refuses) -> None:
    _, recordings, _ = _of_every_width()
    member, *others = getattr(recordings, which)
    sizes_S = member.trace.sizes_S.copy()
    sizes_S[np.flatnonzero(member.trace.layers_S == 2)[-1]] += 4
    trace = dataclasses.replace(member.trace, sizes_S=sizes_S)
    changed = (dataclasses.replace(member, trace=trace), *others)

    with refuses(Irregular):
        dataclasses.replace(recordings, **{which: changed}).family()  # type: ignore[arg-type]


def test_networks_with_other_events_are_refused(refuses: Refuses) -> None:
    _, recordings, _ = _of_every_width()
    first, second = recordings.few[:2]
    events_E = second.trace.events_E.copy()
    events_E[[40, 41]] = events_E[[41, 40]]
    other = dataclasses.replace(second, trace=dataclasses.replace(second.trace, events_E=events_E))

    with refuses(Irregular):
        dataclasses.replace(recordings, few=(first, other)).family()
