"""Train a recipe on real text and record what it learned beside counting baselines of the same
tokens.

    python benchmarks/learn.py shakespeare-char data.path=.../tinyshakespeare/input.txt
    python benchmarks/learn.py wikitext2-small data.path=.../wikitext-2
    python benchmarks/learn.py okadfa-small data.path=.../wikitext-2 gpt2=.../gpt2_bpe     # also perplexity per GPT-2 token

Every token of the validation split is scored once, in windows of the training length. The record
holds scores with intervals, the baselines, the length of training in seconds and updates, and the
milliseconds an update took.
"""

import math
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from brimful.base.env import wait_politely

wait_politely()

from rich.console import Console  # noqa: E402
from tokenizers import ByteLevelBPETokenizer  # noqa: E402

from brimful.base.rundir import read_journal, read_json  # noqa: E402
from brimful.chains import pipeline  # noqa: E402
from brimful.chains.finished import finished_run  # noqa: E402
from brimful.chains.scoring import evaluate  # noqa: E402
from brimful.recipe import load  # noqa: E402
from record import write_record  # noqa: E402


def main() -> None:
    name, *words = sys.argv[1:]
    overrides = [word for word in words if not word.startswith("gpt2=")]
    bpe = next((Path(word.partition("=")[2]) for word in words if word.startswith("gpt2=")), None)
    with tempfile.TemporaryDirectory() as folder:
        recipe = load(name, [*overrides, f"run.folder={folder}"])
        run_folder = pipeline.train(recipe, Console()).folder
        scores = evaluate(run_folder, Console())
        records = list(read_journal(run_folder / "metrics.jsonl"))
        gpt2 = (
            {}
            if bpe is None
            else {"per_gpt2_token": per_gpt2_token(run_folder, bpe, scores["validation"])}
        )
        plan, data = read_json(run_folder / "plan.json"), read_json(run_folder / "data.json")
    step_times_s = [record["step_time_s"] for record in records if record["kind"] == "step"]
    values = {
        "recipe": name,
        "overrides": [word for word in overrides if not word.startswith("data.path")],
        "parameters": plan["parameters"],
        "plan": (
            {choice["name"]: choice["value"] for choice in plan["choices"]}
            | {"threads": plan["threads"]}
        ),
        "predicted_step_time_s": plan["predicted"].get("step_time_s"),
        "median_step_time_s": statistics.median(step_times_s),
        "updates": max(record["step"] for record in records if record["kind"] == "step"),
        "seconds_in_all": next(record["seconds"] for record in records if record["kind"] == "end"),
        "train_tokens_seen": max(
            record["tokens"] for record in records if record["kind"] == "step"
        ),
        "data": data["splits"],
        "tokenizer": {
            key: data["tokenizer"][key]
            for key in ("kind", "vocabulary", "characters_per_token", "bytes_per_token")
        },
        "scores": scores,
        **gpt2,
    }
    validation = scores["validation"]
    print(
        f"validation loss {validation['loss']:.4f}, {validation['bits_per_byte']:.4f} bits/byte,"
        f" bigram {validation['baselines']['bigram']['bits_per_byte']:.4f}"
    )
    print(write_record(f"learn-{name}", values))


def per_gpt2_token(run_folder: Path, bpe: Path, score: dict[str, Any]) -> dict[str, float]:
    """The same nats per token of GPT-2's tokenizer, of the same held-out text: what others report.

    Args:
        bpe: Folder with encoder.json and vocab.bpe as OpenAI published them.
        score: Of the validation split.
    """
    tokenizer = ByteLevelBPETokenizer(str(bpe / "encoder.json"), str(bpe / "vocab.bpe"))
    run = finished_run(run_folder, Console())
    split = run.data.splits["validation"]
    ends = [int(offset) for offset in split.document_offsets]
    documents = [split.tokens_N[start:end].astype(int).tolist() for start, end in pairwise(ends)]
    text = [
        run.loaded.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        for ids in documents
    ]
    count = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(text))
    num_bytes = sum(len(document.encode()) for document in text)
    return {
        "tokens": count,
        "bytes": num_bytes,
        "perplexity": math.exp(score["bits_per_byte"] * math.log(2) * num_bytes / count),
    }


if __name__ == "__main__":
    main()
