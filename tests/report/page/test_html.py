"""report.html is one escaped, self-contained, well-formed page for every state of a run folder."""

import base64
import copy
import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRun, Refuses

from brimful.base.errors import RunFolderError
from brimful.base.types import JsonDict
from brimful.report.bars import Bar, Bars, Part
from brimful.report.chart import Chart, Matrix, Series
from brimful.report.page.facts import environment_table
from brimful.report.page.html import render_view, script, write_report
from brimful.report.page.run_page import run_view
from brimful.report.predictions import comparisons, memory_terms
from brimful.report.scores import baselines
from brimful.report.table import Cell, Gauge, Link, LinkCell, Table
from brimful.report.views import (
    AuthoredAnswer,
    Card,
    Chapter,
    Code,
    Command,
    Fold,
    Heading,
    Paragraph,
    Prompted,
    SeenToken,
    Tokens,
    View,
)
from brimful.runs.folder import read_run

ATTACK = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>"
VOID = {"meta", "br", "img", "hr", "input", "link"}
SCORED = {"validation": {"loss": 2.0, "bits_per_byte": 1.1}}
FILES = [
    "recipe.yaml",
    "plan.json",
    "environment.json",
    "data.json",
    "metrics.jsonl",
    "samples.jsonl",
    "scores.json",
]


