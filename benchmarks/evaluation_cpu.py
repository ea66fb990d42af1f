"""HumanEval of a published model on one core, end to end: brimful beside lm-evaluation-harness's
`hf` back end, same weights, prompts, stop texts and most tokens, greedy.

    python -m venv LM && LM/bin/pip install -c constraints.txt torch transformers accelerate lm-eval
    python benchmarks/evaluation_cpu.py --data FOLDER/human_eval --lm-eval-python LM/bin/python
    [--model smollm2-135m-instruct] [--rounds 5] [--tokens 256] [--questions 164]

Every round asks other questions: the n-th takes every `--rounds`-th one, so that all rounds together
are the whole task. brimful's time holds its judging, every answer run in the sandbox; the harness's
does not (its metric needs a download), which is in its favour. The harness reads a task file of its
kind that is written here, with the questions of the round. With --try-sizes each of `TRIED`'s batch
sizes is tried on `TRIED_QUESTIONS` questions, and the best is measured; else the first one. `auto` is
not: it looks for the largest batch by running out of memory at the model's full context.

Answers are compared with brimful's in fp32: equal; the same up to where brimful left a loop; or
different, with the share of those whose first difference is between tokens that the model in fp32
finds about equally likely (`TIE_NATS`).

Rules: one thread each, every contestant its own process, interleaved forwards and backwards,
warm-up excluded, CPU time with that of children, median of paired ratios with a bootstrap interval.
Tokens are those of the answers, which end at a stop text; a loop that brimful leaves early counts
for it only up to there.
"""

import argparse
import gzip
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from contestant import Contestant, Talk, interleaved

TRIED_QUESTIONS, TIE_NATS = 8, 0.1
OURS, OURS_FP32 = "brimful", "brimful, fp32"
THEIRS = {"lm-eval hf, fp32": "float32", "lm-eval hf, bf16": "bfloat16"}
TRIED = ("16", "8", "32")
"""Batch sizes."""
STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Of both tasks, the harness's and brimful's."""
TASK = "humaneval_of_a_round"

Found = dict[str, dict[str, Any]]
"""Answers by question: `text`, and of brimful `finish` and `passed`."""


def main() -> None:
    """Compare all contestants and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="holds HumanEval.jsonl.gz")
    parser.add_argument("--lm-eval-python", default="", help="without it, brimful alone")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="short name or folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256, help="of an answer at most")
    parser.add_argument("--questions", type=int, default=164)
    parser.add_argument("--try-sizes", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _Worker(options).work()
    else:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), options)


def _compare(folder: Path, options: argparse.Namespace) -> None:
    from brimful.model.obtained import folder_of_model
    from record import write_record

    source = Path(options.model)
    source = source if source.is_dir() else folder_of_model(options.model)
    _write_questions(folder, options)
    names = [OURS, OURS_FP32, *(THEIRS if options.lm_eval_python else ())]
    contestants = [_contestant(name, folder, source, options) for name in names]
    tuned = _tune(contestants) if options.try_sizes else {}
    loads: list[float] = []
    runs: dict[str, list[dict[str, Any]]] = {each.name: [] for each in contestants}
    for each in interleaved(contestants, options.rounds, loads):
        run = each.ask(f"run {len(loads) - 1}")
        runs[each.name].append(run)
        print(f"{each.name}: {run['tokens']} tokens, {run['cpu_s']:.1f} CPU s", flush=True)
    memory = {each.name: each.ask("memory") for each in contestants}
    for each in contestants:
        each.quit()
    answers = {name: _joined(runs[name]) for name in runs}
    results = {
        name: _result(name, runs)
        | {"peak_memory_bytes": memory[name], "batch_size": _size_of(name, tuned)}
        | {"beside_brimful_fp32": _beside(answers[name], answers[OURS_FP32], source)}
        for name in runs
    }
    for name, result in results.items():
        _print(name, result)
    if options.lm_eval_python:
        values = {
            "model": Path(options.model).name,
            "rounds": options.rounds,
            "questions": options.questions,
            "most_tokens": options.tokens,
            "contestant_threads": 1,
            "lm_eval": contestants[-1].start,
            "sizes_tried": tuned,
            "loads": loads,
            "results": results,
        }
        print(write_record("evaluation_cpu", values))


def _write_questions(folder: Path, options: argparse.Namespace) -> None:
    """A file of questions for each round and one to try settings, for brimful and the harness."""
    packed = (options.data / "HumanEval.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines()[: options.questions]
    parts = {str(number): lines[number :: options.rounds] for number in range(options.rounds)}
    for name, part in (parts | {"try": lines[-TRIED_QUESTIONS:], "warm": lines[:1]}).items():
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in part))


def _contestant(name: str, folder: Path, source: Path, options: argparse.Namespace) -> Contestant:
    program = options.lm_eval_python if name in THEIRS else sys.executable
    command = [program, __file__, "--worker", name, "--folder", str(folder)]
    command += ["--model", str(source), "--tokens", str(options.tokens), "--data", "."]
    return Contestant(name, folder, command)


