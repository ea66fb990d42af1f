"""The studio in a browser, as `brimful studio` serves it: a question answered, runs looked at and
compared, one talked to; by mouse, by keyboard, on a phone.
"""

import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from playwright.sync_api import Locator, Page, expect
from rich.console import Console

from brimful.runs.deciding import read_recipe_text, write_recipe

FRESH = """
name: fresh
sequence_length: 32
batch: {sequences: 8}
training: {steps: 8}
model: {architecture: llama, layers: 2, heads: 2, width: 32, context: 96}
tokenizer: {kind: bpe, vocabulary: 300}
data: {path: FOLDER/corpus.txt, document_start: "^# ", validation: 0.2}
optimizer: {learning_rate: 1e-2, warmup: 2}
evaluation: {every: 4}
sample: {tokens: 8}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
"""
TUNED = """
name: tuned
method: sft
model: FOLDER/runs/fresh/model
adapter: {rank: 4}
sequence_length: 64
batch: {sequences: 4}
training: {steps: 8}
data: {path: FOLDER/examples.jsonl, validation: 0.2, long_documents: drop, duplicates: drop}
optimizer: {learning_rate: 1e-2, warmup: 2}
evaluation: {every: 4, max_examples: 6}
sample: {prompt: "Say red twice.", tokens: 8, temperature: 0.0}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
"""
ANSWER_MS = 120_000
"""The first answer traces; a busy machine takes its time."""
Open = Callable[..., Any]
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"
WIDE_TABLES = """[...document.querySelectorAll('.scroll')]
  .filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => each.textContent.trim().slice(0, 60))"""


