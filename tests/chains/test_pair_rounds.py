"""From questions alone to a model that prefers right answers: tune, sample, verify, pair, compare."""

import json
import random
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from fixture_types import Refuses
from json_lines import write_rows
from rich.console import Console
from small_models import write_base_model

from brimful.base.errors import DataError, RecipeError
from brimful.base.rundir import read_journal, read_json
from brimful.chains import calls
from brimful.chains.phases import Member
from brimful.chains.round_chain import RoundChain
from brimful.recipe import Recipe, load
from brimful.training.admission import differences

pytestmark = pytest.mark.filterwarnings("ignore")  # peft and bitsandbytes warn about themselves

RECIPE = """
name: pair-rounds
method: dpo
model: {root}/base
sequence_length: 64
batch: {{sequences: 4}}
training: {{epochs: 1}}
data: {{path: {root}/examples.jsonl, validation: 0.2}}
optimizer: {{learning_rate: 1e-3, warmup: 0.1}}
preference: {{reference: kept}}
evaluation: {{every: 30, tasks: [bleu], max_examples: 4}}
sample: {{prompt: "Say red twice.", tokens: 8, temperature: 0.0}}
plan: {{device: cpu, precision: fp32, threads: 1, compile: false}}
run: {{folder: {root}/runs}}
rft:
  questions: {{path: {root}/questions.jsonl}}
  tuned_first: [optimizer.learning_rate=1e-2, "training={{tokens: 3000}}"]
  verifier: regex
  distinct_by: text
  samples_per_prompt: 6
  pairs_per_prompt: 2
  temperature: 1.0
  max_new_tokens: 24
"""
COLORS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def root(new_cache: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A chain of one round by a tiny model; every answer of small letters is right."""
    root, drawn = tmp_path_factory.mktemp("pair-rounds"), random.Random(1)
    write_base_model(root / "base", 280)
    rows = [(drawn.choice(COLORS), drawn.randint(1, 4), number) for number in range(60)]
    examples = [
        {
            "prompt": f"Say {color} {times} times, number {number}.",
            "completion": " ".join([color] * times),
        }
        for color, times, number in rows
    ]
    questions = [
        {"question": f"Say {color} {times} times.", "answer": "[a-z ]+"}
        for color, times in sorted({(color, times) for color, times, _ in rows})
    ]
    for name, found in {"examples": examples, "questions": questions}.items():
        write_rows(root / f"{name}.jsonl", found)
    (root / "pair-rounds.yaml").write_text(RECIPE.format(root=root))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", new_cache())
        calls.run_several(recipe_in(root), Console(file=StringIO(), width=160))
        yield root


def recipe_in(root: Path, *changes: str) -> Recipe:
    return load(str(root / "pair-rounds.yaml"), changes)


def test_pairs_are_made_of_answers_and_learned(root: Path) -> None:
    """The model that answered is tuned on, with method dpo, on right and wrong answers."""
    folder = root / "runs" / "pair-rounds"
    facts = read_json(folder / "samples-1" / "sampling.json")
    lines = (folder / "samples-1" / "pairs.jsonl").read_text().splitlines()
    assert facts["pairs"]["pairs"] == len(lines) > 0
    data = read_json(folder / "dpo-1" / "data.json")
    assert sum(split["examples"] for split in data["splits"].values()) == 2 * len(lines)
    assert sum(split["pairs"] for split in data["splits"].values()) == len(lines)
    first, second = (load(str(folder / name / "recipe.yaml")) for name in ("sft", "dpo-1"))
    assert (first.method, second.method) == ("sft", "dpo")
    assert second.model == str(folder / "sft" / "model")
    assert first.optimizer.learning_rate == 10 * second.optimizer.learning_rate
    assert (folder / "study.html").exists()


def test_a_model_is_taught_by_answers_judged_one_by_one(root: Path) -> None:
    recipe = recipe_in(root, "method=kto", "run.name=judged-rounds")
    calls.run_several(recipe, Console(file=StringIO(), width=160))

    folder = root / "runs" / "judged-rounds"
    assert load(str(folder / "kto-1" / "recipe.yaml")).method == "kto"
    kinds = [each["kind"] for each in read_journal(folder / "kto-1" / "metrics.jsonl")]
    assert "reference" in kinds
    study = read_json(folder / "study.json")
    took = {each["name"]: each["measured_s"] for each in study["phases"]}
    assert list(took)[:3] == ["training of sft", "reference", "training"]
    assert took["reference"] > 0


def test_the_same_command_again_trains_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.chains.sampling.SamplingSession", None)
    before = {file: file.stat().st_mtime_ns for file in root.rglob("metrics.jsonl")}
    calls.run_several(recipe_in(root), Console(file=StringIO(), width=160))
    assert {file: file.stat().st_mtime_ns for file in root.rglob("metrics.jsonl")} == before


def test_a_run_whose_adapters_go_on_is_read_again_as_it_was_made(root: Path) -> None:
    """Readers fill in a scale that the recipe leaves open; the same command would be refused."""
    recipe = recipe_in(root, "run.name=adapters", "adapter={rank: 4}")
    chain = RoundChain.begin(recipe, Console(file=StringIO()), fresh=False, accept=())
    tuned, *_, taught = chain.phases
    chain.do(tuned)
    assert isinstance(taught, Member)
    path = root / "kept.yaml"
    path.write_text(json.dumps(taught.recipe.model_dump(mode="json")))
    assert not differences(load(str(path)), taught.recipe)


def test_without_pairs_it_stops_before_training(root: Path, refuses: Refuses) -> None:
    """Where every answer is right there is nothing to prefer."""
    (root / "easy.jsonl").write_text(json.dumps({"question": "Say red.", "answer": "[^#]*"}) + "\n")
    recipe = recipe_in(root, f"rft.questions.path={root}/easy.jsonl", "run.name=easy")
    with refuses(DataError, names=["rft.samples_per_prompt"]):
        calls.run_several(recipe, Console(file=StringIO(), width=160))
    assert not (root / "runs" / "easy" / "dpo-1").exists()


def test_changes_of_the_first_tuning_are_checked_with_the_recipe(
    root: Path, refuses: Refuses
) -> None:
    with refuses(RecipeError, names=["rft.tuned_first"]):
        calls.run_several(
            recipe_in(root, "rft.tuned_first=[optimizer.rate=1]"), Console(file=StringIO())
        )
