"""Supervised fine-tuning on a CPU: brimful's loop beside TRL's SFTTrainer, same weights, examples,
effective batch and optimizer settings.

    python -m venv TRL && TRL/bin/pip install -c constraints.txt -r
    benchmarks/finetune-requirements.txt python benchmarks/finetune_cpu.py --data
    FOLDER/gpteacher_codegen --trl-python TRL/bin/python [--rounds 7] [--steps 10] [--only "TRL,
    default"] [--lora] [--model smollm2-135m-instruct] [--quantize nf4]

Without --model the weights are fresh, 16.9M of them. A published model is tuned on examples of at
most 512 tokens, with --lora --quantize nf4 over a base in 4 bits, as TRL's documentation of QLoRA
loads it (bitsandbytes' NF4, double quantisation, products in bf16).

Rules: one thread each, CPU time, every contestant its own process, interleaved forwards and
backwards, warm-up and compiling excluded and reported, median of paired ratios with a bootstrap
interval. Useful tokens are those of the examples; padding counts for nobody. A step is of 8
examples, or packed to a row of as many tokens as they have on average.

TRL's bf16 is its default. Every setting of it runs in fp32, too (", fp32"), and with brimful's
setting of the allocator (", memory kept"); without --only the two that were the fastest do.

Validity gates, over answers' tokens as both sides learn them: contestants that see the examples in
the same order have the same training loss (`LOSS_TOLERANCE`) over the last 10 steps of the gate;
those that reorder them (packing, grouping by length) the same held-out loss after as many steps
(`REORDERED_TOLERANCE`, because other examples at other steps are another run). The gate is steps 4
to 43 unless --warm-up and --gate-steps say otherwise. Held-out losses are taken after the timed steps, so that
scoring does not count as memory of training.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contestant import (
    LORA,
    QUIET,
    TUNING,
    Contestant,
    Worker,
    and_memory_kept,
    fastest,
    interleaved,
    setting,
    step_by_step,
    tune_ours,
)

LOSS_TOLERANCE, REORDERED_TOLERANCE = 0.005, 0.02
"""Relative."""
WARM_UP_STEPS = 3
GATE_STEPS = 40
HELD_OUT = 100
OF_PUBLISHED = ", max_documents: 1500, long_documents: drop"
"""How many examples a published model is tuned on, and what becomes of those above 512 tokens."""
EXAMPLES_PER_STEP = 8
"""TRL's default batch."""
MODEL = """
name: finetune-cpu-base
sequence_length: 512
batch: {sequences: 8}
training: {steps: 1}
model: {architecture: llama, layers: 6, heads: 6, width: 384, mlp_width: 1024, tie_embeddings: false}
tokenizer: {kind: bpe, vocabulary: 8192}
data: {path: "builtin:python-code"}
optimizer: {learning_rate: 1e-3}
"""
RECIPE = """
name: finetune-cpu
method: sft
model: BASE
sequence_length: 512
batch: {sequences: 8}
training: {steps: 100000}
data: {path: DATA, validation: 0.05EXAMPLES}
optimizer: {learning_rate: 1e-4, schedule: constant, warmup: 0, weight_decay: 0.0, beta2: 0.95}
plan: {device: cpu, threads: 1}
"""
PADDING_FREE = {"gradient_checkpointing": False, "padding_free": True, "max_length": None}
BFD = {
    "gradient_checkpointing": False,
    "packing": True,
    "per_device_train_batch_size": 1,
    "train_sampling_strategy": "random",
}
GROUPED = {"gradient_checkpointing": False, "train_sampling_strategy": "group_by_length"}
COMPILED = {"torch_compile": True}
TRL: dict[str, dict[str, Any]] = {
    "TRL, default": {},
    "TRL, no recomputation": {"gradient_checkpointing": False},
    "TRL, padding-free": PADDING_FREE,
    "TRL, packing (bfd)": BFD,
    "TRL, packing (bfd) + compile": BFD | COMPILED,
    "TRL, grouped by length": GROUPED,
    "TRL, grouped by length + compile": GROUPED | COMPILED,
}
TRL |= {f"{name}, fp32": row | {"bf16": False} for name, row in TRL.items()}
FASTEST = ["TRL, packing (bfd) + compile", "TRL, grouped by length"]
REORDERED = ("packing", "grouped")
OURS = {
    "brimful": [],
    "brimful, not compiled": ["plan.compile=false"],
    "brimful, not compiled, one at a time": ["plan.compile=false", "plan.micro_batch=1"],
    "brimful, fp32": ["plan.precision=fp32"],
    "brimful, bf16": ["plan.precision=bf16"],
}
DEFAULT = "TRL, default"
NAMES = [
    DEFAULT,
    *and_memory_kept([name + fp32 for name in FASTEST for fp32 in ("", ", fp32")]),
    *OURS,
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--data",
        required=True,
        help="file or folder of examples with instruction, input and answer",
    )
    parser.add_argument("--trl-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--only",
        action="append",
        help="contestants, by name; without it all; a record needs all, but of a published model",
    )
    parser.add_argument(
        "--model", default="", help="short name or folder of a published model, instead of fresh"
    )
    parser.add_argument(
        "--gate-steps", type=int, default=GATE_STEPS, help="steps whose losses are compared"
    )
    parser.add_argument(
        "--warm-up", type=int, default=WARM_UP_STEPS, help="steps before anything is asked"
    )
    parser.add_argument(
        "--minutes", type=float, default=600, help="after which no further round begins"
    )
    parser.add_argument(
        "--held-out", type=int, default=HELD_OUT, help="examples of the held-out loss"
    )
    parser.add_argument(
        "--lora",
        action="store_true",
        help="LoRA, rank 16 on every linear layer, instead of all weights",
    )
    parser.add_argument(
        "--quantize", choices=["nf4"], help="4 bits for the frozen base of a published model"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quantize and not (options.lora and options.model):
        parser.error("--quantize is of the frozen base of a published model: add --lora --model")
    if options.worker:
        _Worker(options).work()
    else:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), options)


