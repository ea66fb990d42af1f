"""Rows of huggingface/peft's method_comparison/MetaMathQA: Llama-3.2-3B on an L40S with peft's own
loop.

What is known, and from where (run.py, utils.py, data.py and the results' JSON):
- bf16 weights, no autocast, adapters in fp32 (autocast_adapter_dtype), AdamW of torch (foreach on
  CUDA), gradients clipped at 1, micro-batch 4, no accumulation, no compile, attention as
  transformers chooses (sdpa), activation checkpointing only where the column says so. LoRA has
  alpha 2 r and no dropout.
- `outputs` stays bound over the step, so the logits and, as `use_cache` is left on, the keys and
  values of the batch outlive it: the published mean of allocated bytes after a step is weights,
  states, gradients, two cuBLAS workspaces and 371,208 bytes per padded position (logits 256,512,
  keys and values 114,688, ids and mask).
- The published maximum is torch's max_memory_reserved of the whole run. It differs between methods
  as their training steps do, so evaluation (batch 50, at most 800 positions, no gradients) stays
  below the longest training batch. Mean and 99th percentile are read after every step. The cache is
  emptied after every step in runs until 2025, since January 2026 after every tenth (run.py's
  ACCELERATOR_EMPTY_CACHE_SCHEDULE); that lifts mean and percentile by a fifth and hardly the
  maximum.
- Batches of 4 are sorted by length inside buckets of 80 and padded to their longest (so all but a
  few carry a mask with zeros). Texts over 1,300 characters are dropped, tokens after the 768th cut;
  the lengths are not published. Two constants of the data set stand for them: MEAN_PADDED_TOKENS
  from the mean allocation of plain LoRA with rank 32 (traced allocations then fit some 20 other
  methods to 0.05 %), and LONGEST_TOKENS from reserved maxima: traced allocations, replayed through
  the documented rules of the caching allocator, fit eight methods (LoRA of three kinds, MiSS, IA3,
  VeRA, HiRA) to 0.7 % at 684. A bucket's longest batch comes first, so right after an emptied
  cache, and the outputs held from the step before are those of a short batch.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from brimful.base.units import GIB
from left_out import LeftOut
from memory_stack import Adapter, Stack, loss_of_transformers, version_of

MEAN_PADDED_TOKENS = 224
LONGEST_TOKENS = 684
DEVICES = {"NVIDIA L40S": "NVIDIA L40S"}
MODELS = ("meta-llama/Llama-3.2-3B",)
LAYERS, HIDDEN, KEY_VALUE_WIDTH, MLP_WIDTH = 28, 3072, 1024, 8192
IN_OUT: Mapping[str, tuple[int, int]] = {
    "q_proj": (HIDDEN, HIDDEN),
    "k_proj": (HIDDEN, KEY_VALUE_WIDTH),
    "v_proj": (HIDDEN, KEY_VALUE_WIDTH),
    "o_proj": (HIDDEN, HIDDEN),
    "gate_proj": (HIDDEN, MLP_WIDTH),
    "up_proj": (HIDDEN, MLP_WIDTH),
    "down_proj": (MLP_WIDTH, HIDDEN),
}
FIRST_EMPTYING_EVERY_TENTH = "2026"


def stack_of(row: Mapping[str, str]) -> Stack | LeftOut:
    """The stack of a row of peft's method comparison.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    problem = _problem(row)
    if problem:
        return LeftOut(problem)
    adapter = None if row["method"] == "full" else _adapter(row)
    if isinstance(adapter, LeftOut):
        return adapter
    notes = row["notes"]
    library_version = _word(notes, r"transformers ([\d.]+)")
    recomputes = row["activation_checkpointing"] == "True"
    return Stack(
        configuration=notes.split(";")[0].replace("llama-3.2-3B-", ""),
        model=row["model"],
        micro_batch=int(row["micro_batch"]),
        sequence_length=min(LONGEST_TOKENS, int(row["seq_len"])),
        lengths="longest",
        length_inferred=True,
        mean_sequence_length=MEAN_PADDED_TOKENS if int(row["seq_len"]) >= LONGEST_TOKENS else None,
        padded=True,
        device=DEVICES[row["gpu"]],
        kind="reserved",
        measured_gib=float(row["peak_memory_gib"]) if row["peak_memory_gib"] else None,
        others_gib=_others(notes),
        status="oom" if row["status"] == "oom" else "ok",
        loss=loss_of_transformers(version_of(library_version)),
        weights="bf16",
        adapter=adapter,
        recompute="reentrant" if recomputes else "none",
        attention="sdpa",
        optimizer="foreach",
        keeps_outputs=True,
        use_cache=not recomputes,
        empties_cache_every=(
            1 if _word(notes, r"created (\d{4})") < FIRST_EMPTYING_EVERY_TENTH else 10
        ),
        torch_version=_word(notes, r"torch ([\d.]+)"),
        library_version=library_version,
    )


