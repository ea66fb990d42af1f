"""Preferences as TRL learns them: loss, rewards and gradients of every variant that both have.

    python benchmarks/preferences_trl.py [--only sigmoid hinge] [--published sigmoid]

Both sides get the same weights in fp32 and the same four pairs on one CPU thread: brimful through its
kind of run `pairs` and its own accumulation, packed and padded, with micro-batches of 1, 2 and 4 pairs;
TRL through its DPOTrainer (of trl.experimental: CPOTrainer and ORPOTrainer), their collators and their
own computation of the loss, all pairs in one batch. The bases are a tiny Llama and
SmolLM2-135M-Instruct cut to two layers and to text without a chat template; tuned are LoRA adapters,
whose reference is the model with them switched off, and all weights, whose reference is kept from before
they were changed. The token ids that each side makes of the texts are compared, too: CPOTrainer and
ORPOTrainer put the tokenizer's beginning-of-text in front, which neither the tokenizer nor DPOTrainer
does.

All of it twice: in fp32, whose rounding a reward, a small difference of two sums, shows; and in
doubles, with TRL's norms, head and kept log-probabilities of a reference in doubles, too, so that only
what ORPOTrainer takes to fp32 is rounded.

Compared are the loss, the rewards of all answers and the gradients of all parameters, each as one vector,
and the gradient of the parameter that differs the most: the norm of the difference over the norm of
TRL's. TRL is also compared with itself: with attention written out instead of PyTorch's, which shows
what rounding alone does, and in smaller batches, which shows where its loss depends on them: its SFT
term is a mean over the tokens of a batch, brimful's over those of the step.

Where TRL has a loss only in a certain form, it is asked for that form: label-smoothed DPO is its `aot`
with batches of one pair, which sorts nothing; ORPO is compared on prompts of one token, because TRL's
ORPOTrainer adds the loss of the prompts' tokens, too, which is not in the paper (equation 2 is of the
answer).
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import peft
import torch
import transformers
import trl
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from brimful.data.tokenizer import as_transformers, train_backend
from brimful.kinds.run_data import ScoringOptions, gather
from brimful.model.obtained import folder_of_model
from brimful.model.tokenizer import load_tokenizer
from brimful.recipe import load
from brimful.recipe.data import TokenizerRecipe
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Network, find_method, hidden_states_of
from brimful.training.precision import Precision
from contestant import planned
from record import write_record

PAIRS, MICRO_BATCHES, LAYOUTS = 4, (1, 2, 4), ("packed", "padded")
LIMIT = 1e-6
BETA, SMOOTHING, MARGIN, SFT_WEIGHT = 0.2, 0.1, 0.6, 0.5
"""None of them a default, so that none is left out unseen."""
PROMPTS = (
    "Which planet is closest to the sun?",
    "Add 17 and 25, then halve what comes out.",
    "Name a colour.",
    "Write one sentence about a river that freezes in winter.",
)
ANSWERS = (
    (" Mercury.", " It is Venus, I think."),
    (" Their sum is 42, and so 21.", " 84"),
    (" Green", " I would rather not."),
    (" The river falls silent under ice.", " River cold."),
)
"""Few tokens, because a reward is a small difference of two sums over them, and fp32 has 7 digits."""
RANK = 4
"""Of the adapters."""
SHORT = "?"
"""A prompt of one token."""
RECIPE = """
name: preferences
method: dpo
model: BASE
sequence_length: 80
batch: {sequences: 4}
training: {steps: 1}
data: {path: TEXTS}
optimizer: {learning_rate: 1e-3}
evaluation: {base: never}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
"""


@dataclass(frozen=True)
class Variant:
    """A loss on both sides.

    Attributes:
        ours: Of the section preference.
        trl: Of the configuration of a trainer of TRL's.
        trainer: The trainer's name without Trainer.
        batch: Pairs of TRL's batches.
        prompts: Whether the prompts are those above; else `SHORT`.
    """

    ours: dict[str, Any]
    trl: dict[str, Any]
    trainer: str = "DPO"
    batch: int = PAIRS
    prompts: bool = True


VARIANTS = {
    "sigmoid": Variant({}, {"loss_type": ["sigmoid"]}),
    "label-smoothed": Variant(
        {"label_smoothing": SMOOTHING},
        {"loss_type": ["aot"], "label_smoothing": SMOOTHING},
        batch=1,
    ),
    "length-normalised": Variant({"per_token": True}, {"loss_type": ["sigmoid_norm"]}),
    "with SFT": Variant(
        {"sft_weight": SFT_WEIGHT},
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, SFT_WEIGHT]},
    ),
    "hinge": Variant({"loss": "hinge"}, {"loss_type": ["hinge"]}),
    "ipo": Variant({"loss": "ipo"}, {"loss_type": ["ipo"]}),
    "robust": Variant(
        {"loss": "robust", "label_smoothing": SMOOTHING},
        {"loss_type": ["robust"], "label_smoothing": SMOOTHING},
    ),
    "cpo": Variant(
        {"loss": "cpo", "sft_weight": SFT_WEIGHT},
        {"loss_type": "sigmoid", "cpo_alpha": SFT_WEIGHT},
        "CPO",
    ),
    "simpo": Variant(
        {"loss": "simpo", "margin": MARGIN},
        {"loss_type": "simpo", "simpo_gamma": MARGIN, "cpo_alpha": 0.0},
        "CPO",
    ),
    "orpo": Variant({"loss": "orpo"}, {}, "ORPO", prompts=False),
}
TUNINGS = ("LoRA", "full")
DTYPES = ("float32", "float64")


def _norm_as_it_comes(norm: Any, hidden: Any) -> Any:
    """Llama's norm in the type of its input; transformers has it in fp32."""
    return torch.nn.functional.rms_norm(
        hidden, (hidden.shape[-1],), norm.weight, norm.variance_epsilon
    )


