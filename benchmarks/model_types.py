"""Every type of causal language model and of encoder that transformers knows, from its config: the
defaults of its class, with few blocks. Does `brimful plan` answer, or refuse, and in which sentence?

    python benchmarks/model_types.py [--only TYPE ...] [--cpu-limit SECONDS] [--no-record]
                                     [--answered FILE]
    python benchmarks/model_types.py --peaks NUMBER [--seed SEED] [--answered FILE]

Causal models are tuned with adapters (recipe `lora`), encoders in full as classifiers (recipe
`moderation`), on an H200. Each type has a fresh process with an empty cache, whose CPU seconds count, of
all threads and with the libraries; that takes an hour. Blocks are cut to four, or to as many as show
every kind of block once. The year is that of the copyright line in the code of the type.

With --answered, rows that an earlier run printed to FILE are kept, and what it refused is asked
again. With --peaks, types are drawn at random from those that the record says are planned, and two
real optimizer steps of each run on this CPU, with adapters and in full, under torch's profiler: the
peak of live bytes beside the recording's. Widths named in `model_types.yaml` are cut. One thread runs, and the
record is another.
"""

import argparse
import contextlib
import inspect
import json
import os
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from fresh_process import brimful, limits_of

DEVICE = "NVIDIA H200"
BLOCKS, MOST_BLOCKS = 4, 10
SINCE = 2023
"""Year from which on a type counts for the share."""
KNOWN: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)
"""What has to be known of types: values that are completed, small widths, blocks."""
PEAK_LENGTH, PEAK_SEQUENCES, PEAK_RANK = 64, 2, 8