def _problem(row: Mapping[str, str]) -> str | None:
    if not row["micro_batch"] or not row["seq_len"]:
        return "batch and length are not stated"
    if row["gpu"] not in DEVICES or row["model"] not in MODELS:
        return f"{row['model']} on {row['gpu']} is not known"
    if (row["precision"], row["compile"], row["grad_accum"]) != ("bfloat16", "False", "1"):
        return (
            f"precision {row['precision']}, compile {row['compile']}, accumulation"
            f" {row['grad_accum']} are not known"
        )
    if row["optimizer"] == "lora-fa":
        return (
            "LoRA-FA: whether the frozen half gets gradients changed between versions of peft,"
            " which the row does not name"
        )
    return None if row["optimizer"] == "AdamW" else f"optimizer {row['optimizer']!r} is not known"


def _others(notes: str) -> dict[str, float]:
    patterns = {
        "reserved_mean": r"reserved avg (\d+) B",
        "reserved_99th": r"reserved 99th (\d+) B",
        "allocated_mean_after_step": r"allocated avg (\d+) B",
    }
    found = {name: re.search(pattern, notes) for name, pattern in patterns.items()}
    return {name: int(match[1]) / GIB for name, match in found.items() if match}


def _word(notes: str, pattern: str) -> str:
    found = re.search(pattern, notes)
    if found is None:
        raise ValueError(f"no {pattern!r} in the notes")
    return found[1]


def _adapter(row: Mapping[str, str]) -> Adapter | LeftOut:
    """The adapter in peft's own terms, accepted only if it has as many trained weights as the row
    says (where it says so).
    """
    method = row["method"].removeprefix("peft:")
    describe = METHODS.get(method)
    if describe is None:
        return LeftOut(
            f"{method}: its settings are not in the row, or fake tensors cannot build it"
        )
    trainable = re.search(r"trainable (\d+)", row["notes"])
    described = describe(row, int(trainable[1]) if trainable else None)
    if described is None:
        return LeftOut(
            f"{method}: the row does not say how many weights it trains, which its settings follow"
            " from"
        )
    adapter, expected = described
    if trainable and expected != int(trainable[1]):
        return LeftOut(
            f"{method}: a variant of it; the settings known here train another number of weights"
            " than the row says"
        )
    experiment = row["notes"].split(";")[0]
    if not trainable and method == "lora" and not PLAIN_LORA.search(experiment):
        return LeftOut(f"{method}: a variant of it without a number of trained weights")
    return adapter


PLAIN_LORA = re.compile(r"-rank\d+(-dora|-rslora|-target-mlp)?$")
Described = tuple[Adapter, int] | None


def _targets(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row["lora_targets"].split("+"))


def _sum_over(row: Mapping[str, str], count: Callable[[int, int], int]) -> int:
    """Weights of all layers, `count` giving those of a linear layer from its input and output
    width.
    """
    return LAYERS * sum(count(*IN_OUT[target]) for target in _targets(row))


def _low_rank(
    peft_type: str, rank_name: str = "r", extra_per_layer: int = 0
) -> Callable[[Mapping[str, str], int | None], Described]:
    def describe(row: Mapping[str, str], trainable: int | None) -> Described:
        rank = int(row["lora_rank"])
        dora = "dora=True" in row["notes"]
        expected = _sum_over(
            row,
            lambda width_in, width_out: (
                rank * (width_in + width_out) + dora * width_out + extra_per_layer
            ),
        )
        settings: dict[str, Any] = {
            rank_name: rank,
            "target_modules": list(_targets(row)),
            **({"use_dora": True} if dora else {}),
        }
        return Adapter(peft_type, settings, rank=rank, targets=_targets(row)), expected

    return describe


def _by_rank(
    peft_type: str, count: Callable[[int, int, int], int]
) -> Callable[[Mapping[str, str], int | None], Described]:
    def describe(row: Mapping[str, str], trainable: int | None) -> Described:
        rank = int(row["lora_rank"])
        expected = _sum_over(row, lambda width_in, width_out: count(rank, width_in, width_out))
        return (
            Adapter(
                peft_type,
                {"r": rank, "target_modules": list(_targets(row))},
                rank=rank,
                targets=_targets(row),
            ),
            expected,
        )

    return describe


def _miss(row: Mapping[str, str], trainable: int | None) -> Described:
    rank = int(row["lora_rank"])
    settings: dict[str, Any] = {"r": rank, "target_modules": list(_targets(row))}
    if row["notes"].split(";")[0].endswith("-bat"):
        settings["init_weights"] = "bat"
    return Adapter("MISS", settings, rank=rank, targets=_targets(row)), _sum_over(
        row, lambda _, width_out: rank * width_out
    )