def _contestant(name: str, folder: Path, options: argparse.Namespace) -> Contestant:
    """With a compiler cache of its own: nobody reads another's half-written files."""
    command = [
        sys.executable if name in OURS else options.trl_python,
        __file__,
        "--worker",
        name,
        "--folder",
        str(folder),
        "--data",
        options.data,
    ]
    cache = tempfile.mkdtemp(suffix=".inductor", dir=folder)
    command += ["--held-out", str(options.held_out), "--model", options.model]
    command += ["--warm-up", str(options.warm_up)]
    command += ["--lora"] * options.lora
    if options.quantize:
        command += ["--quantize", options.quantize]
    return Contestant(name, folder, command, {"TORCHINDUCTOR_CACHE_DIR": cache})


def _compare(folder: Path, options: argparse.Namespace) -> None:
    from record import of_this_kind_of_cpu, write_record

    end_s = time.monotonic() + 60 * options.minutes
    about = _prepare(folder, options.data, options.model)
    names = options.only or NAMES
    contestants = [_contestant(name, folder, options) for name in names]
    losses = {each.name: each.ask(f"losses {options.gate_steps}") for each in contestants}
    rates: dict[str, list[float]] = {each.name: [] for each in contestants}
    tokens_per_step: dict[str, float] = {}
    loads: list[float] = []
    for each in interleaved(contestants, options.rounds, loads):
        if each is contestants[0 if len(loads) % 2 else -1] and time.monotonic() > end_s:
            break
        cpu_s, tokens = each.ask(f"run {options.steps}")
        rates[each.name].append(tokens / cpu_s)
        tokens_per_step[each.name] = tokens / options.steps
        print(f"{each.name}: {tokens / cpu_s:,.0f} useful tokens/s", file=sys.stderr, flush=True)
    memory = {each.name: each.ask("memory") for each in contestants}
    precisions = {each.name: each.ask("precision") for each in contestants}
    held_out = {each.name: each.ask("score") for each in contestants}
    for each in contestants:
        each.quit()
    results = {
        each.name: (
            _result(each.name, rates, losses, held_out)
            | {
                "memory": memory[each.name],
                "precision": precisions[each.name],
                "tokens_per_step": tokens_per_step[each.name],
                "start_and_warm_up": each.start,
            }
        )
        for each in contestants
    }
    for name, result in results.items():
        _print(name, result)
    values = {
        "tuning": _tuning(options),
        "rounds": min(map(len, rates.values())),
        "steps": options.steps,
        "contestant_threads": 1,
        "not_run": [name for name in NAMES if name not in names],
    }
    if options.model:
        values |= {
            "model": options.model,
            "warm_up_steps": options.warm_up,
            "gate_steps": options.gate_steps,
        }
    if options.only is None or options.model:
        print(
            write_record(
                of_this_kind_of_cpu(
                    "finetune_cpu"
                    + "_published" * bool(options.model)
                    + _SUFFIXES[_tuning(options)]
                ),
                values | {"data": about, "loads": loads, "results": results},
            )
        )


