"""Train a recipe on real text and record what it learned beside counting baselines of the same tokens.

    python benchmarks/learn.py shakespeare-char data.path=.../tinyshakespeare/input.txt
    python benchmarks/learn.py wikitext2-small data.path=.../wikitext-2

Every token of the validation split is scored once, in windows of the training length. The record holds scores with intervals,
the baselines, the length of training in seconds and updates, and the milliseconds an update took.
"""

import statistics
import sys
import tempfile

from brimful.base.env import wait_politely

wait_politely()

from rich.console import Console  # noqa: E402

from brimful import pipeline  # noqa: E402
from brimful.base.rundir import read_journal, read_json  # noqa: E402
from brimful.recipe import load  # noqa: E402
from record import write_record  # noqa: E402


def main() -> None:
    name, *overrides = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        recipe = load(name, [*overrides, f"run.folder={folder}"])
        run_folder = pipeline.train(recipe, Console()).folder
        scores = pipeline.evaluate(run_folder, Console())
        records = list(read_journal(run_folder / "metrics.jsonl"))
        plan, data = read_json(run_folder / "plan.json"), read_json(run_folder / "data.json")
    step_times_s = [record["step_time_s"] for record in records if record["kind"] == "step"]
    values = {
        "recipe": name,
        "overrides": [word for word in overrides if not word.startswith("data.path")],
        "parameters": plan["parameters"],
        "plan": {choice["name"]: choice["value"] for choice in plan["choices"]} | {"threads": plan["threads"]},
        "predicted_step_time_s": plan["predicted"].get("step_time_s"),
        "median_step_time_s": statistics.median(step_times_s),
        "updates": max(record["step"] for record in records if record["kind"] == "step"),
        "seconds_in_all": next(record["seconds"] for record in records if record["kind"] == "end"),
        "train_tokens_seen": max(record["tokens"] for record in records if record["kind"] == "step"),
        "data": data["splits"],
        "tokenizer": {key: data["tokenizer"][key] for key in ("kind", "vocabulary", "characters_per_token", "bytes_per_token")},
        "scores": scores,
    }
    validation = scores["validation"]
    print(
        f"validation loss {validation['loss']:.4f}, {validation['bits_per_byte']:.4f} bits/byte, bigram {validation['baselines']['bigram']['bits_per_byte']:.4f}"
    )
    print(write_record(f"learn-{name}", values))


if __name__ == "__main__":
    main()