def _ia3(row: Mapping[str, str], trainable: int | None) -> Described:
    feedforward = [
        target for target in _targets(row) if target in ("gate_proj", "up_proj", "down_proj")
    ]
    expected = LAYERS * sum(
        IN_OUT[target][0 if target in feedforward else 1] for target in _targets(row)
    )
    settings = {"target_modules": list(_targets(row)), "feedforward_modules": feedforward}
    return Adapter("IA3", settings, targets=_targets(row)), expected


def _beft(row: Mapping[str, str], trainable: int | None) -> Described:
    return Adapter(
        "BEFT", {"target_modules": list(_targets(row))}, targets=_targets(row)
    ), _sum_over(row, lambda _, width_out: width_out)


def _layer_norms(row: Mapping[str, str], trainable: int | None) -> Described:
    return (
        Adapter(
            "LN_TUNING",
            {"target_modules": list(_targets(row))},
            targets=_targets(row),
            dtype="weights",
        ),
        (2 * LAYERS + 1) * HIDDEN,
    )


def _fourier(row: Mapping[str, str], trainable: int | None) -> Described:
    if trainable is None:
        return None
    frequencies = trainable // (LAYERS * len(_targets(row)))
    settings = {"n_frequency": frequencies, "target_modules": list(_targets(row))}
    return Adapter("FOURIERFT", settings, targets=_targets(row)), _sum_over(
        row, lambda *_: frequencies
    )


def _c3a(row: Mapping[str, str], trainable: int | None) -> Described:
    if trainable is None:
        return None
    block = _sum_over(row, lambda width_in, width_out: width_in * width_out) // trainable
    settings = {"block_size": block, "target_modules": list(_targets(row))}
    return Adapter("C3A", settings, targets=_targets(row)), _sum_over(
        row, lambda width_in, width_out: width_in * width_out // max(block, 1)
    )


def _oft(row: Mapping[str, str], trainable: int | None) -> Described:
    if trainable is None:
        return None
    rank = int(row["lora_rank"])
    settings = {"r": rank, "oft_block_size": 0, "target_modules": list(_targets(row))}
    return Adapter("OFT", settings, rank=rank, targets=_targets(row)), _sum_over(
        row, lambda width_in, _: width_in * (width_in // rank - 1) // 2
    )


def _road(row: Mapping[str, str], trainable: int | None) -> Described:
    if trainable is None:
        return None
    one = _sum_over(row, lambda _, width_out: width_out)
    settings = {"variant": f"road_{trainable // one}", "target_modules": list(_targets(row))}
    return Adapter("ROAD", settings, targets=_targets(row)), (
        one * (trainable // one) if trainable // one in (1, 2, 4) else 0
    )


def _virtual_tokens(
    peft_type: str, weights_each: int, weights_once: int = 0
) -> Callable[[Mapping[str, str], int | None], Described]:
    def describe(row: Mapping[str, str], trainable: int | None) -> Described:
        if trainable is None:
            return None
        tokens = (trainable - weights_once) // weights_each
        return (
            Adapter(peft_type, {"num_virtual_tokens": tokens}),
            weights_once + tokens * weights_each,
        )

    return describe


METHODS: Mapping[str, Callable[[Mapping[str, str], int | None], Described]] = {
    "lora": _low_rank("LORA"),
    "delora": _low_rank("DELORA", extra_per_layer=1),
    "gralora": _low_rank("GRALORA"),
    "hira": _low_rank("HIRA"),
    "deft": _low_rank("DEFT"),
    "glora": _by_rank("GLORA", lambda rank, width_in, width_out: 2 * rank * (width_in + width_out)),
    "vera": _by_rank("VERA", lambda rank, _, width_out: rank + width_out),
    "pvera": _by_rank("PVERA", lambda rank, _, width_out: 2 * rank + width_out),
    "peanut": _by_rank("PEANUT", lambda rank, _, width_out: 2 * rank * width_out),
    "randlora": _by_rank(
        "RANDLORA",
        lambda rank, width_in, width_out: (
            min(width_in, width_out) // rank * (rank + min(width_in, width_out))
        ),
    ),
    "beft": _beft,
    "miss": _miss,
    "bone": _miss,
    "ia3": _ia3,
    "ln_tuning": _layer_norms,
    "fourierft": _fourier,
    "c3a": _c3a,
    "oft": _oft,
    "road": _road,
    "prompt_tuning": _virtual_tokens("PROMPT_TUNING", HIDDEN),
    "prefix_tuning": _virtual_tokens("PREFIX_TUNING", 2 * LAYERS * KEY_VALUE_WIDTH),
    "p_tuning": _virtual_tokens("P_TUNING", HIDDEN, 3 * (HIDDEN * HIDDEN + HIDDEN)),
}
