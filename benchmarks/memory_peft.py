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
Describe = Callable[[Mapping[str, str], int | None], Described]


def _on_layers(
    row: Mapping[str, str],
    peft_type: str,
    weights: Callable[[int, int], int],
    *,
    rank: int = 0,
    **settings: Any,
) -> tuple[Adapter, int]:
    """An adapter on the row's linear layers, and its weights in all of them, which follow from the
    input and output width of each.
    """
    targets = tuple(row["lora_targets"].split("+"))
    if rank:
        settings["r"] = rank
    settings["target_modules"] = list(targets)
    expected = LAYERS * sum(weights(*IN_OUT[target]) for target in targets)
    return Adapter(peft_type, settings, rank=rank, targets=targets), expected


def _by_rank(peft_type: str, weights: Callable[[int, int, int], int]) -> Describe:
    def describe(row: Mapping[str, str], trainable: int | None) -> Described:
        rank = int(row["lora_rank"])
        return _on_layers(row, peft_type, lambda *widths: weights(rank, *widths), rank=rank)

    return describe


def _from_number(describe: Callable[[Mapping[str, str], int], Described]) -> Describe:
    """Settings that follow from the number of trained weights, where the row has it."""
    return lambda row, trainable: None if trainable is None else describe(row, trainable)


def _lora(row: Mapping[str, str], trainable: int | None) -> Described:
    rank, dora = int(row["lora_rank"]), "dora=True" in row["notes"]
    settings = {"use_dora": True} if dora else {}
    return _on_layers(
        row,
        "LORA",
        lambda width_in, width_out: rank * (width_in + width_out) + dora * width_out,
        rank=rank,
        **settings,
    )


def _miss(row: Mapping[str, str], trainable: int | None) -> Described:
    rank, is_bat = int(row["lora_rank"]), row["notes"].split(";")[0].endswith("-bat")
    settings = {"init_weights": "bat"} if is_bat else {}
    return _on_layers(row, "MISS", lambda _, width_out: rank * width_out, rank=rank, **settings)


def _ia3(row: Mapping[str, str], trainable: int | None) -> Described:
    targets = row["lora_targets"].split("+")
    feedforward = [each for each in targets if each in ("gate_proj", "up_proj", "down_proj")]
    adapter, _ = _on_layers(row, "IA3", max, feedforward_modules=feedforward)
    return adapter, LAYERS * sum(
        IN_OUT[target][0 if target in feedforward else 1] for target in targets
    )


def _layer_norms(row: Mapping[str, str], trainable: int | None) -> Described:
    targets = tuple(row["lora_targets"].split("+"))
    settings = {"target_modules": list(targets)}
    adapter = Adapter("LN_TUNING", settings, targets=targets, dtype="weights")
    return adapter, (2 * LAYERS + 1) * HIDDEN


def _fourier(row: Mapping[str, str], trainable: int) -> Described:
    frequencies = trainable // (LAYERS * len(row["lora_targets"].split("+")))
    return _on_layers(row, "FOURIERFT", lambda *_: frequencies, n_frequency=frequencies)


def _c3a(row: Mapping[str, str], trainable: int) -> Described:
    _, weights = _on_layers(row, "C3A", lambda width_in, width_out: width_in * width_out)
    block = weights // trainable
    return _on_layers(
        row,
        "C3A",
        lambda width_in, width_out: width_in * width_out // max(block, 1),
        block_size=block,
    )


def _oft(row: Mapping[str, str], trainable: int) -> Described:
    rank = int(row["lora_rank"])
    return _on_layers(
        row,
        "OFT",
        lambda width_in, _: width_in * (width_in // rank - 1) // 2,
        rank=rank,
        oft_block_size=0,
    )


def _road(row: Mapping[str, str], trainable: int) -> Described:
    _, one = _on_layers(row, "ROAD", lambda _, width_out: width_out)
    number = trainable // one
    return _on_layers(
        row,
        "ROAD",
        lambda _, width_out: width_out * (number if number in (1, 2, 4) else 0),
        variant=f"road_{number}",
    )


def _virtual_tokens(peft_type: str, weights_each: int, weights_once: int = 0) -> Describe:
    def describe(row: Mapping[str, str], trainable: int) -> Described:
        tokens = (trainable - weights_once) // weights_each
        adapter = Adapter(peft_type, {"num_virtual_tokens": tokens})
        return adapter, weights_once + tokens * weights_each

    return _from_number(describe)


METHODS: Mapping[str, Describe] = {
    "lora": _lora,
    "delora": _by_rank("DELORA", lambda rank, *widths: rank * sum(widths) + 1),
    "gralora": _by_rank("GRALORA", lambda rank, *widths: rank * sum(widths)),
    "hira": _by_rank("HIRA", lambda rank, *widths: rank * sum(widths)),
    "deft": _by_rank("DEFT", lambda rank, *widths: rank * sum(widths)),
    "glora": _by_rank("GLORA", lambda rank, *widths: 2 * rank * sum(widths)),
    "vera": _by_rank("VERA", lambda rank, _, width_out: rank + width_out),
    "pvera": _by_rank("PVERA", lambda rank, _, width_out: 2 * rank + width_out),
    "peanut": _by_rank("PEANUT", lambda rank, _, width_out: 2 * rank * width_out),
    "randlora": _by_rank(
        "RANDLORA", lambda rank, *widths: min(widths) // rank * (rank + min(widths))
    ),
    "beft": lambda row, _: _on_layers(row, "BEFT", lambda _, width_out: width_out),
    "miss": _miss,
    "bone": _miss,
    "ia3": _ia3,
    "ln_tuning": _layer_norms,
    "fourierft": _from_number(_fourier),
    "c3a": _from_number(_c3a),
    "oft": _from_number(_oft),
    "road": _from_number(_road),
    "prompt_tuning": _virtual_tokens("PROMPT_TUNING", HIDDEN),
    "prefix_tuning": _virtual_tokens("PREFIX_TUNING", 2 * LAYERS * KEY_VALUE_WIDTH),
    "p_tuning": _virtual_tokens("P_TUNING", HIDDEN, 3 * (HIDDEN * HIDDEN + HIDDEN)),
}