def main() -> None:
    """Ask, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="TYPE")
    parser.add_argument("--cpu-limit", type=int, default=90, metavar="SECONDS")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--answered", type=Path, metavar="FILE")
    parser.add_argument("--peaks", type=int, metavar="NUMBER")
    parser.add_argument("--seed", type=int, default=48)
    asked = parser.parse_args()
    if asked.peaks:
        known = _answered(asked.answered)
        peaks(asked.peaks, asked.seed, asked.cpu_limit, known)
        return
    every = kinds_of_types()
    chosen = {name: kind for name, kind in every.items() if not asked.only or name in asked.only}
    known = _answered(asked.answered)
    results = []
    for name, kind in chosen.items():
        row = known.get(name) or {
            "type": name,
            "kind": kind,
            **planned(name, kind, asked.cpu_limit),
        }
        results.append(row)
        print(json.dumps(results[-1]), flush=True)
    print(json.dumps(summary(results)))
    if not (asked.no_record or asked.only):
        from record import write_record  # brings torch, which children would count as theirs

        values = {"summary": summary(results), "types": results}
        print(write_record("model_type_plans", values))


def _answered(file: Path | None) -> dict[str, dict[str, Any]]:
    """Return the rows that an earlier run printed, but for refused ones, which are asked again."""
    if file is None:
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {
        row["type"]: row for row in rows if "type" in row and not {"refused", "failed"} & row.keys()
    }


def kinds_of_types() -> dict[str, str]:
    """Each type that predicts tokens -> `causal` or `encoder`; a type that is both is an encoder,
    and what reads pictures or sound is its text part, under that one's own name.
    """
    from transformers.models.auto import modeling_auto

    encoders = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return {
        name: "encoder" if name in encoders else "causal"
        for name in sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() | encoders)
    }


def peaks(number: int, seed: int, cpu_limit_s: int, known: Mapping[str, Mapping[str, Any]]) -> None:
    """Measure the peaks of types drawn at random, print and record them."""
    import torch

    import measured_steps  # noqa: F401 - children begin with it
    from record import RECORDS, write_record

    torch.set_num_threads(1)
    rows = json.loads((RECORDS / "model_type_plans.json").read_text(encoding="utf-8"))["types"]
    kinds = {row["type"]: row["kind"] for row in rows if "refused" not in row}
    results = []
    for name in random.Random(seed).sample(sorted(kinds), number):
        told = known.get(name) or _forked(name, kinds[name], cpu_limit_s)
        results.append({"type": name, "kind": kinds[name], **told})
        print(json.dumps(results[-1]), flush=True)
    errors = [abs(row[way]["error"]) for row in results for way in ("lora", "full") if way in row]
    largest = max(errors, default=None)
    about = {"seed": seed, "types": number, "compared": len(errors), "largest_error": largest}
    print(json.dumps(about))
    print(write_record("model_types_peaks", {"summary": about, "types": results}))


def _peaks_here(name: str, kind: str) -> dict[str, Any]:
    from brimful.hardware.probe import probe
    from brimful.planning.specs import model_facts
    from brimful.planning.step import Lora
    from brimful.planning.survey import prepare
    from brimful.recipe import load
    from brimful.rehearsal.models import config_of
    from brimful.rehearsal.real_models import real_model
    from brimful.rehearsal.training import record_training
    from measured_steps import measure_steps

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            result["cut"] = _cut(name, Path(folder))
            recipe, model, _ = _words(kind, folder, None)
            loaded = load(recipe, [model, f"sequence_length={PEAK_LENGTH}"])
            planned_spec = prepare(loaded, probe("cpu"), model=model_facts(loaded)).spec(
                recompute=False
            )
            for way, adapter in (("lora", Lora(PEAK_RANK)), ("full", None)):
                spec = replace(planned_spec, adapter=adapter, weights="fp32")
                config = config_of(spec)
                ours = int(record_training(spec, config, PEAK_SEQUENCES).live_E().max())
                steps = measure_steps(real_model(spec, config), spec, PEAK_SEQUENCES)
                measured = int(steps.live_E().max())
                result[way] = {
                    "recorded_bytes": ours,
                    "measured_bytes": measured,
                    "error": round(ours / measured - 1, 6),
                }
        except Exception as error:  # a benchmark counts whatever stands in the way
            result["failed"] = f"{error!r}".replace(folder, "FOLDER")[:400]
    return result


def _cut(name: str, folder: Path) -> list[str]:
    """Write a type's config with few blocks and, as far as transformers builds it, small widths;
    returns the names of those that are cut.
    """
    from transformers import CONFIG_MAPPING

    write_config(name, folder)
    file = folder / "config.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    wanted = {key: most for key, most in KNOWN["small"].items() if _is_more(values.get(key), most)}
    wanted |= KNOWN["smaller"].get(name, {})
    small = values | wanted | {"pad_token_id": 0}
    CONFIG_MAPPING[small["model_type"]].from_dict(small)
    file.write_text(json.dumps(small), encoding="utf-8")
    return sorted(wanted)


def _is_more(value: Any, most: int) -> bool:
    return isinstance(value, int) and value > most


def _forked(name: str, kind: str, cpu_limit_s: int) -> dict[str, Any]:
    """Peaks of a type, in a child of this process."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, limits_of(cpu_limit_s))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.write(writes, json.dumps(_peaks_here(name, kind)).encode())
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if told:
        result: dict[str, Any] = json.loads(told)
        return result
    return {
        "year": year_of(name),
        "refused": _ended(os.waitstatus_to_exitcode(status), cpu_limit_s),
    }


def _ended(code: int, cpu_limit_s: int) -> str:
    """Why a process gave no answer, by its exit code."""
    if code == -signal.SIGXCPU:
        return f"no answer within {cpu_limit_s} CPU s"
    return f"ended with {code if code >= 0 else signal.Signals(-code).name}"


def _words(kind: str, folder: str, context: int | None) -> list[str]:
    recipe, longest = ("lora", 1024) if kind == "causal" else ("moderation", 192)
    length = min(longest, context or longest)
    return [recipe, f"model={folder}", f"sequence_length={length}"]