def _tune(contestants: list[Contestant]) -> dict[str, Any]:
    """Questions a second of each batch size; the contestant keeps the best."""
    tried: dict[str, Any] = {}
    for each in contestants:
        if each.name in THEIRS:
            seconds = {size: each.ask(f"try {size}") for size in TRIED}
            best = min(seconds, key=seconds.__getitem__)
            each.ask(f"keep {best}")
            tried[each.name] = {
                "kept": best,
                "questions_per_cpu_s": {size: TRIED_QUESTIONS / seconds[size] for size in seconds},
            }
            print(each.name, tried[each.name], flush=True)
    return tried


def _size_of(name: str, tuned: dict[str, Any]) -> str | None:
    if name not in THEIRS:
        return None
    return str(tuned[name]["kept"]) if name in tuned else TRIED[0]


def _joined(runs: list[dict[str, Any]]) -> Found:
    return {key: answer for run in runs for key, answer in run["answers"].items()}


def _result(name: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    from record import ratio_interval, summary

    tokens = {each: [run["tokens"] / run["cpu_s"] for run in runs[each]] for each in runs}
    questions = {each: [len(run["answers"]) / run["cpu_s"] for run in runs[each]] for each in runs}
    answers = _joined(runs[name])
    passed = [answer["passed"] for answer in answers.values() if "passed" in answer]
    return {
        "tokens_per_cpu_s": summary(tokens[name]),
        "questions_per_cpu_s": summary(questions[name]),
        "brimful_over_it": ratio_interval(tokens[OURS], tokens[name]),
        "brimful_over_it_in_questions": ratio_interval(questions[OURS], questions[name]),
        "brimful_fp32_over_it": ratio_interval(tokens[OURS_FP32], tokens[name]),
        "tokens": sum(run["tokens"] for run in runs[name]),
        "passed": sum(passed) if passed else None,
    }


def _beside(found: Found, ours: Found, source: Path) -> dict[str, int]:
    """How many answers are equal to brimful's in fp32, and why others differ."""
    counts = {"equal": 0, "equal_until_a_loop_was_left": 0, "different": 0, "of_these_ties": 0}
    tie = _Ties(source)
    for key, answer in found.items():
        mine = ours[key]
        if answer["text"] == mine["text"]:
            counts["equal"] += 1
        elif "loop" in {mine["finish"], answer.get("finish")} and (
            answer["text"].startswith(mine["text"]) or mine["text"].startswith(answer["text"])
        ):
            counts["equal_until_a_loop_was_left"] += 1
        else:
            counts["different"] += 1
            counts["of_these_ties"] += tie.is_one(mine["prompt"], mine["text"], answer["text"])
    return counts


class _Ties:
    """Whether two greedy answers part where the model in fp32 finds both next tokens about equally
    likely.
    """

    def __init__(self, source: Path) -> None:
        import torch

        from brimful.model.published import Loading, inference_attention, load_model
        from brimful.model.tokenizer import load_tokenizer

        torch.set_num_threads(1)
        loading = Loading("fp32", inference_attention(str(source)), torch.device("cpu"))
        self._model, self._tokenizer = load_model(str(source), loading), load_tokenizer(source)

    def is_one(self, prompt: str, one: str, other: str) -> bool:
        import torch

        start, *both = (
            self._tokenizer.encode(text, add_special_tokens=False) for text in (prompt, one, other)
        )
        ends = [[*ids, self._tokenizer.eos_token_id] for ids in both]
        place = next(
            (place for place, (a, b) in enumerate(zip(*ends, strict=False)) if a != b), None
        )
        if place is None:
            return False
        with torch.inference_mode():
            ids = torch.tensor([start + ends[0][:place]])
            logprobs = self._model(input_ids=ids).logits[0, -1].log_softmax(-1)
        return bool((logprobs[ends[0][place]] - logprobs[ends[1][place]]).abs() < TIE_NATS)


def _print(name: str, result: dict[str, Any]) -> None:
    over, asked = result["brimful_over_it"], result["brimful_over_it_in_questions"]
    print(
        f"{name:<18} {result['tokens_per_cpu_s']['median']:6,.0f} tokens/s of CPU time; brimful"
        f" {over['median']:.2f}x [{over['low']:.2f}, {over['high']:.2f}], in questions"
        f" {asked['median']:.2f}x [{asked['low']:.2f}, {asked['high']:.2f}];"
        f" {result['beside_brimful_fp32']}; passed {result['passed']} "
        f" {result['peak_memory_bytes'] / 2**20:,.0f} MiB  {result['batch_size'] or ''}"
    )


class _Worker:
    """Runs one contestant; talks through standard input and output."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._talk = Talk()
        self.folder, self.model, self.tokens = options.folder, options.model, options.tokens
        is_ours = options.worker in {OURS, OURS_FP32}
        self._side: _Brimful | _Harness = (
            _Brimful(self, "auto" if options.worker == OURS else "fp32")
            if is_ours
            else _Harness(self, THEIRS[options.worker])
        )

    def work(self) -> None:
        """Warm up, then answer requests until asked to quit."""
        self._side.evaluate("warm")
        self._talk.write(self._side.version)
        self._talk.serve(
            {
                "run": self._measured,
                "try": self._tried,
                "keep": self._set,
                "memory": lambda _: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )

    def _set(self, size: str) -> str:
        self._side.batch_size = int(size)
        return "kept"

    def _tried(self, size: str) -> float:
        self._set(size)
        return float(self._measured("try")["cpu_s"])

    def _measured(self, part: str) -> dict[str, Any]:
        before = _cpu_s()
        answers = self._side.evaluate(part)
        cpu_s = _cpu_s() - before
        encode = self._side.tokenizer.encode
        tokens = [
            len(encode(answer["text"], add_special_tokens=False)) for answer in answers.values()
        ]
        return {"cpu_s": cpu_s, "tokens": sum(tokens), "answers": answers}


def _cpu_s() -> float:
    """Of this process and of children that ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class _Brimful:
    """brimful's task humaneval of the untuned model, judged in the sandbox."""

    version = "brimful"
    batch_size = 0

    def __init__(self, worker: _Worker, precision: str) -> None:
        import torch

        from brimful.data.chat import Template
        from brimful.evaluation.task import load_task
        from brimful.evaluation.task_prompts import Subject
        from brimful.generation.load import end_ids_of
        from brimful.model.blocks import context_of
        from brimful.model.published import Loading, inference_attention, load_model
        from brimful.model.tokenizer import load_tokenizer

        source = worker.model
        loading = Loading("fp32", inference_attention(source), torch.device("cpu"))
        model, self.tokenizer = load_model(source, loading).eval(), load_tokenizer(source)
        ends = end_ids_of(model.generation_config)
        template = Template.of(self.tokenizer, "plain", end_ids=ends)
        self._subject = Subject(
            model,
            self.tokenizer,
            template,
            template.stop_ids,
            is_tuned=False,
            context=context_of(model),
            ways=("plain",),
            precision=precision,
        )
        self._folder = worker.folder
        self._task = load_task("humaneval", [f"sampling.max_new_tokens={worker.tokens}"])

    def evaluate(self, part: str) -> Found:
        """Answers to a part of the questions, each judged."""
        from brimful.evaluation.task_run import evaluate_tasks
        from brimful.verify.sandbox import Sandbox

        with Sandbox(accept_unsandboxed=True) as sandbox:
            (result,) = evaluate_tasks(
                self._subject,
                [self._task],
                paths={"humaneval": str(self._folder / f"{part}.jsonl")},
                sandbox=sandbox,
            )
        return {
            record["id"]: {
                "text": record["completion"],
                "prompt": record["prompt"],
                "finish": record["finish"],
                "passed": record["error"] == "",
            }
            for record in result.records
        }


class _Harness:
    """The harness's `hf` back end on a task file of its own kind; it generates and judges nothing."""

    def __init__(self, worker: _Worker, dtype: str) -> None:
        import lm_eval
        import torch
        import transformers
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        self.version = (
            f"lm-eval {lm_eval.__version__}, transformers {transformers.__version__}, torch"
            f" {torch.__version__}"
        )
        self._model = HFLM(pretrained=worker.model, dtype=dtype, device="cpu", batch_size=1)
        self.tokenizer = self._model.tokenizer
        self._folder, self._tokens, self.batch_size = worker.folder, worker.tokens, int(TRIED[0])
        self._manager, self._evaluate = TaskManager, lm_eval.simple_evaluate

    def evaluate(self, part: str) -> Found:
        """Answers to a part of the questions."""
        name = f"{TASK}_{part}"
        tasks = self._folder / f"harness_{os.getpid()}_{part}"
        tasks.mkdir(exist_ok=True)
        values = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(self._folder / f"{part}.jsonl")}},
            "output_type": "generate_until",
            "test_split": "test",
            "doc_to_text": "{{prompt.rstrip()}}",
            "doc_to_target": "{{canonical_solution}}",
            "generation_kwargs": {
                "until": list(STOP),
                "max_gen_toks": self._tokens,
                "do_sample": False,
            },
            "metric_list": [{"metric": "bypass"}],
        }
        (tasks / f"{name}.yaml").write_text(json.dumps(values))  # JSON is YAML
        self._model.batch_size_per_gpu = self.batch_size
        found = self._evaluate(
            model=self._model,
            tasks=[name],
            task_manager=self._manager(include_path=str(tasks)),
            log_samples=True,
            bootstrap_iters=0,
        )
        return {
            sample["doc"]["task_id"]: {"text": sample["resps"][0][0]}
            for sample in found["samples"][name]
        }


if __name__ == "__main__":
    main()
