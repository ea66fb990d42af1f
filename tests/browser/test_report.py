"""Reports, comparisons and studies in a real browser: readable at every width, in light and dark,
on paper and by keyboard.
"""

import importlib.util
import io
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from torch import nn

from brimful.base.units import MIB
from brimful.chains.pipeline import run
from brimful.integrations.hf_trainer.measuring import MeasuredTraining
from brimful.integrations.hf_trainer.page import Predicted, Trained, write_page
from brimful.planning.plan import Prediction
from brimful.recipe import load
from brimful.rehearsal.foreign import plan_model
from brimful.report.comparison.compare import compare
from brimful.report.comparison.page import write_comparison
from brimful.report.comparison.study import write_study_report
from brimful.report.page.html import write_report
from brimful.report.time_spent import time_spent
from brimful.runs.folder import read_run

Open = Callable[..., Any]
LOOKS = Path(__file__).with_name("looks.js").read_text(encoding="utf-8")
LARGEST_PICTURE_BYTES = 300_000
A4_WIDTH_PX = 688
"""Between the margins of the page's own style."""
RECIPE = """
name: fable
sequence_length: 32
batch: {sequences: 8}
training: {steps: 40}
model: {architecture: llama, layers: 2, heads: 2, width: 32}
tokenizer: {kind: bpe, vocabulary: 300}
data: {path: CORPUS, document_start: "^# ", validation: 0.2}
optimizer: {learning_rate: 1e-2, warmup: 3}
evaluation: {every: 10}
sample: {prompt: "the red", tokens: 24}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
"""
MADE_UP: Any = importlib.util.module_from_spec(
    spec := importlib.util.spec_from_file_location(
        "made_up_runs", Path(__file__).parents[1] / "report" / "conftest.py"
    )  # type: ignore[arg-type]
)
spec.loader.exec_module(MADE_UP)  # type: ignore[union-attr]
"""Run folders that are made up in numbers and whole in form."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, new_cache: Callable[[], str]) -> Path:
    """The report of a small model that was really trained, scored and sampled, on documents of few
    words.
    """
    folder, drawn = tmp_path_factory.mktemp("trained"), random.Random(0)
    words = ["red", "green", "blue", "cat", "dog", "sees", "likes", "the", "a", "tree"]
    (folder / "corpus.txt").write_text(
        "".join(
            f"# story {number}\n{' '.join(drawn.choices(words, k=60))}\n" for number in range(60)
        )
    )
    (folder / "fable.yaml").write_text(RECIPE.replace("CORPUS", str(folder / "corpus.txt")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", new_cache())
        patch.setenv("BRIMFUL_RUNS", str(folder / "runs"))
        with (folder / "log").open("w") as log:
            return run(load(str(folder / "fable.yaml")), Console(file=log))


def looks(opened: Any) -> list[str]:
    """What is wrong with a page as it is shown."""
    found: list[str] = opened.page.evaluate(LOOKS)
    return found


def test_the_check_of_looks_sees_what_is_wrong(open_page: Open, tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text(
        "<html lang=en><title>x</title><body style='background: #fff'><p style='color:"
        " #999'>pale</p><p style='position: absolute; left: 99vw'>beyond</p><p style='width: 40px;"
        " overflow: hidden; white-space: nowrap'>too long for it</p><div class=card style='width:"
        " 20px'>unbreakable</div><figure><svg width=9 height=9></svg></figure><i id=a></i><i"
        " id=a></i><table><tr><th>a</table>"
    )
    found = " ".join(looks(open_page(page)))
    for wrong in (
        "contrast 2.85",
        "outside the window",
        "cut off",
        "wider than what holds it",
        "figure without a name",
        "picture without a description",
        "twice the id a",
        "heading without scope",
    ):
        assert wrong in found, wrong


@pytest.mark.parametrize(
    ("size", "dark"), [("desktop", False), ("desktop", True), ("phone", False), ("phone", True)]
)
def test_the_report_of_a_real_run_is_readable(
    trained: Path, open_page: Open, size: str, dark: bool
) -> None:
    opened = open_page(trained, size, dark=dark)
    assert opened.overflow_px() == 0
    assert looks(opened) == []
    assert opened.page.locator("h1").inner_text().startswith("fable")


FOCUSED = """() => {
  const each = document.activeElement, shown = [each, each.labels?.[0]].filter(Boolean);
  const rings = shown.map(other => getComputedStyle(other).outlineStyle);
  return [each.dataset.place ?? null, rings.find(ring => ring != 'none') ?? 'none', each.outerHTML.slice(0, 80)];
}"""
"""Of what has the focus: its place, its ring, which a hidden input has around its label, and what
it is.
"""


def test_every_link_and_control_is_reached_with_the_tab_key(trained: Path, open_page: Open) -> None:
    page = open_page(trained).page
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], summary, input:checked')].map((each, place) =>"
        " (each.dataset.place = String(place)))"
    )
    reached, without_ring = [], []
    for _ in range(len(wanted) + 120):
        page.keyboard.press("Tab")
        place, ring, element = page.evaluate(FOCUSED)
        reached.append(place)
        without_ring += [element] if place is not None and ring not in {"solid", "auto"} else []
    in_order = [place for place in dict.fromkeys(reached) if place is not None]
    assert in_order == wanted
    assert without_ring == [], "what has the focus is seen"


def test_the_theme_is_chosen_by_mouse_or_keyboard_and_paper_stays_light(
    trained: Path, open_page: Open
) -> None:
    page = open_page(trained).page

    def background() -> str:
        found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    light = background()
    page.get_by_text("Dark", exact=True).click()
    dark = background()
    assert dark != light
    page.keyboard.press("ArrowLeft")
    assert page.get_by_label("Light", exact=True).is_checked()
    assert background() == light
    page.get_by_text("Dark", exact=True).click()
    page.emulate_media(media="print")
    assert background() == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
    assert background() == dark


def test_a_dark_system_is_followed_unless_light_is_chosen(trained: Path, open_page: Open) -> None:
    page = open_page(trained, dark=True).page
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_text("Light", exact=True).click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_the_printed_report_has_all_of_it(trained: Path, open_page: Open) -> None:
    opened = open_page(trained, dark=True)
    printed = opened.page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") in range(3, 16)
    opened.page.emulate_media(media="print")
    opened.page.set_viewport_size({"width": A4_WIDTH_PX, "height": 1000})
    assert opened.overflow_px() == 0
    assert opened.page.get_by_text("learning_rate: 0.01").is_visible()
    assert not opened.page.get_by_text("Theme").is_visible()


def test_the_contents_lead_to_their_sections(trained: Path, open_page: Open) -> None:
    page = open_page(trained).page
    page.get_by_role("navigation", name="Contents").get_by_role("link", name="Memory").click()
    assert 0 <= page.locator("#memory").bounding_box()["y"] < 400


@pytest.fixture(scope="module")
def pages(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of a half-written run, one of a classifier with long names and texts, a comparison,
    a study, and a page of another program's training.
    """
    folder = tmp_path_factory.mktemp("pages")
    half = MADE_UP.make_run(folder / "half", last_step=60, plan=None, samples=None)
    (half / "data.json").write_text("{")
    names = ("an ordinary message", "advertisement")
    score = json.loads(MADE_UP._label_score(names, names[1], False, 0, True, 20, 2.5))
    score["mistakes"] = [
        {
            "text": "w" * 300,
            "label": names[0],
            "predicted": names[1],
            "probability": 0.99,
            "where": f"{'very/' * 30}long.tsv:9",
        }
    ]
    spam = MADE_UP.make_run(
        folder / "spam",
        recipe=MADE_UP.CLASSIFY_RECIPE,
        scores={"test": score},
        metrics=MADE_UP._label_records(),
    )
    runs = [trained.parent, half]
    return {
        "half": write_report(half),
        "classifier": write_report(spam),
        "comparison": write_comparison(compare(runs), runs, folder / "page.html"),
        "study": write_study_report(folder, compare(runs)),
        "trainer": _trainer_page(folder / "trainer.html"),
    }


