"""Peak memory of real Trainers' own steps on this CPU beside the prediction.

    python benchmarks/trainer_jobs.py [--only WORDS]

Rules: the prediction is made before the first step, by rehearsing the trainer's loop without values
on the largest micro-batch of the run; then the same trainer trains, all of its steps under torch's
profiler, whose allocation events are summed. Both count bytes as asked for. Models have random
weights. One thread. The data order is one whose largest micro-batch comes neither in the first
step, which has no optimizer states yet, nor as the first of an accumulated one, which finds no
gradients: a run of four steps could end without ever needing what a longer one does. Fails where a
peak is off by more than `TOLERANCE`; a record is written of all jobs.
"""

import argparse
import gc
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    LlamaConfig,
    Qwen3Config,
    Trainer,
    TrainingArguments,
)

from brimful.integrations.hf_trainer.batches import longest_batch
from brimful.integrations.hf_trainer.rehearsed import RehearsedStep, rehearse
from brimful.model.catalog import config_of_model
from brimful.rehearsal.training import without_garbage_collector
from measured_steps import read_profile, storage_bytes
from record import write_record

TOLERANCE = 0.01
STEPS, SEED, LATER_SEED = 4, 3, 7
VOCABULARY = 4096
DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ENCODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}
LORA: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
Job = Callable[[], Any]


def decoder(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def llama(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**DECODER | changes)


def rows_of(lengths: tuple[int, int], count: int = 64) -> list[dict[str, Any]]:
    """Rows of random tokens, their lengths drawn between two ends."""
    drawn = np.random.default_rng(0)
    sizes = drawn.integers(lengths[0], lengths[1] + 1, count)
    ids = [drawn.integers(3, VOCABULARY, size).tolist() for size in sizes]
    return [{"input_ids": each, "labels": each} for each in ids]


def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A collator that pads to the longest row."""
    longest = max(len(row["input_ids"]) for row in rows)

    def column(name: str, fill: int) -> Tensor:
        return torch.tensor([row[name] + [fill] * (longest - len(row[name])) for row in rows])

    batch = {"input_ids": column("input_ids", 0), "attention_mask": column("input_ids", 0).ne(0)}
    labels = rows[0]["labels"]
    as_list = isinstance(labels, list)
    batch["labels"] = (
        column("labels", -100) if as_list else torch.tensor([row["labels"] for row in rows])
    )
    return batch


def classified(count: int = 64) -> list[dict[str, Any]]:
    return [row | {"labels": index % 2} for index, row in enumerate(rows_of((40, 200), count))]


def settings(**values: Any) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": STEPS,
        "seed": SEED,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_strategy": "no",
        "per_device_train_batch_size": 4,
        **values,
    }


def plain(model: nn.Module, rows: Any = None, *, options: Any = None, **values: Any) -> Trainer:
    """transformers' own Trainer."""
    return Trainer(
        model=model,
        args=TrainingArguments(**settings(**values)),
        train_dataset=rows or rows_of((192, 192)),
        data_collator=padded,
        **options or {},
    )


def adapted(model: nn.Module) -> nn.Module:
    made: nn.Module = get_peft_model(model, LoraConfig(**LORA, task_type="CAUSAL_LM"))
    return made


def own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Any:
    logits = outputs.logits[:, :-1].float().flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    return loss / num_items_in_batch


def _words() -> Any:
    """A tokenizer of numbered words, with the vocabulary of the models."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>"]
    words = {word: index for index, word in enumerate(special)}
    words |= {f"w{number}": number for number in range(len(special), VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, special[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = dict(zip(("pad_token", "bos_token", "eos_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _texts(count: int = 96) -> Any:
    import datasets

    rows = rows_of((20, 180), count)
    texts = [" ".join(f"w{number}" for number in row["input_ids"]) for row in rows]
    return datasets.Dataset.from_dict({"text": texts})


def _pairs(count: int = 32) -> Any:
    import datasets

    words = _texts(count)["text"]
    return datasets.Dataset.from_dict(
        {
            "prompt": [text[: len(text) // 2] for text in words],
            "chosen": [text[len(text) // 2 :] for text in words],
            "rejected": list(reversed([text[len(text) // 2 :] for text in words])),
        }
    )


def sft(model: nn.Module, options: Any = None, **values: Any) -> Any:
    """TRL's SFTTrainer, with its own defaults where nothing else is said."""
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        model=model,
        args=SFTConfig(**settings(**values)),
        train_dataset=_texts(),
        processing_class=_words(),
        **options or {},
    )


def dpo(model: nn.Module, options: Any = None, **values: Any) -> Any:
    """TRL's DPOTrainer."""
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(
        model=model,
        args=DPOConfig(**settings(**values)),
        train_dataset=_pairs(),
        processing_class=_words(),
        **options or {},
    )