class _Head(trl.trainer.utils._ChunkedLogProbFunction):  # type: ignore[misc] # it has no types
    """TRL's head and loss, which round to fp32, but for doubles."""

    @classmethod
    def apply(cls, hidden: Any, weight: Any, bias: Any, labels: Any, *settings: Any) -> Any:
        if hidden.dtype != torch.float64:
            return super().apply(hidden, weight, bias, labels, *settings)
        logits = torch.nn.functional.linear(hidden, weight, bias)
        logs = logits.log_softmax(-1)
        entropy = -(logs.exp() * logs).sum(-1)
        log_probs = logs.gather(-1, labels[:, None])[:, 0]
        return log_probs, entropy, None, logits.mean(-1), logits.argmax(-1) == labels


LlamaRMSNorm.forward = _norm_as_it_comes
trl.trainer.utils._ChunkedLogProbFunction = _Head
BASES = ("tiny", "SmolLM2-135M-Instruct, 2 layers")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument(
        "--published",
        nargs="*",
        choices=VARIANTS,
        default=list(VARIANTS),
        help="of these on SmolLM2, which takes most of the time",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows, tokens = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for base, variants in zip(BASES, (options.only, options.published), strict=True):
            source = _write_base(Path(folder) / base.split()[0].strip(","), base)
            tokens[base] = _same_tokens(source)
            for name in variants:
                for tuning in TUNINGS:
                    for dtype in DTYPES:
                        rows += _compare(source, base, name, tuning, dtype)
    worst, in_doubles = (_worst(rows, dtype, *LAYOUTS) for dtype in DTYPES)
    by_rounding = _worst(rows, "float32", OTHER_ATTENTION)
    print(worst, in_doubles, by_rounding, file=sys.stderr)
    if options.only == list(VARIANTS):
        values = {"pairs": PAIRS, "limit": LIMIT, "same_tokens": tokens, "worst": worst}
        values |= {"worst_in_doubles": in_doubles, "worst_by_rounding": by_rounding}
        values |= {"loads": os.getloadavg(), "rows": rows}
        print(write_record("preferences_trl", values))


DIFFERENCES = ("loss", "rewards", "gradient", "gradient_of_a_parameter")
OTHER_ATTENTION = "TRL with attention written out"
"""Beside its own of PyTorch: what rounding alone does."""
TWO_BATCHES = "TRL in two batches"
"""Beside one: more than rounding where the loss has a term over the tokens of a batch."""


def _worst(rows: list[dict[str, Any]], dtype: str, *layouts: str) -> dict[str, float]:
    own = [row for row in rows if row["dtype"] == dtype and row["layout"] in layouts]
    return {key: max(row[key] for row in own) for key in DIFFERENCES}


def _write_base(folder: Path, base: str) -> Path:
    """Write a model of two layers with a tokenizer without a chat template, both in files."""
    torch.manual_seed(7)
    if base == "tiny":
        texts = [
            prompt + "".join(answers) for prompt, answers in zip(PROMPTS, ANSWERS, strict=True)
        ]
        tokenizer = as_transformers(train_backend(TokenizerRecipe(vocabulary=397), 3 * texts))
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.1,
            eos_token_id=tokenizer.eos_token_id,
        )
        model = LlamaForCausalLM(config)
    else:
        source = folder_of_model("smollm2-135m-instruct")
        tokenizer = load_tokenizer(source)
        model = AutoModelForCausalLM.from_pretrained(
            source, num_hidden_layers=2, dtype=torch.float32
        )
    tokenizer.chat_template = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _texts(*, prompts: bool) -> list[dict[str, str]]:
    return [
        {"prompt": prompt if prompts else SHORT, "chosen": chosen, "rejected": rejected}
        for prompt, (chosen, rejected) in zip(PROMPTS, ANSWERS, strict=True)
    ]