_SUFFIXES = {"full": "", "LoRA r16": "_lora", "QLoRA r16, NF4": "_qlora"}
"""Of a record's name."""


def _tuning(options: argparse.Namespace) -> str:
    if options.quantize:
        return "QLoRA r16, NF4"
    return "LoRA r16" if options.lora else "full"


def _result(
    name: str,
    rates: dict[str, list[float]],
    losses: dict[str, list[float]],
    held_out: dict[str, float],
) -> dict[str, Any]:
    from record import ratio_interval, summary

    reference = DEFAULT if DEFAULT in rates else next(iter(rates))
    best = fastest({each: [1 / rate for rate in rates[each]] for each in rates})
    is_reordered = any(word in name for word in REORDERED)
    last = {each: statistics.mean(losses[each][-10:]) for each in losses}
    off = (
        held_out[name] / held_out[reference] - 1
        if is_reordered
        else last[name] / last[reference] - 1
    )
    return {
        "useful_tokens_per_cpu_s": summary(rates[name]),
        "speed_over_default": ratio_interval(rates[name], rates[reference]),
        "best_of_trl": best,
        "speed_over_best": ratio_interval(rates[name], rates[best]),
        "loss_of_the_last_10_steps": last[name],
        "held_out_loss": held_out[name],
        "order_of_examples": "its own" if is_reordered else "the same",
        "valid": abs(off) < (REORDERED_TOLERANCE if is_reordered else LOSS_TOLERANCE),
    }


def _print(name: str, result: dict[str, Any]) -> None:
    default, best, memory = (
        result["speed_over_default"],
        result["speed_over_best"],
        result["memory"],
    )
    print(
        f"{name:<34} {result['useful_tokens_per_cpu_s']['median']:6,.0f} useful tokens/s "
        f" {default['median']:.2f}x default [{default['low']:.2f}, {default['high']:.2f}] "
        f" {best['median']:.2f}x best [{best['low']:.2f}, {best['high']:.2f}]  loss"
        f" {result['loss_of_the_last_10_steps']:.4f} held out {result['held_out_loss']:.4f}"
        f" {'valid' if result['valid'] else 'NOT VALID'}  {memory['peak_bytes'] / 2**20:,.0f} MiB,"
        f" {(memory['peak_bytes'] - memory['before_bytes']) / 2**20:,.0f} over its start"
    )