def _trainer_page(path: Path) -> Path:
    """The page of a training with a long class name, planned and measured."""
    memory = plan_model(
        nn.Linear(64, 64),
        {"x": torch.zeros(8, 64)},
        device="Tesla T4",
        loss_of=lambda model, batch: model(batch["x"]).sum(),
    )
    step = Prediction(0.5, 0.4, 0.6, "rates")
    measured = MeasuredTraining(
        (2.0, 0.5, 0.6, 0.5), 120 * MIB, 90 * MIB, ((0.0, 20 * MIB), (3.0, 120 * MIB)), "cuda"
    )
    reason = "One micro-batch of 16 would need 1.70 GiB at its peak, and 1.57 GiB are usable."
    predicted = Predicted("Tesla T4", "cuda", memory.at(8), step, reason)
    name = f"{'Very' * 12}LongModelForCausalLM"
    trained = Trained(name, "SFTTrainer", "Tesla T4", 4160, 4160, (8, 2), 16, measured)
    write_page(path, trained, predicted)
    return path


@pytest.mark.parametrize(("size", "dark"), [("desktop", True), ("phone", False)])
@pytest.mark.parametrize("name", ["half", "classifier", "comparison", "study", "trainer"])
def test_every_kind_of_page_is_readable(
    pages: dict[str, Path], open_page: Open, name: str, size: str, dark: bool
) -> None:
    opened = open_page(pages[name], size, dark=dark)
    assert opened.overflow_px() == 0
    assert looks(opened) == []
    if name == "half":
        assert opened.page.get_by_text("cannot be read").is_visible()