@cache
def _plan(source: Path, tuning: str) -> Any:
    """The plan of the first variant; the others' differ in nothing that is used here."""
    return planned(_recipe(source, tuning, VARIANTS["sigmoid"]), str(source))[1]


def _recipe(source: Path, tuning: str, variant: Variant) -> Any:
    """With sequences as long as the longest answer, so that few pairs fit into a micro-batch."""
    folder = source / ("texts" if variant.prompts else "texts of short prompts")
    folder.mkdir(exist_ok=True)
    texts = _texts(prompts=variant.prompts)
    held_out = [{**row, "prompt": f"{row['prompt']} "} for row in texts]
    for name, rows in (("train", texts), ("validation", held_out)):
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    recipe = source / "recipe.yaml"
    recipe.write_text(RECIPE.replace("BASE", str(source)).replace("TEXTS", str(folder)))
    said = [f"preference.{key}={str(value).lower()}" for key, value in variant.ours.items()]
    adapter = [f"adapter={{rank: {RANK}, alpha: {2 * RANK}}}"] * (tuning == "LoRA")
    changes = [*adapter, f"preference.beta={BETA}", *said]
    splits = gather(load(str(recipe), changes), str(source)).splits.values()
    longest = max(int(split.lengths_E.max()) for split in splits) - 1
    return load(str(recipe), [*changes, f"sequence_length={longest}"])


def _compare(source: Path, base: str, name: str, tuning: str, dtype: str) -> list[dict[str, Any]]:
    """One row for each layout and micro-batch of brimful's."""
    variant = VARIANTS[name]
    recipe = _recipe(source, tuning, variant)
    data, plan = gather(recipe, str(source)), _plan(source, tuning)
    model = data.build(plan, torch.device("cpu"))
    options = ScoringOptions(plan=plan, device=torch.device("cpu"), rows=2 * PAIRS)
    model.to(getattr(torch, dtype))
    data.keep_reference(model, Path(tempfile.mkdtemp(dir=source)), {"of": "it"}, options)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    _change(model)
    split = data.splits["train"]
    weights = (before, model.state_dict())
    expected = _by_trl(source, variant, tuning, split, *weights)
    about: dict[str, Any] = {"base": base, "variant": name, "tuning": tuning, "dtype": dtype}
    about |= {"loss_of_trl": expected.loss, "rewards_of_trl": expected.rewards}
    rows = []
    again = _by_trl(source, variant, tuning, split, *weights, attention="eager")
    rows.append(about | {"layout": OTHER_ATTENTION} | _apart(again, expected))
    if variant.batch == PAIRS:
        again = _by_trl(source, replace(variant, batch=2), tuning, split, *weights)
        rows.append(about | {"layout": TWO_BATCHES} | _apart(again, expected))
    for layout in LAYOUTS:
        batch = data.sequences(replace(plan, packing=layout)).batch(0, PAIRS)
        for size in MICRO_BATCHES:
            found, passes = _by_brimful(recipe, model, batch, size)
            how = {"layout": layout, "micro_batch": size, "passes": passes}
            rows.append(about | how | _apart(found, expected))
    print(base, name, tuning, dtype, _worst(rows, dtype, *LAYOUTS), file=sys.stderr, flush=True)
    return rows


