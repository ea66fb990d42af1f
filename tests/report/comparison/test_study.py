"""study.html is one page: the table with intervals, what is real, links to the runs' reports, and
what was left out.
"""

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fixture_types import MakeRun, Refuses
from syrupy.assertion import SnapshotAssertion
from told_views import told

from brimful.base.errors import RunFolderError
from brimful.report.comparison.compare import RunComparison, compare
from brimful.report.comparison.study import study_view, write_study_report
from brimful.report.comparison.study_folder import read_study

ATTACK = "<script>alert('x')</script>"
STUDY = """\
name: my-study
description: What rank changes.
model: recipe:small-base
data: {path: [builtin:python-code]}
study:
  variants:
    lora-8: [adapter.rank=8]
    lora-16: []
"""


class Links(HTMLParser):
    """Where a page leads, its tags and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.tags: set[str] = set()
        self.scripts = 0
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.scripts += tag == "script"
        self.found += [
            value or ""
            for name, value in attrs
            if name in {"href", "src"} and not (value or "").startswith("#")
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def study(scored_run: MakeRun) -> tuple[Path, RunComparison]:
    """A study of two variants and their base, of which only scores were kept."""
    base, *_ = runs = [
        scored_run("base", rank=1, share=0.1, loss=3.0, metrics=None, plan=None),
        scored_run("lora-8", rank=8, seed=2, share=0.6, metrics=None),
        scored_run("lora-16", seed=5, metrics=None),
    ]
    (base.parent / "study.yaml").write_text(STUDY)
    left_out = {"full": "it does not fit: 99 GiB"}
    (base.parent / "study.json").write_text(
        json.dumps({"recipe": "my-study", "left_out": left_out})
    )
    return base.parent, compare(runs)


def page_of(study: tuple[Path, RunComparison]) -> Links:
    return Links(write_study_report(*study).read_text(encoding="utf-8"))


def test_all_that_a_study_tells(
    study: tuple[Path, RunComparison], snapshot: SnapshotAssertion
) -> None:
    folder, comparison = study
    assert told(study_view(read_study(folder), comparison)) == snapshot


def test_every_trained_run_has_a_report_that_the_page_leads_to(
    study: tuple[Path, RunComparison], new_run: MakeRun
) -> None:
    for name in ("lora-8", "lora-16"):
        shutil.copy(new_run(f"trained-{name}", last_step=5) / "metrics.jsonl", study[0] / name)
    page = page_of(study)
    assert page.found == ["lora-8/report.html", "lora-16/report.html"]
    assert all((study[0] / link).is_file() for link in page.found)
    assert not (study[0] / "base" / "report.html").exists()


def test_drawn_values_lie_in_their_intervals_on_the_scale(
    study: tuple[Path, RunComparison],
) -> None:
    source = write_study_report(*study).read_text(encoding="utf-8")
    drawn = re.findall(
        r'<i style="left: ([\d.]+)%; width: ([\d.]+)%"></i><b class="\w*" style="left: ([\d.]+)%">',
        source,
    )
    assert len(drawn) == 6
    for low, width, at in (map(float, each) for each in drawn):
        assert 0 <= low <= at <= low + width <= 100


def test_without_the_studys_own_files_the_table_is_still_there(
    study: tuple[Path, RunComparison],
) -> None:
    for name in ("study.yaml", "study.json"):
        (study[0] / name).write_text("[")
    text = page_of(study).text
    assert study[0].name in text
    assert "Left out" not in text
    assert "lora-16" in text


def test_repetitions_of_a_variant_are_linked_each(scored_run: MakeRun) -> None:
    runs = [scored_run(f"lora-8-seed{seed}", seed=seed) for seed in (1, 2)]
    page = page_of((runs[0].parent, compare(runs)))
    assert page.found == ["lora-8-seed1/report.html", "lora-8-seed2/report.html"]
    assert "each trained with 2 seeds" in page.text


def test_figures_of_layers_have_a_table_of_their_own_and_what_the_loss_says_is_drawn_once(
    fresh_text_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    runs = [fresh_text_run(f"a-seed{seed}", seed=seed, loss=3 + seed / 100) for seed in (1, 2)]

    page = write_study_report(runs[0].parent, compare(runs)).read_text()

    scores, inside = page.split("Inside the layers, means over them")
    assert "Perplexity per word" in scores
    assert "Gradient cosine with backprop" not in scores
    assert "Gradient cosine with backprop" in inside.split("What is real")[0]
    titles = (title.split("</h3>")[0] for title in page.split("<h3>")[1:])
    drawn = [title.split(": ")[0] for title in titles if title.endswith("is better")]
    assert drawn == snapshot


def test_a_page_that_cannot_be_written_is_a_clear_error(
    study: tuple[Path, RunComparison], refuses: Refuses
) -> None:
    (study[0] / "study.html").mkdir()
    with refuses(RunFolderError):
        write_study_report(*study)


STATISTICS = {
    "questions": 10,
    "samples": 40,
    "tokens": 4000,
    "fates": {"kept": 12, "wrong": 28},
    "correct": {"count": 12, "total": 40, "share": 0.3, "low": 0.18, "high": 0.454},
    "questions_by_kept": [4, 0, 6],
    "reasons": [
        {"fate": "wrong", "detail": ATTACK, "samples": 28, "question": ATTACK, "completion": ATTACK}
    ],
}
EXAMPLE = {"question": ATTACK, "answer": ATTACK, "reference": ATTACK, "fate": "kept", "detail": ""}


@pytest.fixture
def rounds(scored_run: MakeRun, on_task: Callable[..., None]) -> tuple[Path, RunComparison]:
    """A round of sampling: the base, one tuned on demonstrations, one on samples, too."""
    runs = [scored_run(name, metrics=None, plan=None) for name in ("base", "sft", "rft-1")]
    for place, run in enumerate(runs):
        on_task(
            run,
            "units",
            {"accuracy": {f"{number}": float(number % 4 <= place) for number in range(40)}},
        )
        path = run / "evaluations" / "units.json"
        summary = json.loads(path.read_text())
        summary["metrics"] |= {
            name: {"value": 0.5, "n": 9, "unit": "share"}
            for name in ("accuracy[new-pairs]", "answer_rate[new-pairs]")
        }
        path.write_text(json.dumps(summary))
    folder = runs[0].parent
    (folder / "samples-1").mkdir()
    (folder / "samples-1" / "samples.jsonl").touch()
    drawn = {
        "round": 1,
        "seed": 7,
        "folder": "samples-1",
        "author": ATTACK,
        "statistics": STATISTICS,
        "examples": [EXAMPLE],
    }
    (folder / "study.yaml").write_text(STUDY)
    (folder / "study.json").write_text(
        json.dumps({"what": {"rft-1": f"and samples {ATTACK}"}, "rounds": [drawn]})
    )
    return folder, compare(runs, [run.name for run in runs])


def test_all_that_a_chain_of_rounds_tells(
    rounds: tuple[Path, RunComparison], snapshot: SnapshotAssertion
) -> None:
    folder, comparison = rounds
    assert told(study_view(read_study(folder), comparison)) == snapshot
    assert "samples-1/samples.jsonl" in page_of(rounds).found