TALLEST_PX, SECOND_SCREENFUL_PX = 6000, 1800
OLD_RUNS = Path(__file__).parents[1] / "fixtures" / "old_runs" / "runs"
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"
WIDE_TABLES = """[...document.querySelectorAll('.scroll')]
  .filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => each.textContent.trim().slice(0, 60))"""


@pytest.fixture(scope="module")
def reports(
    trained: Path, pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A finished run of every kind, and one with more of everything than a page shows at once."""
    folder = tmp_path_factory.mktemp("reports")
    found = {"trained": trained, "classifier": pages["classifier"]}
    for kind in ("documents", "examples", "masked", "labels"):
        run = shutil.copytree(OLD_RUNS / f"{kind}-finished", folder / kind)
        found[kind] = write_report(run)
    sample = {"prompt": "once", "completion": "upon a time\n" * 12, "tokens": 60}
    samples = "".join(json.dumps(sample) + "\n" for _ in range(40))
    found["long"] = write_report(MADE_UP.make_run(folder / "long", samples=samples))
    return found


KINDS_OF_REPORT = ("trained", "classifier", "documents", "examples", "masked", "labels", "long")


@pytest.mark.parametrize("name", KINDS_OF_REPORT)
def test_a_report_is_short_and_shows_the_loss_in_the_first_two_screenfuls(
    reports: dict[str, Path], open_page: Open, name: str
) -> None:
    page = open_page(reports[name]).page
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.evaluate("document.documentElement.scrollHeight") <= TALLEST_PX
    loss = page.locator("#curves figure svg:visible").first.bounding_box()
    assert loss["y"] + loss["height"] <= SECOND_SCREENFUL_PX


@pytest.mark.parametrize("name", KINDS_OF_REPORT)
def test_no_table_is_wider_than_a_phone_whatever_is_opened(
    reports: dict[str, Path], open_page: Open, name: str
) -> None:
    opened = open_page(reports[name], "phone")
    opened.page.evaluate(OPEN_ALL)
    assert opened.page.evaluate(WIDE_TABLES) == []
    assert opened.overflow_px() == 0


@pytest.mark.parametrize(("size", "dark"), [("desktop", True), ("phone", False)])
@pytest.mark.parametrize("name", ["trained", "classifier", "examples", "long"])
def test_what_is_folded_is_readable_once_opened(
    reports: dict[str, Path], open_page: Open, name: str, size: str, dark: bool
) -> None:
    opened = open_page(reports[name], size, dark=dark)
    opened.page.evaluate(OPEN_ALL)
    assert looks(opened) == []


def test_folds_open_by_a_click_without_script_and_stand_open_on_paper(
    trained: Path, open_page: Open
) -> None:
    page = open_page(trained, java_script_enabled=False).page
    reason = page.locator("#plan table")
    assert not reason.is_visible()
    page.get_by_text("The reason of each, and the second best").click()
    assert reason.is_visible()
    printed = open_page(trained).page
    printed.emulate_media(media="print")
    hidden = "each => each.querySelector(':scope > :not(summary)').getBoundingClientRect().height"
    heights = printed.evaluate(f"[...document.querySelectorAll('details')].map({hidden})")
    assert heights
    assert all(heights)


def test_the_size_of_an_error_is_told_by_word_colour_and_shape(
    open_page: Open, tmp_path: Path
) -> None:
    plan = {
        "predicted": {"step_time_s": 0.34, "peak_memory_bytes": 1.5e9, "training_time_s": 400},
        "predicted_interval": {
            "step_time_s": [0.3, 0.4],
            "peak_memory_bytes": [1.2e9, 1.6e9],
            "training_time_s": [100, 600],
        },
    }
    run = MADE_UP.make_run(tmp_path / "bands", plan=plan)
    page = open_page(write_report(run)).page
    shown = page.evaluate(
        """[...document.querySelectorAll('#predictions tr:has(.dial b)')].map(row => {
          const mark = getComputedStyle(row.querySelector('.dial b'));
          return [row.querySelector('small[class^=error]').textContent,
                  mark.backgroundColor, mark.borderRadius + mark.transform];
        })"""
    )
    words, colours, shapes = map(set, zip(*shown, strict=True))
    assert words == {"close", "off", "far off"}
    assert len(colours) == len(shapes) == 3
    assert page.get_by_text("Rough guesses, not counted").is_visible()


def test_bars_of_predicted_and_measured_time_have_one_scale(
    open_page: Open, tmp_path: Path
) -> None:
    plan = {"predicted": {"training_time_s": 350.0}}
    page = open_page(write_report(MADE_UP.make_run(tmp_path / "slow", plan=plan))).page
    predicted, measured = page.locator("#time .stack-rows .parts").all()
    seconds = 350.0 / time_spent(read_run(tmp_path / "slow")).total_s
    assert predicted.bounding_box()["width"] / measured.bounding_box()["width"] == pytest.approx(
        seconds, rel=0.02
    )


PLAN = (
    "plan",
    "gpt-124m",
    "training.steps=5000",
    "--on",
    "Tesla T4,NVIDIA L4,NVIDIA GeForce RTX 4090,NVIDIA A100-SXM4-40GB,NVIDIA H200",
)
COLUMNS = 130
PICTURE: Any = {"width": 1080, "height": 1425}


def terminal_svg(command: str, output: str) -> str:
    """What a terminal shows, as a picture that needs no font from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(f"$ {command}\n", style="bold", highlight=False, markup=False)
    console.print(Text.from_ansi(f"{output.rstrip()}\n"), soft_wrap=True)
    bare = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    bare = bare.replace(
        "font-family: Fira Code, monospace;",
        "font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace;",
    )
    return console.export_svg(title="brimful", code_format=bare)


def test_a_terminals_picture_stands_alone(open_page: Open, tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    path.write_text(terminal_svg("brimful plan x", "device  fits\nTesla T4  \x1b[32myes\x1b[0m\n"))
    assert 'url("http' not in path.read_text()
    assert "Tesla" in open_page(path).page.locator("svg").text_content()


def test_the_pictures_of_the_documents(
    picture_run: Path | None, open_page: Open, picture_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if picture_run is None:
        pytest.skip("pictures are kept with --pictures")
    page = open_page(write_report(picture_run)).page
    page.set_viewport_size(PICTURE)
    page.screenshot(path=picture_folder / "report.png")
    monkeypatch.delenv("BRIMFUL_CACHE")
    told = subprocess.run(
        [Path(sys.executable).with_name("brimful"), *PLAN],
        env=os.environ | {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    (picture_folder / "plan.svg").write_text(
        terminal_svg(shlex.join(["brimful", *PLAN]).replace(" --on", " \\\n    --on"), told.stdout)
    )
    assert all(path.stat().st_size < LARGEST_PICTURE_BYTES for path in picture_folder.glob("*.*"))