def _change(model: Any) -> None:
    """Give every trained weight a change that is large enough for ratios to the reference that are
    far from 0.
    """
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for each in model.parameters():
            if each.requires_grad:
                size = 0.5 * float(each.std()) or 0.3
                each.add_(size * torch.randn(each.shape, generator=generator))


@dataclass(frozen=True)
class Result:
    """Of one step.

    Attributes:
        loss: mean over the pairs.
        rewards: of the chosen answers in ascending order, then of the rejected ones.
        gradients: by parameter.
    """

    loss: float
    rewards: list[float]
    gradients: dict[str, Any]


def _apart(found: Result, expected: Result) -> dict[str, float]:
    assert found.gradients.keys() == expected.gradients.keys(), "other parameters are trained"
    parts = [
        (float((found.gradients[key] - each).norm()), float(each.norm()))
        for key, each in expected.gradients.items()
    ]
    assert all(norm > 0 for _, norm in parts), "a parameter that is not trained"
    differences, norms = zip(*parts, strict=True)
    return {
        "loss": abs(found.loss / expected.loss - 1),
        "rewards": math.dist(found.rewards, expected.rewards) / math.hypot(*expected.rewards),
        "gradient": math.hypot(*differences) / math.hypot(*norms),
        "gradient_of_a_parameter": max(each / norm for each, norm in parts),
    }


def _by_brimful(recipe: Any, model: Any, batch: Any, size: int) -> tuple[Result, int]:
    """The step in passes of at most `size` pairs, and how many there were."""
    noted: dict[str, list[float]] = {}

    def note(name: str, values: Any, counts: Any) -> None:
        noted.setdefault(name, []).extend(values[counts > 0].tolist())

    model.zero_grad()
    pieces = list(batch.micro_batches((size,)))
    loss = accumulate_gradients(
        Network(model, hidden_states_of(model), loss_chunk=16, note=note),
        find_method("dpo").with_options(recipe.loss_options),
        Precision("fp32"),
        torch.device("cpu"),
        pieces,
        torch.tensor(1 / batch.loss_divisor),
    )
    gradients = {key: each.grad for key, each in model.named_parameters() if each.requires_grad}
    rewards = [*sorted(noted["reward_chosen"]), *sorted(noted["reward_rejected"])]
    gradients = {key: each.clone() for key, each in gradients.items()}
    return Result(float(loss) / PAIRS, rewards, gradients), len(pieces)


def _by_trl(
    source: Path,
    variant: Variant,
    tuning: str,
    split: Any,
    before: Any,
    after: Any,
    attention: str = "sdpa",
) -> Result:
    """The same step by TRL.

    Args:
        before: Weights of the reference, by brimful's names.
        after: Those that are trained.
        attention: How TRL's model computes it.
    """
    trainer = _trainer(source, variant, tuning, attention)
    model, names = trainer.model, _names(trainer.model)
    dtype = next(iter(after.values())).dtype
    model.to(dtype)
    examples = _examples(split)
    torch.set_default_dtype(
        dtype
    )  # of the numbers of a reference that a collator makes a tensor of
    _take(model, names, before)
    if _keeps(variant, tuning):
        rows = datasets.Dataset.from_list(examples)
        examples = list(trainer._precompute_ref_logps(rows, "train", PAIRS))
    _take(model, names, after)
    model.train()
    model.zero_grad()
    losses = []
    for start in range(0, PAIRS, variant.batch):
        loss, _ = _loss(trainer, examples[start : start + variant.batch])
        (loss * variant.batch / PAIRS).backward()
        losses.append(float(loss))
    with torch.no_grad():
        alone = [_loss(trainer, [each])[1] for each in examples]
    torch.set_default_dtype(torch.float32)
    rewards = [
        reward
        for which in ("chosen", "rejected")
        for reward in sorted(metrics[f"rewards/{which}"] for metrics in alone)
    ]
    gradients = {
        names[key]: each.grad.clone()
        for key, each in model.named_parameters()
        if each.requires_grad
    }
    return Result(statistics.mean(losses), rewards, gradients)


