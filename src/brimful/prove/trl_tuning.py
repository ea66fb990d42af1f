"""The same tuning by TRL, in a process of its own: LoRA adapters, the same base and examples.

    python -m brimful.prove.trl_tuning '{"model": "FOLDER", "examples": "FILE", ...}'

Prints the result as one line of JSON. Written for TRL 1.16 (trl/trainer/sft_config.py).
"""

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from brimful.prove.plain_training import Clock, PlainResult, time_the_largest

MICRO_BATCH = 8
"""TRL's own, which is tried first."""


@dataclass(frozen=True)
class TrlJob:
    """A tuning to time.

    Attributes:
        model: Folder of the base, with its tokenizer.
        examples: JSON lines of prompts and completions.
        device: Device as torch names it.
        sequences: Examples of an update.
        sequence_length: Tokens of a sequence; examples that are longer are left out, as brimful's
            recipe does.
        steps: Updates in all, more than `plain_training.FIRST_STEPS`.
        precision: "fp32", "bf16" or "fp16": of autocast.
        recompute: Whether activations are computed again; None: TRL's default, which does.
        rank: Rank of the adapters.
        targets: Names of the layers that have them, or peft's "all-linear".
        threads: Threads of the processor; None: as many as torch takes.
    """

    model: str
    examples: str
    device: str
    sequences: int
    sequence_length: int
    steps: int
    precision: str
    recompute: bool | None
    rank: int
    targets: list[str]
    threads: int | None = None

    def command(self) -> list[str]:
        """Return the arguments of Python that run this job."""
        return ["-m", "brimful.prove.trl_tuning", json.dumps(asdict(self))]


def time_job(job: TrlJob) -> PlainResult:
    """Tune for the job's steps, with micro-batches as large as memory allows.

    Raises:
        RuntimeError: memory does not hold one example.
    """
    largest = min(MICRO_BATCH, job.sequences)
    return time_the_largest(job.sequences, largest, job.device, partial(_tune, job))


def _tune(job: TrlJob, micro_batch: int, seconds: list[float]) -> None:
    # An extra, and half a second that no other comparison needs.
    from peft import LoraConfig  # noqa: PLC0415
    from trl import SFTConfig, SFTTrainer  # noqa: PLC0415

    device = torch.device(job.device)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    recomputed = {} if job.recompute is None else {"gradient_checkpointing": job.recompute}
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder,
            max_length=job.sequence_length,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=job.sequences // micro_batch,
            max_steps=job.steps,
            learning_rate=1e-4,
            bf16=job.precision == "bf16",
            fp16=job.precision == "fp16",
            use_cpu=device.type == "cpu",
            dataloader_pin_memory=device.type == "cuda",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **recomputed,
        )
        adapters = LoraConfig(
            r=job.rank,
            lora_alpha=2 * job.rank,
            target_modules=job.targets[0] if job.targets == ["all-linear"] else job.targets,
            task_type="CAUSAL_LM",
        )
        SFTTrainer(
            model=job.model,
            args=arguments,
            train_dataset=_examples(job, tokenizer),
            processing_class=tokenizer,
            peft_config=adapters,
            callbacks=[Clock(device, seconds)],
        ).train()


def _examples(job: TrlJob, tokenizer: PreTrainedTokenizerBase) -> Any:
    from datasets import Dataset  # noqa: PLC0415 - see _tune

    with open(job.examples, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    fitting = [
        row
        for row in rows
        if len(tokenizer(row["prompt"] + row["completion"])["input_ids"]) < job.sequence_length
    ]
    return Dataset.from_list(fitting)


def main() -> None:
    """Run the job of the command line."""
    job = TrlJob(**json.loads(sys.argv[1]))
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    print(json.dumps(asdict(time_job(job))))


if __name__ == "__main__":
    main()