@pytest.fixture(scope="module")
def cache(new_cache: Callable[[], str]) -> str:
    return new_cache()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Path:
    """A folder with a finished language model, a copy of it under another recipe, one tuned from
    it, and one cut off while its files were written.
    """
    from brimful.chains import pipeline
    from brimful.recipe import load

    folder, drawn = tmp_path_factory.mktemp("studio"), random.Random(0)
    words = ["red", "green", "blue", "cat", "dog", "sees", "likes", "the", "a", "tree"]
    (folder / "corpus.txt").write_text(
        "".join(
            f"# story {number}\n{' '.join(drawn.choices(words, k=60))}\n" for number in range(60)
        )
    )
    rows = [
        {
            "instruction": f"Say {words[number % 3]} once, number {number}.",
            "output": words[number % 3],
        }
        for number in range(60)
    ]
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("fresh", FRESH), ("tuned", TUNED)):
        (folder / f"{name}.yaml").write_text(text.replace("FOLDER", str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_RUNS", str(folder / "runs"))
        patch.setenv("BRIMFUL_CACHE", cache)
        for recipe, make in (("fresh", pipeline.run), ("tuned", pipeline.train)):
            make(load(str(folder / f"{recipe}.yaml")), Console(file=io.StringIO()))
    other = shutil.copytree(folder / "runs" / "fresh", folder / "runs" / "slower")
    changed = read_recipe_text(other / "recipe.yaml").replace("name: fresh", "name: slower")
    write_recipe(other, changed.replace("learning_rate: 0.01", "learning_rate: 0.001"))
    torn = folder / "runs" / "torn"
    torn.mkdir()
    (torn / "recipe.yaml").write_text((folder / "fresh.yaml").read_text())
    (torn / "metrics.jsonl").write_text(
        '{"kind": "start", "step": 0, "total_steps": 8}\n{"kind": "step", "step": 1, "lo'
    )
    return folder / "runs"


@contextmanager
def served(runs: Path, cache: str, *options: str) -> Iterator[str]:
    """The address of `brimful studio`, which is ended by Ctrl-C, as a user would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        "from brimful.cli import main; main()",
        "studio",
        "--port",
        str(port),
        *options,
    ]
    environment = os.environ | {"BRIMFUL_RUNS": str(runs), "BRIMFUL_CACHE": cache}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            assert re.search(rf"http://(127\.0\.0\.1|localhost):{port}/", said), (
                said + process.stdout.read()
            )
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "Traceback" not in rest


@pytest.fixture(scope="module")
def studio(runs: Path, cache: str) -> Iterator[str]:
    """Its address."""
    with served(runs, cache) as address:
        yield address


def read(address: str) -> tuple[int, str]:
    """Status and text of an answer."""
    try:
        with urlopen(address, timeout=300) as answer:  # noqa: S310 - http, of this machine
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, ""


def choose(page: Page, label: str, value: str) -> None:
    """Type a value into a combobox and press Enter."""
    box = page.get_by_label(label, exact=True)
    box.fill(value)
    box.press("Enter")


def pick(page: Page, label: str, option: str) -> None:
    """Choose an option of a combobox."""
    page.get_by_label(label, exact=True).fill(option)
    page.get_by_role("option", name=option, exact=True).click()


def ask(page: Page, runs: Path) -> Locator:
    """Ask about the tiny model in a folder; the rows of the table."""
    choose(page, "Model or recipe", str(runs / "fresh" / "model"))
    expect(page.locator("#fit-answer h2")).to_contain_text("LoRA of rank 16", timeout=ANSWER_MS)
    return page.locator("#fit-table tbody tr")


def test_a_model_is_chosen_its_bars_are_read_and_another_rank_changes_the_answer_and_the_recipe(
    studio: str, runs: Path, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(studio, permissions=["clipboard-read", "clipboard-write"]).page
    rows = ask(page, runs)

    expect(rows).to_have_count(6)
    names = [re.sub(r"\s+", " ", row.inner_text()) for row in rows.all()]
    assert all("fits" in each and "x" in each for each in names)
    bar = page.get_by_role("img", name=re.compile("^Tesla T4 fits: .* of 14.6 GiB. weights "))
    assert bar.count() == 1
    before = rows.first.inner_text()

    page.get_by_label("Rank", exact=True).fill("64")
    expect(page.locator("#fit-answer h2")).to_contain_text("LoRA of rank 64", timeout=ANSWER_MS)
    assert rows.first.inner_text() != before

    recipe = page.get_by_role("region", name="Recipe as YAML")
    expect(recipe).to_contain_text("rank: 64")
    page.get_by_role("button", name="Copy the recipe").click()
    copied = page.evaluate("navigator.clipboard.readText()")

    from brimful.recipe import load

    (tmp_path / "copied.yaml").write_text(copied)
    adapter = load(str(tmp_path / "copied.yaml")).adapter
    assert adapter is not None
    assert adapter.rank == 64


def test_no_event_can_be_called_by_name_and_no_file_is_served(studio: str, runs: Path) -> None:
    config = json.loads(read(f"{studio}/config")[1])

    assert {event["api_visibility"] for event in config["dependencies"]} == {"private"}
    assert config["analytics_enabled"] is False
    for path in ("upload", f"file={runs / 'fresh' / 'recipe.yaml'}", "info", "runs"):
        assert read(f"{studio}/gradio_api/{path}")[0] == 404


def test_what_cannot_be_answered_is_told_beside_the_control_and_the_old_answer_is_marked(
    studio: str, runs: Path, open_page: Open
) -> None:
    page = open_page(studio).page
    ask(page, runs)

    choose(page, "Model or recipe", "meta-lama/Llama-3.1-8B <script>alert(1)</script>")
    expect(page.get_by_role("alert")).to_contain_text("meta-llama/Llama-3.1-8B", timeout=ANSWER_MS)
    expect(page.locator("article.fit")).to_have_class(re.compile("stale"))
    assert "Traceback" not in page.content()

    page.get_by_role("button", name="Paste a recipe or a config.json").click()
    page.get_by_label("Recipe (YAML) or config.json").fill(
        "name: x\nmodel: !!python/object/apply:os.system ['true']\n"
    )
    expect(page.get_by_role("alert")).to_contain_text("the pasted recipe")
    page.get_by_label("Recipe (YAML) or config.json").fill("")
    choose(page, "Model or recipe", str(runs / "fresh" / "model"))
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("article.fit")).not_to_have_class(re.compile("stale"))
    page.get_by_label("Sequences a step").fill("many")
    expect(page.get_by_role("alert")).to_contain_text("whole number")


WATCH = """() => {
  window.seen = [];
  const note = () => {
    const title = document.querySelector("#fit-answer article:not(.stale) h2");
    if (title && title.innerText !== window.seen.at(-1)) window.seen.push(title.innerText);
  };
  new MutationObserver(note).observe(document.body, {childList: true, subtree: true});
}"""
"""Notes every answer that the page shows as one to the controls as they are."""
LONG = "EleutherAI/pythia-12b"
"""Not in the cache, and no recordings of it ship: many seconds of work."""


def test_while_it_works_the_old_answer_is_grey_a_change_ends_it_and_others_do_not_wait(
    studio: str, runs: Path, open_page: Open
) -> None:
    page, other = open_page(studio).page, open_page(studio).page
    ask(page, runs)
    page.evaluate(WATCH)

    choose(page, "Model or recipe", LONG)
    status, answer = page.locator("#fit-status"), page.locator("#fit-answer")
    expect(status).to_contain_text(f"Working on {LONG} ...", timeout=ANSWER_MS)
    expect(answer.locator("h2")).to_have_text(re.compile("^Last answer: LoRA of rank 16"))
    expect(page.locator("#fit-recipe article")).to_have_class("stale")

    ask(other, runs)  # of another session, meanwhile
    expect(status).to_contain_text("Working on")

    page.get_by_label("Rank", exact=True).fill("8")
    expect(status).to_contain_text(f"Working on {LONG}, rank 8 ...", timeout=ANSWER_MS)
    choose(page, "Model or recipe", str(runs / "fresh" / "model"))
    expect(answer.locator("article:not(.stale) h2")).to_contain_text(
        "LoRA of rank 8", timeout=ANSWER_MS
    )
    expect(page.locator("#fit-recipe article")).not_to_have_class("stale")
    assert not any(LONG in title for title in page.evaluate("window.seen"))


def test_a_closed_page_ends_what_it_waited_for(studio: str, runs: Path, open_page: Open) -> None:
    page = open_page(studio).page
    ask(page, runs)
    choose(page, "Model or recipe", LONG)
    expect(page.locator("#fit-status")).to_contain_text("Working on", timeout=ANSWER_MS)
    before = living()

    page.close()

    while before <= living():  # none of them ends by itself
        time.sleep(0.1)


def living() -> set[int]:
    """Processes that were started from here and have not ended."""
    return {
        each.pid
        for each in psutil.Process().children(recursive=True)
        if each.is_running() and each.status() != psutil.STATUS_ZOMBIE
    }


def test_every_control_has_a_name_and_the_first_tab_is_usable_by_keyboard_alone(
    studio: str, runs: Path, open_page: Open
) -> None:
    page = open_page(studio).page
    ask(page, runs)
    assert page.evaluate(NAMELESS) == []

    page.get_by_role("tab", name="Will it fit?").focus()
    page.keyboard.press("ArrowRight")
    reached: list[str] = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(document.activeElement.labels?.[0] ??"
                " document.activeElement).innerText.trim().split('\\n')[0]"
            )
        )
        if reached[-1] == "Sequence length":
            break
    assert reached[-1] == "Sequence length", reached
    page.keyboard.type("48")
    expect(page.locator("#fit-answer h2")).to_contain_text("x 48 tokens", timeout=ANSWER_MS)


NAMELESS = """() => [...document.querySelectorAll('input, textarea, select, button, [role=button], [role=img], iframe, summary')]
  .filter(each => each.checkVisibility() && !each.closest('[aria-hidden=true]'))
  .filter(each => !(each.labels?.length || each.getAttribute('aria-label') || each.getAttribute('aria-labelledby') || each.title || each.innerText?.trim()))
  .map(each => each.outerHTML.slice(0, 200))"""


def test_runs_are_opened_watched_and_compared(studio: str, runs: Path, open_page: Open) -> None:
    page = open_page(studio).page
    page.get_by_role("tab", name="Runs").click()
    view = page.locator("#runs-view")

    pick(page, "Run", "torn")
    expect(view.get_by_role("heading", level=2)).to_contain_text("unfinished")
    expect(view).to_contain_text(
        "plan.json (the plan and its predictions) is not in the run folder."
    )
    journal = runs / "torn" / "metrics.jsonl"
    lines = "".join(
        json.dumps({"kind": "step", "step": step, "loss": 5 - step / 8, "step_time_s": 0.1}) + "\n"
        for step in range(1, 6)
    )
    journal.write_text('{"kind": "start", "step": 0, "total_steps": 8}\n' + lines)
    expect(view.get_by_role("img", name=re.compile("Loss by optimizer step"))).to_be_visible(
        timeout=ANSWER_MS
    )

    pick(page, "Run", "fresh")
    expect(view.locator("table").first).to_contain_text("Peak memory")
    expect(view.locator("figure.chart.main svg")).to_be_visible()
    page.get_by_label("Report", exact=True).check()
    expect(
        page.frame_locator("iframe[title='Report of fresh']").get_by_role("heading", level=1)
    ).to_contain_text("fresh")
    assert page.evaluate(NAMELESS) == []

    for name in ("fresh", "slower"):
        pick(page, "Compare", name)
    expect(page.locator("#runs-comparison table").first.get_by_role("row")).to_have_count(3)
    pick(page, "Compare", "torn")
    expect(page.locator("#runs-comparison table").first.get_by_role("row")).to_have_count(4)


def test_a_run_writes_beside_the_model_it_tuned_until_it_is_stopped(
    studio: str, open_page: Open
) -> None:
    page = open_page(studio).page
    page.get_by_role("tab", name="Try it").click()
    pick(page, "Run to try", "tuned")
    expect(page.get_by_label("Compare with the model before tuning")).to_be_checked()
    page.get_by_label("New tokens").fill("12")
    page.get_by_label("Prompt").fill("Say <b>red</b> once.")
    page.get_by_role("button", name="Write").click()
    log = page.get_by_role("log")
    expect(log).to_contain_text("Before tuning", timeout=ANSWER_MS)
    expect(log.locator(".written")).to_have_count(2)
    expect(log.locator(".caret")).to_have_count(0, timeout=ANSWER_MS)
    expect(log).to_contain_text("<b>red</b>")
    first = log.locator(".written pre").all_text_contents()

    page.get_by_role("button", name="Start over").click()
    expect(log.locator(".written")).to_have_count(0)
    page.get_by_label("Prompt").fill("Say <b>red</b> once.")
    page.get_by_role("button", name="Write").click()
    expect(log.locator(".written pre")).to_have_text(first, timeout=ANSWER_MS)

    pick(page, "Run to try", "fresh")
    page.get_by_label("number input for Temperature").fill("0")
    page.get_by_label("New tokens").fill("4000")
    page.get_by_label("Prompt").fill("the cat")
    page.get_by_role("button", name="Write").click()
    expect(log.locator(".caret")).to_have_count(1, timeout=ANSWER_MS)
    page.get_by_role("button", name="Stop").click()
    expect(log).to_contain_text("stopped", timeout=ANSWER_MS)

    page.get_by_label("Prompt").fill("the dog")
    page.get_by_role("button", name="Write").click()
    expect(log.locator(".caret")).to_have_count(1, timeout=ANSWER_MS)
    page.get_by_role("button", name="Start over").click()
    expect(log.locator(".written")).to_have_count(0)
    page.wait_for_timeout(1000)  # in which what was written would come back
    expect(log.locator(".written")).to_have_count(0)
    page.get_by_label("New tokens").fill("0")
    page.get_by_role("button", name="Write").click()
    expect(page.get_by_role("alert")).to_contain_text("new tokens must be 1 to 4,096")


def test_two_people_at_once_get_their_own_answers_and_texts(
    studio: str, runs: Path, open_page: Open
) -> None:
    pages = {batch: open_page(studio).page for batch in ("4", "8")}
    for page in pages.values():
        ask(page, runs)
    for batch, page in pages.items():
        page.get_by_label("Sequences a step").fill(batch)
    for batch, page in pages.items():
        expect(page.locator("#fit-answer h2")).to_contain_text(f", {batch} x ", timeout=ANSWER_MS)
        expect(page.get_by_role("region", name="Recipe as YAML")).to_contain_text(
            f"sequences: {batch}"
        )
        page.get_by_role("tab", name="Try it").click()
        pick(page, "Run to try", "fresh")
        page.get_by_label("New tokens").fill("8")
        page.get_by_label("Prompt").fill(f"the cat {batch}")
    for page in pages.values():
        page.get_by_role("button", name="Write").click()
    for batch, page in pages.items():
        expect(page.locator(".written mark")).to_have_text([f"the cat {batch}"], timeout=ANSWER_MS)
        expect(page.locator(".caret")).to_have_count(0, timeout=ANSWER_MS)


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_no_tab_is_wider_than_its_window(
    studio: str, runs: Path, open_page: Open, size: str
) -> None:
    opened = open_page(studio, size, dark=size == "phone")
    page = opened.page
    ask(page, runs)
    for tab in ("Will it fit?", "Runs", "Try it"):
        page.get_by_role("tab", name=tab).click()
        expect(
            page.get_by_label(
                {"Will it fit?": "Rank", "Runs": "Compare", "Try it": "Prompt"}[tab], exact=True
            )
        ).to_be_visible()
        if tab == "Runs":
            expect(page.locator("#runs-view h2")).to_be_visible()
        assert opened.overflow_px() <= 0, tab
        page.evaluate(OPEN_ALL)
        assert page.evaluate(WIDE_TABLES) == [], tab


def test_runs_side_by_side_are_no_wider_than_a_phone(studio: str, open_page: Open) -> None:
    page = open_page(studio, "phone").page
    page.get_by_role("tab", name="Runs").click()
    for name in ("fresh", "slower"):
        pick(page, "Compare", name)
    table = page.locator("#runs-comparison table").first
    expect(table).to_contain_text("slower")
    assert page.evaluate(WIDE_TABLES) == []
    read_by_name = table.locator("tbody td").first
    assert read_by_name.evaluate("each => getComputedStyle(each, '::before').content") != "none"


PICTURED = "meta-llama/Llama-3.1-8B"
TRACED_MS = 600_000


def test_pictures(
    cache: str, picture_run: Path | None, picture_folder: Path, open_page: Open
) -> None:
    """`pytest tests/browser --pictures --picture-run RUN`: each tab, of a model of 8B parameters
    and of a real run.
    """
    if picture_run is None:
        pytest.skip("pictures are made when asked for: --pictures")
    name = picture_run.name
    with served(picture_run.parent, cache) as address:
        page = open_page(address).page
        choose(page, "Model or recipe", PICTURED)
        expect(page.locator("#fit-answer h2")).to_contain_text(PICTURED, timeout=TRACED_MS)
        expect(page.get_by_text("Looking for what would make it fit")).to_have_count(
            0, timeout=TRACED_MS
        )
        page.screenshot(path=picture_folder / "studio-fit.png")
        page.get_by_role("tab", name="Runs").click()
        pick(page, "Run", name)
        expect(page.locator("#runs-view h2")).to_contain_text(name)
        expect(page.get_by_role("listbox")).to_have_count(0)
        page.screenshot(path=picture_folder / "studio-runs.png")
        page.get_by_role("tab", name="Try it").click()
        pick(page, "Run to try", name)
        page.get_by_label("Prompt").fill("def read_lines(path):")
        page.get_by_role("button", name="Write").click()
        expect(page.locator(".written")).not_to_have_count(0, timeout=ANSWER_MS)
        expect(page.locator(".caret")).to_have_count(0, timeout=ANSWER_MS)
        page.set_viewport_size({"width": 1280, "height": 620})
        page.screenshot(path=picture_folder / "studio-try.png")
        page.close()