def _loss(trainer: Any, examples: list[dict[str, Any]]) -> tuple[Any, dict[str, float]]:
    """The loss of a batch by TRL, and what it reports of it."""
    if isinstance(trainer, trl.DPOTrainer):
        loss = trainer.compute_loss(trainer.model, trainer.data_collator(examples))
        return loss, {key: values[-1] for key, values in trainer._metrics["train"].items()}
    inputs = trainer.data_collator([_for_experimental(each) for each in examples])
    found: tuple[Any, dict[str, float]] = trainer.get_batch_loss_metrics(trainer.model, inputs)
    return found


def _trainer(source: Path, variant: Variant, tuning: str, attention: str = "sdpa") -> Any:
    """One of TRL's."""
    module = (
        trl
        if variant.trainer == "DPO"
        else import_module(f"trl.experimental.{variant.trainer.lower()}")
    )
    settings: dict[str, Any] = {"precompute_ref_log_probs": True} if _keeps(variant, tuning) else {}
    arguments = getattr(module, f"{variant.trainer}Config")(
        output_dir=str(source / "trl"),
        beta=variant.ours.get("beta", BETA),
        use_cpu=True,
        bf16=False,
        report_to=[],
        gradient_checkpointing=False,
        disable_tqdm=True,
        per_device_train_batch_size=PAIRS,
        **settings,
        **variant.trl,
    )
    lora = peft.LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return getattr(module, f"{variant.trainer}Trainer")(
        model=AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, attn_implementation=attention
        ),
        args=arguments,
        train_dataset=datasets.Dataset.from_list(_texts(prompts=variant.prompts)),
        processing_class=transformers.AutoTokenizer.from_pretrained(source),
        **({"peft_config": lora} if tuning == "LoRA" else {}),
    )


def _keeps(variant: Variant, tuning: str) -> bool:
    """Whether TRL computes the reference's log-probabilities before."""
    return variant.trainer == "DPO" and tuning == "full"


def _names(model: Any) -> dict[str, str]:
    """brimful's names of parameters, by TRL's."""
    return {key: key.removeprefix("base_model.model.") for key, _ in model.named_parameters()}


def _take(model: Any, names: Mapping[str, str], weights: Mapping[str, Any]) -> None:
    with torch.no_grad():
        for key, each in model.named_parameters():
            each.copy_(weights[names[key]])


def _examples(split: Any) -> list[dict[str, list[int]]]:
    """brimful's token ids as DPOTrainer keeps them, pair by pair."""
    answers = []
    for start, end in pairwise(split.offsets_E.tolist()):
        ids, is_target = split.tokens_N[start:end].tolist(), split.is_target_N[start:end]
        prompt = int(is_target.argmax())
        assert is_target.sum() == len(ids) - prompt
        answers.append((ids[:prompt], ids[prompt:]))
    return [
        {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
        for (prompt, chosen), (other, rejected) in zip(answers[::2], answers[1::2], strict=True)
        if prompt == other
    ]


def _for_experimental(example: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """The same as CPOTrainer and ORPOTrainer keep it."""
    prompt, row = example["prompt_ids"], dict[str, list[int]]()
    for which in ("chosen", "rejected"):
        answer = example[f"{which}_ids"]
        row |= {
            f"{which}_input_ids": prompt + answer,
            f"{which}_attention_mask": [1] * len(prompt + answer),
            f"{which}_labels": [-100] * len(prompt) + answer,
        }
    return row


def _same_tokens(source: Path) -> dict[str, bool]:
    """Whether both make the same ids of the texts, by TRL's trainer."""
    found = {}
    for variant in (VARIANTS["sigmoid"], VARIANTS["cpo"], VARIANTS["orpo"]):
        ours = _examples(gather(_recipe(source, "LoRA", variant), str(source)).splits["train"])
        if variant.trainer != "DPO":
            ours = [_for_experimental(each) for each in ours]
        theirs = list(_trainer(source, variant, "LoRA").train_dataset)
        found[f"{variant.trainer}Trainer"] = all(
            row[key] == values
            for row, own in zip(theirs, ours, strict=True)
            for key, values in own.items()
        )
    return found


if __name__ == "__main__":
    main()