def _prepare(folder: Path, data: str, model: str) -> dict[str, Any]:
    """Base model, tokenizer and recipe as files, and the examples in their order as one file that
    every contestant reads.
    """
    from brimful.data.examples import prepare_examples
    from brimful.model.obtained import folder_of_model
    from brimful.model.tokenizer import load_tokenizer
    from brimful.recipe import load

    (folder / "recipe.yaml").write_text(
        RECIPE.replace("BASE", str(folder / "base"))
        .replace("DATA", json.dumps(data))
        .replace("EXAMPLES", OF_PUBLISHED * bool(model))
    )
    recipe = load(str(folder / "recipe.yaml"))
    if model:
        source = Path(model) if Path(model).is_dir() else folder_of_model(model)
        (folder / "base").symlink_to(source.resolve())
        tokenizer = load_tokenizer(folder / "base")
    else:
        tokenizer = _fresh_base(folder, recipe)
    return _write_examples(folder, prepare_examples(recipe, tokenizer), recipe.seed)


def _fresh_base(folder: Path, recipe: Any) -> Any:
    """Write a model with fresh weights and a tokenizer trained on the examples; return the
    tokenizer.
    """
    import torch

    from brimful.data.formats import examples_of, text_of_prompt
    from brimful.data.sources import open_rows
    from brimful.data.tokenizer import as_transformers, train_backend
    from brimful.model.build import build
    from brimful.recipe import load
    from brimful.recipe.data import TokenizerRecipe

    (folder / "model.yaml").write_text(MODEL)
    model = load(str(folder / "model.yaml"))
    rows = (row for part in open_rows(recipe.data).parts for row in part.splits["train"])
    texts = [
        f"{text_of_prompt(example)}\n{example.completion}"
        for example in examples_of(rows, recipe.data)
    ]
    tokenizer = as_transformers(train_backend(TokenizerRecipe(vocabulary=8192), texts))
    build(
        model,
        vocabulary=len(tokenizer),
        end_of_text_id=0,
        attention="sdpa",
        device=torch.device("cpu"),
    ).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return tokenizer


def _write_examples(folder: Path, examples: Any, seed: int) -> dict[str, Any]:
    """Write the splits in the order of the run, and return what they are."""
    import numpy as np

    from brimful.data.sequences import Shuffle

    for name, split in (
        ("train", examples.splits["train"]),
        ("held_out", examples.splits["validation"]),
    ):
        order = Shuffle(split.num_examples, seed).draw(0, split.num_examples)[0][0]
        tokens, is_target = (
            np.split(array, split.offsets_E[1:-1]) for array in (split.tokens_N, split.is_target_N)
        )
        np.savez(
            folder / f"{name}.npz",
            tokens_N=np.concatenate([tokens[e] for e in order]),
            is_target_N=np.concatenate([is_target[e] for e in order]),
            offsets_E=np.concatenate([[0], np.cumsum(split.lengths_E[order])]),
        )
    lengths = examples.splits["train"].lengths_E
    quantiles = {f"{share:.0%}": int(np.quantile(lengths, share)) for share in (0.05, 0.5, 0.95, 1)}
    learned = examples.splits["train"].num_target_tokens / examples.splits["train"].num_tokens
    return {
        "examples": len(lengths),
        "mean_tokens": float(lengths.mean()),
        "tokens_at": quantiles,
        "share_learned": learned,
    }