def planned(name: str, kind: str, cpu_limit_s: int) -> dict[str, Any]:
    """What `brimful plan` says of a type, and what that took."""
    with tempfile.TemporaryDirectory() as folder:
        made = _in_child(["--write", name, folder])
        year = {"year": year_of(name)}
        if made.returncode:
            return {**year, "refused": _last_line(made.stderr)}
        about = year | json.loads(made.stdout.splitlines()[-1])
        words = [*_words(kind, folder, about.pop("context")), "--on", DEVICE]
        return {**about, **_ask(words, Path(folder), cpu_limit_s)}


def _ask(words: Sequence[str], folder: Path, cpu_limit_s: int) -> dict[str, Any]:
    done = brimful(["plan", *words, "--json"], folder, cpu_limit_s)
    took = {"cpu_s": round(done.cpu_s, 1)}
    if done.code < 0:
        return {**took, "refused": _ended(done.code, cpu_limit_s)}
    if done.code == 2 or not done.said:
        return {**took, "refused": " ".join(done.errors.split())[-400:]}
    (device,) = json.loads(done.said)["devices"]
    plan = device["plan"]
    choices = {each["name"]: each["value"] for each in plan["choices"]}
    return {
        **took,
        "verdict": device["verdict"],
        "attention": choices["attention"],
        "peak_bytes": plan["predicted"]["peak_memory_bytes"],
    }


def write_config(name: str, folder: Path) -> dict[str, Any]:
    """Write the config of a type with few blocks to a folder; returns its blocks and context."""
    from transformers import CONFIG_MAPPING

    from brimful.rehearsal.models import kinds_of_blocks, with_layers

    config = CONFIG_MAPPING[name]()
    with contextlib.suppress(ValueError):  # several texts: as it is
        config = config.get_text_config()
    if given := KNOWN["completed"].get(config.model_type):
        config = type(config)(**config.to_dict() | given)
    kinds = kinds_of_blocks(config)
    few = next(
        number
        for number in range(min(BLOCKS, len(kinds)), len(kinds) + 1)
        if number >= MOST_BLOCKS or set(kinds[:number]) == set(kinds)
    )
    few = KNOWN["blocks"].get(name, few)
    if getattr(config, "num_kv_shared_layers", 0):
        config.num_kv_shared_layers, few = few, 2 * few
    values = with_layers(config, range(few)).to_dict()
    for key in ("architectures", "dtype", "torch_dtype"):
        values.pop(key, None)
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    context = next(
        (values[key] for key in ("max_position_embeddings", "n_positions") if values.get(key)), None
    )
    return {"blocks": few, "context": context}


def year_of(name: str) -> int | None:
    """Return the year in the copyright line of the code of a type."""
    from transformers import CONFIG_MAPPING

    package = import_module(CONFIG_MAPPING[name].__module__.rpartition(".")[0])
    for file in sorted(Path(inspect.getfile(package)).parent.glob("modeling_*.py")):
        found = re.search(r"[Cc]opyright[^\n]*?(20\d\d)", file.read_text(encoding="utf-8")[:1500])
        if found:
            return int(found[1])
    return None


def _in_child(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, __file__, *words], capture_output=True, text=True, check=False
    )


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts, over all and of those from SINCE on."""
    answered = [row for row in results if "refused" not in row]
    recent = [row for row in results if (row.get("year") or SINCE) >= SINCE]
    return {
        "types": len(results),
        "answered": len(answered),
        "recent": len(recent),
        "recent_answered": sum("refused" not in row for row in recent),
        "median_cpu_s": statistics.median(row["cpu_s"] for row in answered),
        "most_cpu_s": max(row["cpu_s"] for row in answered),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        with contextlib.redirect_stdout(sys.stderr):
            told = write_config(sys.argv[2], Path(sys.argv[3]))
        print(json.dumps(told))
    else:
        main()