class Page(HTMLParser):
    """Tags in order, whether they nest, and the text outside of style."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data


def page_of(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def test_the_page_nests_well_and_loads_nothing(new_run: MakeRun) -> None:
    folder = new_run()
    page = page_of(folder)
    assert page.wrong == page.open == []
    assert page.tags.count("script") == 1
    assert not {"link", "iframe", "object", "img"} & set(page.tags)
    assert all(
        value.startswith("#")
        for name, value in page.attributes
        if name in {"src", "href", "xlink:href"}
    )
    source = (folder / "report.html").read_text(encoding="utf-8")
    assert "@import" not in source
    names = {"http://www.w3.org/2000/svg", "https://download.pytorch.org/whl/cpu"}
    assert set(re.findall(r"https?://[^\"' <\n]*", source)) <= names
    assert "default-src 'none'" in source
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in source, "no other script runs"
    assert f"<script>{script()}</script>" in source
    assert len(source) < 350_000


def test_the_page_follows_the_readers_theme_screen_and_printer(new_run: MakeRun) -> None:
    source = write_report(new_run()).read_text(encoding="utf-8")
    for rule in (
        "(prefers-color-scheme: dark)",
        "(max-width: 600px)",
        "@media print",
        'name="viewport"',
    ):
        assert rule in source


def test_every_text_of_the_run_is_escaped(new_run: MakeRun) -> None:
    folder = new_run(
        recipe=f"name: x\ndata:\n  path: {ATTACK!r}\n# {ATTACK}\n",
        plan={
            "choices": [{"name": ATTACK, "value": ATTACK, "reason": ATTACK}],
            "memory_terms": {ATTACK: 5},
            "predicted": {ATTACK: 1},
            "basis": {ATTACK: ATTACK},
        },
        environment={
            "command": ATTACK,
            "device": {"name": ATTACK},
            ATTACK: 1,
            "packages": {ATTACK: ATTACK},
        },
        data={
            "sources": [ATTACK, {"name": ATTACK}],
            "notes": [ATTACK],
            "splits": {ATTACK: {}},
            "tokenizer": {"kind": ATTACK},
        },
        scores={ATTACK: {"loss": 1.0, "bits_per_byte": 1.0, "baselines": {ATTACK: {"loss": 2.0}}}},
        samples=[{"prompt": ATTACK, "completion": ATTACK, "finish": ATTACK, "seed": ATTACK}],
        metrics=[
            {"kind": "step", "step": 1, "loss": 2.5, "time": 1.0},
            {"kind": "step", "step": 2, "loss": 2.4, "time": 2.0},
            {"kind": "event", "step": 1, "message": ATTACK},
            {"kind": "evaluation", "step": 2, "split": ATTACK, "loss": 2.0},
            {"kind": "end", "step": 2, "reason": ATTACK},
        ],
    )
    page = page_of(folder)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert page.text.count(ATTACK) > 15
    assert page.wrong == page.open == []


def test_every_text_of_every_block_is_escaped() -> None:
    """Whatever page it stands on."""
    table = Table((ATTACK, ATTACK), ((ATTACK, Cell(ATTACK, note=ATTACK)),))
    more = ((LinkCell((Link(ATTACK, ""),)), Gauge((0, 1), 0.5, None, ATTACK, ATTACK)),)
    blocks = (
        Paragraph(ATTACK, "note", ATTACK),
        Heading(ATTACK),
        Code(ATTACK),
        Command(ATTACK, ATTACK),
        Prompted(ATTACK, ATTACK, ATTACK, (AuthoredAnswer(ATTACK, ATTACK, ATTACK),), ATTACK),
        Tokens((SeenToken(1, ATTACK, True),)),
        replace(table, rows=table.rows + more),
        Bars("", ATTACK, (Bar(ATTACK, (Part(ATTACK, 1, 1.0, ATTACK, 0),) * 2, ATTACK),)),
        Chart("a", ATTACK, ATTACK, ATTACK, (Series(ATTACK, (1, 2), (1, 2)),), note=ATTACK),
        Matrix("a", ATTACK, ATTACK, ATTACK, ATTACK, (ATTACK,), ((1,),), ATTACK),
    )
    part = Chapter("a", ATTACK, (Fold(ATTACK, blocks),), ATTACK)
    card = Card(ATTACK, ATTACK, ATTACK)
    view = View(ATTACK, ATTACK, ATTACK, (), (part,), (card,), ATTACK, footer=ATTACK)
    page = Page(render_view(view))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert page.text.count(ATTACK) == 50
    assert page.wrong == page.open == []


def test_the_prompt_stands_apart_from_the_completion(new_run: MakeRun) -> None:
    folder = new_run(
        samples=[
            {
                "prompt": "a < b",
                "completion": " & c\n  d",
                "finish": "end_of_text",
                "tokens": 3,
                "temperature": 0.8,
            }
        ]
    )
    source = write_report(folder).read_text(encoding="utf-8")
    assert '<pre class="text"><span class="prompt">a &lt; b</span> &amp; c\n  d</pre>' in source
    assert "temperature 0.8, 3 tokens, ended by itself" in source


def test_text_that_no_page_can_hold_becomes_the_replacement_character(new_run: MakeRun) -> None:
    folder = new_run(
        samples=[
            {
                "prompt": "",
                "completion": "nul \x00 escape \x1b[2J surrogate \ud800 fine é 猫 \U0001f600\tend",
            }
        ]
    )
    text = page_of(folder).text
    assert "nul \ufffd escape \ufffd[2J surrogate ? fine é 猫 \U0001f600\tend" in text


@pytest.mark.parametrize("name", FILES)
def test_without_one_file_the_section_says_so_and_the_rest_is_there(
    new_run: MakeRun, name: str
) -> None:
    folder = new_run(last_step=1, scores=SCORED, samples=[])
    (folder / name).unlink()
    page = page_of(folder)
    assert f"{name} (" in page.text
    assert page.text.count("is not in the run folder.") == (2 if name == "plan.json" else 1)
    assert page.wrong == page.open == []


@pytest.mark.parametrize(
    "content",
    [b"[", b'{"splits": 1, "predicted": 2, "choices": 3, "device": 4, "packages": 5, "kind": 6}\n'],
)
@pytest.mark.parametrize("name", FILES)
def test_one_damaged_file_never_costs_the_report(
    new_run: MakeRun, name: str, content: bytes
) -> None:
    folder = new_run(last_step=1 if content == b"[" else 500, scores=SCORED, samples=[])
    (folder / name).write_bytes(content)
    page = page_of(folder)
    assert "quickstart" in page.text
    assert page.wrong == page.open == []


def test_a_second_report_replaces_the_first(new_run: MakeRun) -> None:
    folder = new_run()
    first = write_report(folder).read_text(encoding="utf-8")
    (folder / "samples.jsonl").write_text('{"prompt": "", "completion": "quite another text"}\n')
    second = write_report(folder).read_text(encoding="utf-8")
    assert "quite another text" in second
    assert "quite another text" not in first
    assert [path.name for path in folder.glob("*.html*")] == ["report.html"]


def test_a_report_that_cannot_be_written_is_a_clear_error(
    new_run: MakeRun, refuses: Refuses
) -> None:
    folder = new_run()
    (folder / "report.html").mkdir()
    with refuses(RunFolderError):
        write_report(folder)


def test_every_section_of_the_contents_is_there(new_run: MakeRun) -> None:
    page = page_of(new_run())
    ids = [value for name, value in page.attributes if name == "id"]
    anchors = [value[1:] for name, value in page.attributes if name == "href"]
    assert len(ids) == len(set(ids))
    assert set(anchors) <= set(ids)
    assert {
        "predictions",
        "time",
        "memory",
        "curves",
        "scores",
        "samples",
        "data",
        "plan",
        "reproduce",
        "environment",
    } <= set(anchors)


def test_headings_go_down_one_step_at_a_time(new_run: MakeRun) -> None:
    levels = [int(tag[1]) for tag in page_of(new_run()).tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_a_fresh_model_that_was_asked_tasks_shows_them_too(
    new_run: MakeRun, answered: Callable[..., None], answer_of: Callable[..., JsonDict]
) -> None:
    folder = new_run()
    answered(
        folder,
        "humaneval",
        [answer_of(1, "x", scores={"pass@1": 1.0}, status="passed")],
        prompt="plain",
    )
    text = page_of(folder).text
    assert "asked as text to continue" in text
    assert "passed" in text
    assert "Before tuning" not in text
    assert "What was tuned" not in text


ODD: list[Any] = [
    None,
    True,
    "x",
    -1,
    0,
    1e18,
    float("nan"),
    float("inf"),
    [],
    {},
    [1, 2],
    ["a"],
    {"a": 1},
    [None, None],
    10**30,
]


def damaged(value: Any, drawn: random.Random) -> Any:
    """The value with some of what is in it replaced or left out."""
    if drawn.random() < 0.06:
        return drawn.choice(ODD)
    if isinstance(value, dict):
        return {key: damaged(each, drawn) for key, each in value.items() if drawn.random() > 0.03}
    return [damaged(each, drawn) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(12))
def test_values_of_any_other_kind_never_cost_the_report(new_run: MakeRun, seed: int) -> None:
    drawn = random.Random(seed)
    folder = new_run(
        last_step=1, scores=SCORED, samples=[{"prompt": "a", "completion": "b", "tokens": 3}]
    )
    (folder / "mirror.json").write_text(
        json.dumps(
            {
                "path": "/drive",
                "state": "ok",
                "durable_step": 40,
                "durable_time": 1.79e9,
                "error": "full",
            }
        )
    )
    for path in (*folder.glob("*.json"), *folder.glob("*.jsonl")):
        lines = [
            damaged(json.loads(line), drawn)
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of(folder)
    assert "Predicted and measured" in page.text
    assert page.wrong == page.open == []


def test_reading_and_building_tables_changes_nothing(new_run: MakeRun) -> None:
    run = read_run(new_run())
    before = copy.deepcopy(run)
    for table in (
        comparisons,
        run_view,
        environment_table,
        baselines,
        memory_terms,
    ):
        table(run)
    assert run == before