def jobs() -> Mapping[str, Job]:
    """The jobs by name; those of TRL begin with its trainers' names."""
    qwen = Qwen3Config(**DECODER, head_dim=64, tie_word_embeddings=True)
    gpt2 = GPT2Config(vocab_size=VOCABULARY, n_embd=256, n_layer=8, n_head=4, n_positions=256)
    accumulated = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    recomputed = {"gradient_checkpointing": True}
    return {
        "Trainer, llama, full, fp32": lambda: plain(decoder(llama())),
        "Trainer, gpt2, full, fp32, dropout, accumulated": lambda: plain(
            decoder(gpt2), **accumulated
        ),
        "Trainer, qwen3, full, bf16 autocast, accumulated": lambda: plain(
            decoder(qwen), bf16=True, **accumulated
        ),
        "Trainer, llama, full, recomputed, padded rows": lambda: plain(
            decoder(llama()), rows_of((40, 200)), **recomputed
        ),
        "Trainer, llama, full, pure bf16": lambda: plain(decoder(llama(), torch.bfloat16)),
        "Trainer, llama, full, Adafactor, no clipping": lambda: plain(
            decoder(llama()), optim="adafactor", max_grad_norm=0.0
        ),
        "Trainer, llama, full, loss function of one's own": lambda: plain(
            decoder(llama()), options={"compute_loss_func": own_loss}
        ),
        "Trainer, llama, full, label smoothing": lambda: plain(
            decoder(llama()), label_smoothing_factor=0.1
        ),
        "Trainer, llama, LoRA, fp32": lambda: plain(adapted(decoder(llama()))),
        "Trainer, llama, LoRA, bf16 autocast, recomputed, accumulated": lambda: plain(
            adapted(decoder(llama())), bf16=True, **recomputed, **accumulated
        ),
        "Trainer, bert, classifier, padded rows": lambda: plain(
            BertForSequenceClassification(BertConfig(**ENCODER)), classified()
        ),
        "Trainer, bert, masked language model, bf16 autocast": lambda: plain(
            BertForMaskedLM(BertConfig(**ENCODER)), bf16=True
        ),
        "Trainer, SmolLM2-135M's shape, full, recomputed": lambda: plain(
            decoder(config_of_model("HuggingFaceTB/SmolLM2-135M")),
            **recomputed | {"per_device_train_batch_size": 2},
        ),
        "SFTTrainer, llama, default": lambda: sft(decoder(llama())),
        "SFTTrainer, llama, default, accumulated": lambda: sft(
            decoder(llama()), seed=LATER_SEED, **accumulated
        ),
        "SFTTrainer, llama, fp32, no recomputation": lambda: sft(
            decoder(llama()), bf16=False, gradient_checkpointing=False
        ),
        "SFTTrainer, qwen3, packing": lambda: sft(decoder(qwen), packing=True, max_length=256),
        "SFTTrainer, llama, packing, LoRA": lambda: sft(
            decoder(llama()), {"peft_config": LoraConfig(**LORA)}, packing=True, max_length=256
        ),
        "DPOTrainer, llama, default": lambda: dpo(
            decoder(llama()), {"ref_model": decoder(llama())}
        ),
        "DPOTrainer, llama, LoRA": lambda: dpo(
            decoder(llama()), {"peft_config": LoraConfig(**LORA)}
        ),
    }


def measure(trainer: Any) -> dict[str, Any]:
    """Predict, then train and measure."""
    started_s = time.process_time()
    passes = trainer.args.gradient_accumulation_steps
    batch = longest_batch(trainer, trainer.args.per_device_train_batch_size, passes)
    trace = rehearse(trainer, RehearsedStep(batch, passes, cuda=False, flash=False))
    plan_s = time.process_time() - started_s
    start_bytes = sum(
        storage_bytes(each)
        for each in {
            id(each): each for each in vars(trainer).values() if isinstance(each, nn.Module)
        }.values()
    )
    with (
        without_garbage_collector(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        trainer.train()
    measured = read_profile(profiler, start_bytes)
    live_E = measured.live_E()
    peak = int(live_E.argmax())
    predicted_bytes = int(trace.live_E().max())
    return {
        "predicted_bytes": predicted_bytes,
        "measured_bytes": int(live_E[peak]),
        "error_percent": round(100 * (predicted_bytes / int(live_E[peak]) - 1), 4),
        "parameters": trace.parameters,
        "trainable": trace.trainable,
        "plan_cpu_s": round(plan_s, 2),
        "measured_at": measured.operators_E[peak].split(" > ")[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="jobs whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows = []
    for name, job in jobs().items():
        if options.only in name:
            rows.append({"job": name, **measure(job())})
            row = rows[-1]
            print(
                f"{name:64s} {row['predicted_bytes']:>13,} {row['measured_bytes']:>13,}"
                f" {row['error_percent']:+.4f} %  planned in {row['plan_cpu_s']} CPU s;"
                f" peak in {row['measured_at']}",
                flush=True,
            )
            gc.collect()
    errors = [abs(row["error_percent"]) for row in rows]
    print(f"{len(rows)} jobs: median error {np.median(errors):.4f} %, worst {max(errors):.4f} %")
    if not options.only:
        versions = {name: metadata.version(name) for name in ("trl", "accelerate", "peft")}
        print(
            write_record(
                "trainer_jobs", {"steps": STEPS, "seed": SEED, "libraries": versions, "jobs": rows}
            )
        )
    if max(errors) > 100 * TOLERANCE:
        sys.exit(f"a peak is off by more than {100 * TOLERANCE:g} %")


if __name__ == "__main__":
    main()
