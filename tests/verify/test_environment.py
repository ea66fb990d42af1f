"""Environments of the package `verifiers` as rewards. Most tests need the package itself."""

import math
from pathlib import Path

import pytest

from brimful.base.errors import RequestError
from brimful.verify import environment
from brimful.verify.environment import environment_verifier
from brimful.verify.judge import judge
from brimful.verify.verifier import Verdict

installed = pytest.mark.skipif(
    environment.version_of("verifiers") is None, reason="extra verifiers is not installed"
)
SOURCE = """
import time
from datasets import Dataset
import verifiers as vf

print("environments may print")

async def right(parser, completion, answer, info):
    assert completion[0]["role"] == "assistant"
    return float(parser.parse_answer(completion) == answer) * info["worth"]

def short(prompt, completion, state, **kwargs):
    text = completion[-1]["content"]
    if text == "raise":
        raise TypeError("no")
    if text == "loop":
        time.sleep(60)
    if text == "nan":
        return float("nan")
    return kwargs["length"] > len(text) and prompt[-1]["content"] == "Say yes." and "task" in state

def unused(completion):
    raise RuntimeError("has no weight")

def load_environment(tag="word", **others):
    parser = vf.XMLParser([tag], answer_field=tag)
    rubric = vf.Rubric(funcs=[right, short, unused], weights=[1.0, 0.25, 0.0], parser=parser)
    rows = [{"question": "Say yes.", "answer": "yes", "info": {"worth": 2.0}, "length": 40}]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), parser=parser, rubric=rubric, **others)
"""
ROW = {
    "asked": "Say yes.",
    "reference": "yes",
    "answer": "yes",
    "info": {"worth": 2.0},
    "length": 40,
}
GROUPS = "def short(completions, **kwargs):\n    return [0.0] * len(completions)\n\ndef unused("
JUDGED = "rubric = vf.JudgeRubric(parser=parser, judge_client=object())\n    rows = ["
TURNS = """
class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return []

def load_environment("""
REFUSED = {
    "turns": ([("def load_environment(", TURNS), ("vf.SingleTurnEnv", "Talk")], "is a Talk, and"),
    "a judge": ([("rows = [", JUDGED)], "a model judges its answers"),
    "groups": ([("def unused(", GROUPS)], "short rewards a group of answers at once"),
    "no weights": ([("weights=[1.0, 0.25, 0.0]", "weights=[0.0, 0.0, 0.0]")], "has a weight"),
    "no function": ([("def load_environment(", "def load(")], "defines no function"),
    "a fault": ([("import time", "import no_such_module")], "No module named 'no_such_module'"),
}
"""By what is wrong: what is replaced in the source, and what is told."""


def _judged(path: Path, *answers: str, **arguments: str) -> list[Verdict]:
    path.write_text(SOURCE)
    verifier, _ = environment_verifier(str(path), arguments, 2.0)
    found = judge(verifier, answers, [ROW] * len(answers))
    return [each for each in found if each is not None]


@installed
def test_an_environment_says_what_an_answer_is_worth(tmp_path: Path) -> None:
    long = "<word>yes</word>" + " " * 40
    found = _judged(tmp_path / "saying_yes.py", "<word>yes</word>", long, "yes")
    assert [each.worth for each in found] == [2.25, 2.0, 0.25]


@installed
def test_its_arguments_and_its_source_count(tmp_path: Path) -> None:
    (found,) = _judged(tmp_path / "tagged.py", "<tag>yes</tag>", tag="tag")
    assert found.worth == 2.25
    _, before = environment_verifier(str(tmp_path / "tagged.py"), {})
    (tmp_path / "tagged.py").write_text(SOURCE + "\n")
    assert environment_verifier(str(tmp_path / "tagged.py"), {})[1] != before


@installed
def test_a_folder_is_taken_as_published_environments_lie(tmp_path: Path) -> None:
    folder = tmp_path / "saying-no"
    folder.mkdir()
    (folder / "saying_no.py").write_text(SOURCE)
    verifier, _ = environment_verifier(str(folder), {})
    (found,) = judge(verifier, ["<word>yes</word>"], [ROW])
    assert found is not None
    assert found.worth == 2.25


@installed
def test_a_failure_is_worth_no_number_and_says_why(tmp_path: Path) -> None:
    answers = ("raise", "nan", "loop", "<word>yes</word>")
    *failed, last = _judged(tmp_path / "failing.py", *answers)
    assert all(math.isnan(each.worth or 0.0) for each in failed)
    assert [each.detail for each in failed] == [
        "short: TypeError: no",
        "nan",
        "it ended, or was not done after 2 s",
    ]
    assert last.worth == 2.25


@installed
@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_reward_answers_here_is_refused(tmp_path: Path, what: str) -> None:
    pairs, told = REFUSED[what]
    source = SOURCE
    for old, new in pairs:
        assert old in source
        source = source.replace(old, new)
    path = tmp_path / f"refused_{what.replace(' ', '_')}.py"
    path.write_text(source)
    with pytest.raises(RequestError, match="cannot reward answers") as caught:
        environment_verifier(str(path), {})
    assert told in str(caught.value)


@installed
def test_a_missing_environment_is_named(tmp_path: Path) -> None:
    for name in (str(tmp_path / "none.py"), "no-such-environment"):
        with pytest.raises(RequestError, match=r"there is no .*none\.py|no_such_environment"):
            environment_verifier(name, {})


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "version_of", lambda name: None)
    with pytest.raises(RequestError, match=r"not installed.*brimful's extra verifiers"):
        environment_verifier("gsm8k", {})
