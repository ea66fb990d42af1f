"""The tabs of data and plans: controls as a question, what is worked on, what a change ends; data as
they are learned; a training that is started.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from asked_pages import Page
from fixture_types import MakeRecipe, Refuses
from small_plans import SMALL_FILE

from brimful.base.errors import DataError, RequestError
from brimful.base.types import JsonDict
from brimful.faces.studio.fit_request import FitRequest
from brimful.faces.studio.jobs import Jobs
from brimful.faces.studio.planners import Planners, Superseded
from brimful.faces.studio.planning import PlanActs, number_of, question_line, request_of
from brimful.recipe import load


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("16", 16),
        ("2,048", 2048),
        ("10M", 10**7),
        ("1.5b", 1_500_000_000),
        ("1e9", 10**9),
    ],
)
def test_numbers_as_people_type_them(text: str, value: int | None) -> None:
    assert number_of("rank", text) == value


@pytest.mark.parametrize(
    "text", ["many", "1.5", "-1", "10 000 000 x", "1e999", "0x10", "__import__('os')", "9" * 400]
)
def test_what_is_no_whole_number_is_told(text: str) -> None:
    with pytest.raises(RequestError, match="must be a whole number, such as"):
        number_of("rank", text)


def test_controls_make_a_question_and_a_pasted_text_comes_first() -> None:
    values: JsonDict = {"model": " quickstart ", "method": "lora", "rank": "8", "batch": "4"}
    values |= {"tokens": "10M", "margin": "tight", "devices": ["This machine", "NVIDIA L4"]}
    values |= {"together": "2", "data": "my chats.jsonl", "changes": ["", "a=1 'b=two words'"]}

    assert request_of(Page(**values).asked) == FitRequest(
        "quickstart",
        "lora",
        rank=8,
        effective_batch=4,
        tokens=10**7,
        devices=("here", "NVIDIA L4"),
        margin="tight",
        together=2,
        data="my chats.jsonl",
        changes=("a=1", "b=two words"),
    )
    assert request_of(Page(model="quickstart", pasted="name: x").asked).model == "name: x"


def test_a_quotation_mark_that_is_not_closed_is_told(refuses: Refuses) -> None:
    with refuses(RequestError):
        request_of(Page(changes="name='x").asked)


@pytest.mark.parametrize(
    ("question", "line"),
    [
        (FitRequest("quickstart"), "quickstart"),
        (FitRequest("a/b", "lora", rank=8, tokens=10**7), "a/b, lora, rank 8, tokens 10,000,000"),
        (FitRequest('{"model_type": "llama"}'), "the pasted text"),
        (FitRequest("", effective_batch=4), "no model, batch 4"),
    ],
)
def test_a_question_is_named_in_a_line(question: FitRequest, line: str) -> None:
    assert question_line(question) == line


@pytest.fixture(scope="module")
def planners() -> Iterator[Planners]:
    made = Planners()
    yield made
    made.close()


def test_a_question_is_worked_on_and_answered_with_the_command_that_repeats_it(
    planners: Planners,
) -> None:
    acts = PlanActs(planners, None, local_folders=False)
    page = Page(pasted=SMALL_FILE, devices=["Tesla T4"], together="2").after(acts.plan)

    assert page.all("plan-status") == ["Working on the pasted text ..."]
    assert "2 x Tesla T4" in page.has("plan-answer")
    assert "brimful plan recipe.yaml --on &#39;2 x Tesla T4&#39;" in page.has("plan-recipe")
    assert "name: small" in page.has("plan-recipe")


def test_what_does_not_fit_is_answered_again_with_what_would_help(planners: Planners) -> None:
    acts = PlanActs(planners, None, local_folders=False)
    huge = SMALL_FILE.replace("heads: 1, width: 16", "heads: 64, width: 65536")
    huge = huge.replace("sequence_length: 16", "sequence_length: 2048")
    page = Page(pasted=huge, devices=["Tesla T4"]).after(acts.plan)

    first, last = page.all("plan-answer")
    assert page.has("plan-status") == "Looking for what would make it fit ..."
    assert page.has("plan-status") in first
    assert "8-bit optimizer" in last


@pytest.mark.parametrize("told", ["data", "changes", "model"])
def test_pages_for_others_name_no_files(
    planners: Planners, tmp_path: Path, told: str, refuses: Refuses
) -> None:
    (tmp_path / "config.json").write_text("{}")
    values = {"model": "quickstart"} | {told: str(tmp_path)}

    with refuses(RequestError):
        PlanActs(planners, None, local_folders=False).plan(Page(**values).asked)


def test_a_page_that_leaves_ends_what_it_waited_for(planners: Planners) -> None:
    page, came = Page(model="meta-llama/Llama-3.1-70B", devices=["Tesla T4"]), list[Exception]()

    def work() -> None:
        try:
            PlanActs(planners, None, local_folders=False).plan(page.asked)
        except Exception as error:
            came.append(error)

    waits = threading.Thread(target=work)
    waits.start()
    while not page.asked._endings:
        pass
    page.asked.leave()
    waits.join()

    assert [type(error) for error in came] == [Superseded]
    assert page.has("plan-answer") == ""


def test_data_are_shown_as_they_are_learned_and_what_is_left_out_is_told(
    planners: Planners, tuning: MakeRecipe, examples_file: Path, tmp_path: Path
) -> None:
    recipe = tuning()
    with examples_file.open("a") as rows:
        rows.write('{"instruction": "", "output": ""}\n')
    acts = PlanActs(planners, None, local_folders=True)
    asked = {"model": str(recipe.model), "method": "lora", "data": str(examples_file)}

    with pytest.raises(DataError, match=r"data\.bad_rows=drop"):
        acts.data(Page(**asked).asked)
    page = Page(**asked, changes="data.bad_rows=drop").after(acts.data)

    assert "<mark " in page.has("data-answer")
    assert "1 row left out" in page.has("data-answer")
    assert "brimful data recipe.yaml" in page.has("data-answer")


def test_a_training_is_started_from_a_saved_recipe_under_a_name_that_is_free(
    planners: Planners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    begun = list[tuple[str, list[str]]]()
    jobs = Jobs(tmp_path)
    monkeypatch.setattr(jobs, "start", lambda name, words: begun.append((name, words)))
    acts = PlanActs(planners, jobs, local_folders=True)
    values = {"model": "quickstart", "length": "64", "changes": "run.folder=/elsewhere"}

    page = Page(**values, name="mine").after(acts.start)
    ((name, (verb, file)),) = begun

    assert (name, verb) == ("mine", "run")
    recipe = load(file)
    assert (recipe.run_name, recipe.run.folder, recipe.sequence_length) == ("mine", None, 64)
    assert (page.has("runs-wanted"), page.told[-1]) == ("mine", {"go": "runs"})
    for wrong in ("../mine", "a/b", "."):
        with refuses(RequestError, names=[wrong]):
            acts.start(Page(**values, name=wrong).asked)
