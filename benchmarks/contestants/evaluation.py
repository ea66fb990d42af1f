"""HumanEval of a published model, end to end: brimful beside lm-evaluation-harness's `hf` back end, same
prompts, stop texts and most tokens, greedy.

Every round asks other questions: the n-th takes every `--rounds`-th one, so that all rounds together
are the whole task. brimful's time holds its judging, every answer run in the sandbox; the harness's
does not (its metric needs a download), which is in its favour. The harness reads a task file of its
kind that is written here; 16 questions at once were its quickest of 8, 16 and 32. Tokens are those of
the answers, which end at a stop text; a loop that brimful leaves early counts for it only up to
there. Answers are compared with brimful's in fp32.
"""

import argparse
import gzip
import json
import os
from pathlib import Path
from typing import Any

from contestants.rounds import Comparison, Found
from contestants.sampling import folder_of
from contestants.worker import Worker

OURS = {"brimful": "auto", "brimful, fp32": "fp32"}
THEIRS = {"lm-eval hf, fp32": "float32", "lm-eval hf, bf16": "bfloat16"}
AT_ONCE = 16
STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Of both tasks, the harness's and brimful's."""

Answers = dict[str, dict[str, Any]]
"""By question: `text`, and of brimful `finish` and `passed`."""


class Evaluation(Comparison):
    """Of tokens of answers."""

    needs = ("lm_eval", "lm-eval")
    record, unit, rounds, warm_up = "evaluation_cpu", "tokens", 5, 1
    names, judged_by = (*THEIRS, *OURS), tuple(OURS)
    options = (
        ("data", None, "folder of HumanEval.jsonl.gz"),
        ("model", "smollm2-135m-instruct", "short name or folder"),
        ("tokens", 256, "of an answer at most"),
        ("questions", 164, "of all rounds"),
    )

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Write a file of questions for each round and one to warm up."""
        packed = (Path(options.data) / "HumanEval.jsonl.gz").read_bytes()
        lines = gzip.decompress(packed).decode().splitlines()[: options.questions]
        parts = {str(number): lines[number :: options.rounds] for number in range(options.rounds)}
        for name, part in (parts | {"warm": lines[:1]}).items():
            (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in part))
        return {"questions": options.questions, "most_tokens": options.tokens}

    def work(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        worker = _Worker(name, folder)
        source = str(folder_of(options.model))
        if name in OURS:
            worker.side = _Brimful(worker, source, options.tokens, OURS[name])
        else:
            worker.side = _Harness(worker, source, options.tokens, THEIRS[name])
        worker.side.evaluate("warm")
        worker.serve(worker.work, worker.side.version)

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        from record import ratio_interval

        ours = found.told["brimful, fp32"]["answers"]
        own, seconds = found.told[name]["answers"], found.seconds
        passed = [answer["passed"] for answer in own.values() if "passed" in answer]
        return {
            "brimful_over_it": ratio_interval(seconds[name], seconds["brimful"]),
            "beside_brimful_fp32": _beside(own, ours),
            "passed": sum(passed) if passed else None,
            "answers": None,
            "valid": own.keys() == ours.keys(),
        }

    def values(self, found: Found, results: Any, options: argparse.Namespace) -> dict[str, Any]:
        return {"model": Path(options.model).name, **found.about}


def _beside(found: Answers, ours: Answers) -> dict[str, int]:
    """How many answers are equal to brimful's in fp32."""
    counts = {"equal": 0, "equal_until_a_loop_was_left": 0, "different": 0}
    for key, answer in found.items():
        text, mine = answer["text"], ours[key]["text"]
        is_loop = "loop" in {ours[key].get("finish"), answer.get("finish")}
        if text == mine:
            counts["equal"] += 1
        elif is_loop and (text.startswith(mine) or mine.startswith(text)):
            counts["equal_until_a_loop_was_left"] += 1
        else:
            counts["different"] += 1
    return counts


class _Worker(Worker):
    """Answers the questions of one part after another."""

    side: Any

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self._answers_by_id: Answers = {}

    def work(self, _: int) -> tuple[float, float]:
        """Answer a part; what is judged in the sandbox is judged within the time."""
        began_s = self.cpu_s()
        answers = self.side.evaluate(f"{self.steps}")
        cpu_s = self.cpu_s() - began_s
        self.steps += 1
        self._answers_by_id |= answers
        encode = self.side.tokenizer.encode
        texts = [answer["text"] for answer in answers.values()]
        return cpu_s, sum(len(encode(text, add_special_tokens=False)) for text in texts)

    def tell(self) -> dict[str, Any]:
        return {"answers": self._answers_by_id}


class _Brimful:
    """brimful's task humaneval of the untuned model, judged in the sandbox."""

    version = "brimful"

    def __init__(self, worker: Worker, source: str, tokens: int, precision: str) -> None:
        import torch

        from brimful.data.chat import Template
        from brimful.evaluation.task import load_task
        from brimful.evaluation.task_prompts import Subject
        from brimful.generation.load import end_ids_of
        from brimful.model.blocks import context_of
        from brimful.model.published import Loading, inference_attention, load_model
        from brimful.model.tokenizer import load_tokenizer

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
        self._task = load_task("humaneval", [f"sampling.max_new_tokens={tokens}"])

    def evaluate(self, part: str) -> Answers:
        """Answers to a part of the questions, each judged."""
        from brimful.evaluation.task_run import evaluate_tasks
        from brimful.verify.sandbox import Sandbox

        paths = {"humaneval": str(self._folder / f"{part}.jsonl")}
        with Sandbox(accept_unsandboxed=True) as sandbox:
            (result,) = evaluate_tasks(self._subject, [self._task], paths=paths, sandbox=sandbox)
        return {
            record["id"]: {
                "text": record["completion"],
                "finish": record["finish"],
                "passed": record["error"] == "",
            }
            for record in result.records
        }


class _Harness:
    """The harness's `hf` back end on a task file of its own kind; it generates and judges nothing."""

    def __init__(self, worker: Worker, source: str, tokens: int, dtype: str) -> None:
        import lm_eval
        from lm_eval.models.huggingface import HFLM

        self.version = f"lm-eval {lm_eval.__version__}"
        self._model = HFLM(pretrained=source, dtype=dtype, device="cpu", batch_size=AT_ONCE)
        self.tokenizer = self._model.tokenizer
        self._folder, self._tokens = worker.folder, tokens

    def evaluate(self, part: str) -> Answers:
        """Answers to a part of the questions."""
        import lm_eval
        from lm_eval.tasks import TaskManager

        name, tasks = f"humaneval_{part}", self._folder / f"harness_{os.getpid()}_{part}"
        tasks.mkdir()
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
        found = lm_eval.simple_evaluate(
            model=self._model,
            tasks=[name],
            task_manager=TaskManager(include_path=str(tasks)),
            log_samples=True,
            bootstrap_iters=0,
        )
        return {
            sample["doc"]["task_id"]: {"text": sample["resps"][0][0]}
            for sample in found["samples"][name]
        }


COMPARISON = Evaluation()