class _Worker(Worker):
    """Runs one contestant."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options.worker, Path(options.folder), options.warm_up)
        self.lora, self.num_held_out = options.lora, options.held_out
        self.quantize: str | None = options.quantize
        self.base_in_bf16 = options.lora and bool(options.model)
        """For TRL, as it loads SmolLM2, which is published in bf16; brimful plans the type."""
        self.useful_tokens: Callable[[], int]
        """Those of all steps so far."""

    def work(self) -> None:
        train_brimful(self) if self.name in OURS else train_with_trl(self)

    def examples(self, name: str) -> list[tuple[list[int], list[int]]]:
        """Tokens and labels of each, in order."""
        import numpy as np

        with np.load(self.folder / f"{name}.npz") as stored:
            tokens = np.split(stored["tokens_N"].astype(np.int64), stored["offsets_E"][1:-1])
            is_target = np.split(stored["is_target_N"], stored["offsets_E"][1:-1])
        return [
            (ids.tolist(), np.where(learned, ids, -100).tolist())
            for ids, learned in zip(tokens, is_target, strict=True)
        ]

    def work_done(self) -> int:
        return self.useful_tokens()

    def asked(self, word: str) -> Any:
        if word == "score":
            return held_out_loss(self.model(), self.examples("held_out")[: self.num_held_out])
        return super().asked(word)


def held_out_loss(model: Any, examples: list[tuple[list[int], list[int]]]) -> float:
    """Nats per learned token in fp32, one example at a time, by the model's own logits."""
    import torch

    model.eval()
    total, count = 0.0, 0
    with (
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.compiler.set_stance("force_eager"),
    ):
        for ids, labels in examples:
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(
                logits, torch.tensor(labels[1:]), reduction="sum"
            ).item()
            count += sum(label != -100 for label in labels[1:])
    model.train()
    return total / count


def train_with_trl(worker: _Worker) -> None:
    """TRL's SFTTrainer, stopped and timed at step boundaries by a callback."""
    import datasets
    import torch
    import transformers
    import trl

    examples = worker.examples("train")
    rows = datasets.Dataset.from_dict(
        {"input_ids": [ids for ids, _ in examples], "labels": [labels for _, labels in examples]}
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(worker.folder / "base")
    settings = (
        {"per_device_train_batch_size": EXAMPLES_PER_STEP, "train_sampling_strategy": "sequential"}
        | TUNING
        | TRL[setting(worker.name)]
    )
    if "packing" in settings:
        lengths = [len(ids) for ids, _ in examples]
        mean = sum(lengths) / len(lengths)
        settings["max_length"] = max(*lengths, round(EXAMPLES_PER_STEP * mean))
    worker.precision = "bf16" if settings.get("bf16", True) else "fp32"
    is_bf16 = worker.base_in_bf16 and worker.precision == "bf16"
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(
        worker.folder / "base", dtype=dtype, **_in_four_bits(worker.quantize)
    )
    stepwise, gate = step_by_step(trl.SFTTrainer, worker)
    arguments = trl.SFTConfig(
        output_dir=str(worker.folder / "trl"),
        **QUIET,
        **settings,
    )
    lora = (
        {"peft_config": __import__("peft").LoraConfig(**LORA, task_type="CAUSAL_LM")}
        if worker.lora
        else {}
    )
    trainer = stepwise(
        model=model,
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[gate],
        **lora,
    )
    worker.model, worker.useful_tokens = (
        lambda: trainer.accelerator.unwrap_model(trainer.model),
        lambda: int(trainer._total_train_tokens),
    )
    worker.note_memory()
    trainer.train()


def _in_four_bits(quantize: str | None) -> dict[str, Any]:
    """What `from_pretrained` is told, as TRL's documentation of QLoRA does."""
    import torch
    import transformers

    if quantize is None:
        return {}
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantize,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": config, "device_map": "cpu"}


def train_brimful(worker: _Worker) -> None:
    """brimful's own loop."""
    from brimful.recipe import load

    adapter = [f"adapter={{rank: {LORA['r']}, alpha: {LORA['lora_alpha']}}}"] if worker.lora else []
    base = [] if worker.quantize is None else [f"quantize={worker.quantize}"]
    recipe = load(str(worker.folder / "recipe.yaml"), [*OURS[worker.name], *adapter, *base])
    sizes = [len(ids) for ids, _ in worker.examples("train")]
    worker.useful_tokens = lambda: sum(sizes[: worker.steps * EXAMPLES_PER_STEP])
    tune_ours(worker, recipe)


if __name__ == "__main__":
    main()
