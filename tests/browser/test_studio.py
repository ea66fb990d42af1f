"""The studio in a browser, as `brimful studio` serves it: the whole way from a file of chats to a
tuned, compared, exported model, by clicks; by mouse, by keyboard, on a phone.
"""

import io
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
def given(cache: str, warm_environment: Callable[[], dict[str, str]]) -> dict[str, str]:
    """The environment of a studio: the trainings that it starts are forked from a warm process."""
    contacts = Path(cache, "contacts.txt")
    return warm_environment() | {"BRIMFUL_CACHE": cache, "BRIMFUL_TEST_CONTACTS": str(contacts)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Iterator[Path]:
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
    yield folder / "runs"
    end_trainings_in(folder / "runs")


def end_trainings_in(runs: Path) -> None:
    """End what the studio started and a failed test has left: it outlives the studio."""
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get("BRIMFUL_RUNS") == str(runs):
                each.kill()


@contextmanager
def served(runs: Path, given: dict[str, str], *options: str) -> Iterator[str]:
    """The address that `brimful studio` prints, which is ended by Ctrl-C, as a user would."""
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
    environment = given | {"BRIMFUL_RUNS": str(runs)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            found = re.search(rf"http://127\.0\.0\.1:{port}/\S*", said)
            assert found, said + process.stdout.read()
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "Traceback" not in rest


@pytest.fixture(scope="module")
def studio(runs: Path, given: dict[str, str]) -> Iterator[str]:
    """Its address."""
    with served(runs, given) as address:
        yield address


def tab(page: Page, name: str) -> None:
    """Go to a tab."""
    page.get_by_role("link", name=name, exact=True).click()


def ask(page: Page, runs: Path) -> Locator:
    """Ask about the tiny model in a folder; the rows of the table."""
    tab(page, "Plan and start")
    page.get_by_label("Model or recipe", exact=True).fill(str(runs / "fresh" / "model"))
    answered(page, "LoRA of rank 16")
    return page.locator("#at-fit-table tbody tr")


def answered(page: Page, title: str) -> None:
    """Wait for an answer that is not an old one, and for all of it."""
    expect(page.locator("#plan-answer:not(.stale) h2")).to_contain_text(title, timeout=ANSWER_MS)
    expect(page.locator("#plan-status")).to_be_empty(timeout=ANSWER_MS)


KEYS = (
    "plan.device=cpu plan.precision=fp32 plan.threads=1 plan.compile=false evaluation.every=20"
    " optimizer.learning_rate=1e-2 training.epochs=null training.steps="
)


def choose(page: Page, runs: Path) -> None:
    """Choose the tiny model and the file of examples, and look at the tab of data."""
    tab(page, "Plan and start")
    page.get_by_label("Model or recipe", exact=True).fill(str(runs / "fresh" / "model"))
    page.get_by_label("Sequence length", exact=True).fill("64")
    page.get_by_label("Sequences a step, slider").fill("3")
    tab(page, "My data")
    page.get_by_label("File or folder").fill(str(runs.parent / "examples.jsonl"))


def start(page: Page, name: str, steps: int) -> None:
    """Plan a training of the form as it is, and start it under a name."""
    tab(page, "Plan and start")
    page.get_by_label("Further keys").fill(f"{KEYS}{steps}")
    answered(page, "4 x 64 tokens")
    expect(page.locator("#plan-recipe")).to_contain_text(f"steps: {steps}")
    page.get_by_label("Name of the run").fill(name)
    page.get_by_role("button", name="Start training here").click()
    expect(page.get_by_label("Run", exact=True)).to_have_value(name)


def step_of(page: Page) -> int:
    """The step that is shown of a run."""
    return int(re.findall(r"step (\d+)/", page.locator("#runs-live").inner_text())[0])


@pytest.mark.long
def test_from_a_file_of_chats_to_a_tuned_compared_and_exported_model_by_clicks(
    runs: Path, given: dict[str, str], open_page: Open
) -> None:
    with served(runs, given) as address:
        page = open_page(address).page
        assert "key" not in page.url
        choose(page, runs)
        page.get_by_role("button", name="Look at the data").click()
        expect(page.locator("#data-answer mark").first).to_be_visible(timeout=ANSWER_MS)
        expect(page.locator("#data-answer .command")).to_contain_text("brimful data")
        start(page, "long", 100_000)
        live = page.locator("#runs-live")
        expect(live).to_contain_text("tokens/s", timeout=ANSWER_MS)
        page.close()
    # What was started goes on, and another studio finds it.
    with served(runs, given) as address:
        page = open_page(address).page
        tab(page, "Runs")
        page.get_by_label("Run", exact=True).select_option("long")
        live = page.locator("#runs-live")
        expect(live).to_contain_text("running: process", timeout=ANSWER_MS)
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(live).to_contain_text("stopped at step", timeout=ANSWER_MS)
        stopped_at = step_of(page)
        page.get_by_role("button", name="Continue", exact=True).click()
        while step_of(page) <= stopped_at:
            page.wait_for_timeout(100)
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(live).to_contain_text("stopped at step", timeout=ANSWER_MS)
        choose(page, runs)
        start(page, "chats", 8)
        expect(page.locator("#runs-view h2")).to_contain_text(
            "chats finished: 8 steps", timeout=ANSWER_MS
        )
        for name in ("chats", "tuned"):
            page.get_by_role("checkbox", name=name, exact=True).check()
        beside = page.locator("#runs-comparison")
        expect(beside.locator(".command")).to_contain_text("brimful compare", timeout=ANSWER_MS)
        expect(beside.locator("table").first.get_by_role("row")).to_have_count(3)
        page.get_by_label("Export", exact=True).select_option("merged")
        page.get_by_role("button", name="Export", exact=True).click()
        expect(page.locator("#runs-export")).to_contain_text(
            f"wrote {runs / 'chats' / 'merged'}", timeout=ANSWER_MS
        )
        assert (runs / "chats" / "merged" / "model.safetensors").is_file()
        talk(page, "chats")
        page.get_by_label("New tokens").fill("8")
        write(page, "Say red once, number 3.")
        expect(page.locator("#try-text .written")).to_have_count(2)
        expect(page.locator("#try-text .command")).to_contain_text("brimful generate chats")


def talk(page: Page, run: str) -> None:
    """Choose a run to try, and wait until it is open."""
    tab(page, "Try it")
    page.get_by_label("Run to try").select_option(run)
    expect(page.locator("#try-text")).to_contain_text("Type ", timeout=ANSWER_MS)


def write(page: Page, prompt: str, *, ends: bool = True) -> None:
    """Send a prompt; and wait for the whole answer."""
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_role("button", name="Write", exact=True).click()
    if ends:
        expect(page.locator("#try-text .command")).to_be_visible(timeout=ANSWER_MS)


def test_without_the_key_a_page_looks_and_starts_nothing(
    studio: str, runs: Path, open_page: Open
) -> None:
    opened = open_page(studio.partition("#")[0])
    page = opened.page
    ask(page, runs)
    page.get_by_role("button", name="Start training here").click()
    expect(page.get_by_role("alert")).to_contain_text("the address that the terminal")
    assert [each for each in opened.errors if "401" not in each] == []
    opened.errors.clear()


def test_a_model_is_chosen_its_bars_are_read_and_another_rank_changes_the_answer_and_the_recipe(
    studio: str, runs: Path, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(studio, permissions=["clipboard-read", "clipboard-write"]).page
    rows = ask(page, runs)

    expect(page.get_by_role("checkbox", name="This machine")).to_be_checked()
    expect(page.locator("#plan-recipe .command")).to_contain_text("--on 'here,Tesla T4,")
    expect(rows).to_have_count(7)
    names = [re.sub(r"\s+", " ", row.inner_text()) for row in rows.all()]
    assert all("fits" in each and "x" in each for each in names)
    bar = page.get_by_role("img", name=re.compile("^Tesla T4 fits: .* of 14.6 GiB. weights "))
    assert bar.count() == 1
    before = rows.first.inner_text()

    page.get_by_label("Rank, slider").fill("5")
    answered(page, "LoRA of rank 64")
    assert rows.first.inner_text() != before

    expect(page.locator("#plan-recipe pre.text")).to_contain_text("rank: 64")
    page.get_by_role("button", name="Copy the recipe").click()
    copied = page.evaluate("navigator.clipboard.readText()")

    from brimful.recipe import load

    (tmp_path / "copied.yaml").write_text(copied)
    adapter = load(str(tmp_path / "copied.yaml")).adapter
    assert adapter is not None
    assert adapter.rank == 64


def test_what_cannot_be_answered_is_told_and_the_old_answer_is_marked(
    studio: str, runs: Path, open_page: Open
) -> None:
    page = open_page(studio).page
    ask(page, runs)
    alert, model = page.get_by_role("alert"), page.get_by_label("Model or recipe", exact=True)
    old = page.get_by_text("It belongs to the question before")

    model.fill("meta-lama/Llama-3.1-8B <script>alert(1)</script>")
    expect(alert).to_contain_text("meta-llama/Llama-3.1-8B", timeout=ANSWER_MS)
    expect(old).to_be_visible()
    assert "Traceback" not in page.content()

    page.get_by_text("Paste a recipe or a config.json", exact=True).click()
    pasted = page.get_by_label("Recipe (YAML) or config.json")
    pasted.fill("name: x\nmodel: !!python/object/apply:os.system ['true']\n")
    expect(alert).to_contain_text("the pasted recipe")
    pasted.fill("")
    ask(page, runs)
    expect(alert).to_have_count(0)
    expect(old).to_be_hidden()
    page.get_by_label("Sequences a step", exact=True).fill("many")
    expect(alert).to_contain_text("whole number")


WATCH = """() => {
  window.seen = [];
  const note = () => {
    const title = document.querySelector("#plan-answer:not(.stale) h2");
    if (title && title.innerText !== window.seen.at(-1)) window.seen.push(title.innerText);
  };
  new MutationObserver(note).observe(document.body, {childList: true, subtree: true, attributes: true});
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
    status, model = page.locator("#plan-status"), page.get_by_label("Model or recipe", exact=True)

    model.fill(LONG)
    expect(status).to_contain_text(f"Working on {LONG} ...", timeout=ANSWER_MS)
    expect(page.get_by_text("It belongs to the question before")).to_be_visible()
    expect(page.locator("#plan-answer.stale h2")).to_contain_text("LoRA of rank 16")
    expect(page.locator("#plan-recipe.stale")).to_be_visible()

    ask(other, runs)  # of another page, meanwhile
    expect(status).to_contain_text("Working on")

    page.get_by_label("Rank", exact=True).fill("8")
    expect(status).to_contain_text(f"Working on {LONG}, rank 8 ...", timeout=ANSWER_MS)
    model.fill(str(runs / "fresh" / "model"))
    answered(page, "LoRA of rank 8")
    assert not any(LONG in title for title in page.evaluate("window.seen"))


def test_a_closed_page_ends_what_it_waited_for(studio: str, runs: Path, open_page: Open) -> None:
    page = open_page(studio).page
    ask(page, runs)
    page.get_by_label("Model or recipe", exact=True).fill(LONG)
    expect(page.locator("#plan-status")).to_contain_text(f"Working on {LONG}", timeout=ANSWER_MS)
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


NAMELESS = """() => [...document.querySelectorAll('input, textarea, select, button, [role=button], [role=img], iframe, summary')]
  .filter(each => each.checkVisibility() && !each.closest('[aria-hidden=true]'))
  .filter(each => !(each.labels?.length || each.getAttribute('aria-label') || each.getAttribute('aria-labelledby') || each.title || each.innerText?.trim()))
  .map(each => each.outerHTML.slice(0, 200))"""


def test_every_control_has_a_name_and_a_plan_is_made_by_keyboard_alone(
    studio: str, runs: Path, open_page: Open
) -> None:
    page = open_page(studio).page
    ask(page, runs)
    assert page.evaluate(NAMELESS) == []

    page.get_by_role("link", name="Plan and start").focus()
    page.keyboard.press("Enter")
    reached: list[str] = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(document.activeElement.labels?.[0] ?? document.activeElement).innerText.trim()"
            )
        )
        if reached[-1] == "Sequence length":
            break
    assert reached[-1] == "Sequence length", reached
    page.keyboard.type("48")
    answered(page, "x 48 tokens")


def test_runs_are_opened_watched_and_compared(studio: str, runs: Path, open_page: Open) -> None:
    page = open_page(studio).page
    tab(page, "Runs")
    view, run = page.locator("#runs-view"), page.get_by_label("Run", exact=True)

    run.select_option("torn")
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

    run.select_option("fresh")
    expect(view.locator("table").first).to_contain_text("Peak memory")
    expect(view.locator("figure.chart.main svg")).to_be_visible()
    page.get_by_label("Shown as").select_option("Report")
    expect(
        page.frame_locator("iframe[title='Report of fresh']").get_by_role("heading", level=1)
    ).to_contain_text("fresh")
    assert page.evaluate(NAMELESS) == []

    rows = page.locator("#runs-comparison table").first.get_by_role("row")
    for count, name in enumerate(("fresh", "slower", "torn"), 1):
        page.get_by_role("checkbox", name=name, exact=True).check()
        if count > 1:
            expect(rows).to_have_count(count + 1)


def test_a_run_writes_beside_the_model_it_tuned_until_it_is_stopped(
    studio: str, open_page: Open
) -> None:
    page = open_page(studio).page
    talk(page, "tuned")
    log = page.get_by_role("log")
    expect(page.get_by_label("Beside the model before tuning")).to_be_checked()
    page.get_by_label("New tokens").fill("12")
    write(page, "Say <b>red</b> once.")
    expect(log).to_contain_text("Before tuning")
    expect(log.locator(".written")).to_have_count(2)
    expect(log).to_contain_text("<b>red</b>")
    first = log.locator(".written pre").all_text_contents()

    tab(page, "Runs")
    tab(page, "Try it")
    expect(log.locator(".written pre")).to_have_text(first)
    page.get_by_role("button", name="Start over").click()
    expect(log.locator(".written")).to_have_count(0)
    write(page, "Say <b>red</b> once.")
    expect(log.locator(".written pre")).to_have_text(first, timeout=ANSWER_MS)

    talk(page, "fresh")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("New tokens").fill("4000")
    write(page, "the cat", ends=False)
    expect(log.locator(".caret")).to_have_count(1, timeout=ANSWER_MS)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(log).to_contain_text("stopped", timeout=ANSWER_MS)

    write(page, "the dog", ends=False)
    expect(log.locator(".caret")).to_have_count(1, timeout=ANSWER_MS)
    page.get_by_role("button", name="Start over").click()
    expect(log.locator(".written")).to_have_count(0)
    page.wait_for_timeout(1000)  # in which what was written would come back
    expect(log.locator(".written")).to_have_count(0)
    page.get_by_label("New tokens").fill("0")
    write(page, "the dog", ends=False)
    expect(page.get_by_role("alert")).to_contain_text("new tokens must be 1 to 4,096")


@pytest.mark.long
def test_two_people_at_once_get_their_own_answers_and_texts(
    studio: str, runs: Path, open_page: Open
) -> None:
    pages = {batch: open_page(studio).page for batch in ("4", "8")}
    for page in pages.values():
        ask(page, runs)
    for batch, page in pages.items():
        page.get_by_label("Sequences a step", exact=True).fill(batch)
    for batch, page in pages.items():
        answered(page, f", {batch} x ")
        expect(page.locator("#plan-recipe pre.text")).to_contain_text(f"sequences: {batch}")
        talk(page, "fresh")
        page.get_by_label("New tokens").fill("8")
    for batch, page in pages.items():
        write(page, f"the cat {batch}", ends=False)
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
    for name in ("Plan and start", "My data", "Runs", "Try it"):
        tab(page, name)
        if name == "Runs":
            for each in ("fresh", "slower"):
                page.get_by_role("checkbox", name=each, exact=True).check()
            expect(page.locator("#runs-comparison table").first).to_contain_text("slower")
            expect(page.locator("#runs-view h2")).to_be_visible()
        assert opened.overflow_px() <= 0, name
        page.evaluate(OPEN_ALL)
        assert page.evaluate(WIDE_TABLES) == [], name


PICTURED = "meta-llama/Llama-3.1-8B"
TRACED_MS = 600_000


@pytest.mark.long
def test_pictures(
    given: dict[str, str], picture_run: Path | None, picture_folder: Path, open_page: Open
) -> None:
    """`pytest tests/browser --pictures --picture-run RUN`: each tab, of a model of 8B parameters
    and of a real run.
    """
    if picture_run is None:
        pytest.skip("pictures are made when asked for: --pictures")
    name = picture_run.name
    with served(picture_run.parent, given) as address:
        page = open_page(address).page
        tab(page, "Plan and start")
        page.get_by_label("Model or recipe", exact=True).fill(PICTURED)
        expect(page.locator("#plan-answer h2")).to_contain_text(PICTURED, timeout=TRACED_MS)
        expect(page.locator("#plan-status")).to_be_empty(timeout=TRACED_MS)
        page.screenshot(path=picture_folder / "studio-fit.png")
        tab(page, "Runs")
        page.get_by_label("Run", exact=True).select_option(name)
        expect(page.locator("#runs-view h2")).to_contain_text(name)
        page.screenshot(path=picture_folder / "studio-runs.png")
        talk(page, name)
        write(page, "def read_lines(path):")
        page.set_viewport_size({"width": 1280, "height": 620})
        page.screenshot(path=picture_folder / "studio-try.png")
        page.close()
