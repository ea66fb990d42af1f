"""The atlas in a real browser, opened from the disk: search, choose, compare, link, phone,
keyboard. Its numbers are those of `brimful plan`.
"""

import csv
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from brimful.base.units import format_bytes, format_duration, format_money
from brimful.faces.atlas.pages import write_atlas
from brimful.faces.atlas.scope import Question, Scope
from brimful.hardware import catalog as devices

Open = Callable[..., Any]
LARGEST_PICTURE_BYTES = 300_000
SCOPE = Scope(
    models=("HuggingFaceTB/SmolLM2-135M", "meta-llama/Llama-3.1-8B"),
    methods=("lora", "full"),
    lengths=(512, 2048),
    batches=(8, 16),
    tokens=(1_000_000, 10_000_000),
    devices=("Tesla T4", "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"),
)
LLAMA = "#model=meta-llama/Llama-3.1-8B"


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a small atlas."""
    written = write_atlas(tmp_path_factory.mktemp("atlas") / "site", SCOPE, lambda text: None)
    return written.page.resolve().as_uri()


def _rows(page: Page) -> list[str]:
    expect(page.locator("#devices tbody tr").first).to_be_visible()
    return [str(name) for name in page.locator("#devices tbody th").all_inner_texts()]


def test_the_page_shows_each_device_and_asks_nobody(atlas: str, open_page: Open) -> None:
    opened = open_page(atlas)

    assert _rows(opened.page) == list(SCOPE.devices)
    expect(opened.page.locator("#title")).to_contain_text("SmolLM2-135M")
    expect(opened.page.locator("#answer")).to_contain_text("Fits 4 of 4 devices")


def test_a_model_is_found_by_words_of_its_name(atlas: str, open_page: Open) -> None:
    page = open_page(atlas).page
    _rows(page)

    page.fill("#model", "llama 8b")
    page.press("#model", "Enter")

    expect(page.locator("#title")).to_contain_text("meta-llama/Llama-3.1-8B")
    expect(page).to_have_url(re.compile(r"model=meta\-llama/Llama\-3\.1\-8B"))


def test_a_link_leads_to_its_answer(atlas: str, open_page: Open) -> None:
    address = f"{atlas}{LLAMA}&method=full&length=512&batch=8&tokens=1000000&find=a100"

    page = open_page(address).page

    assert _rows(page) == ["NVIDIA A100-SXM4-80GB"]
    assert page.input_value("#method") == "full"
    assert page.input_value("#length") == "512"
    assert page.input_value("#batch") == "8"
    assert page.input_value("#tokens") == "1000000"


def test_what_a_link_asks_for_in_vain_is_said(atlas: str, open_page: Open) -> None:
    page = open_page(f"{atlas}#model=gpt-9&length=333&tokens=many").page

    problem = page.locator("#problem")
    expect(problem).to_contain_text("no model gpt-9")
    expect(problem).to_contain_text("no sequence length: 333")
    expect(problem).to_contain_text("many")
    assert len(_rows(page)) == len(SCOPE.devices)


HOSTILE = (
    "<img src=x onerror=window.owned=1>",
    "</script><script>window.owned=1</script>",
    '"><svg onload=window.owned=1>',
    "javascript:window.owned=1//",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_models_and_what_links_ask_for_are_text(
    atlas: str, open_page: Open, tmp_path: Path, name: str
) -> None:
    site = shutil.copytree(Path(atlas.removeprefix("file://")).parent, tmp_path / "site")
    for path in site.rglob("*.js"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("HuggingFaceTB/SmolLM2-135M", json.dumps(name)[1:-1]))
    index = (site / "index.html").as_uri()
    for address in (
        index,
        *(f"{index}#{key}={quote(name)}" for key in ("model", "find", "tokens")),
    ):
        opened = open_page(address)
        opened.page.wait_for_timeout(50)
        opened.page.locator("#model").click()
        assert opened.page.evaluate("window.owned") is None
        assert opened.page.locator("img, svg[onload]").count() == 0
        opened.errors.clear()
        opened.page.close()


def test_two_devices_are_compared(atlas: str, open_page: Open) -> None:
    page = open_page(f"{atlas}{LLAMA}").page
    _rows(page)

    page.check('[data-compare="t4"]')
    expect(page.locator("#comparison")).to_be_hidden()
    page.check('[data-compare="l4"]')

    expect(page.locator("#comparison thead, #comparison tr").first).to_contain_text("Tesla T4")
    expect(page.locator("#comparison tr").first).to_contain_text("NVIDIA L4")
    expect(page).to_have_url(re.compile(r"compare=t4,l4"))


def test_the_table_is_sorted_and_narrowed(atlas: str, open_page: Open) -> None:
    page = open_page(f"{atlas}{LLAMA}").page
    _rows(page)

    page.click('[data-sort="training"]')
    fastest = _rows(page)
    page.click('[data-sort="training"]')
    slowest = _rows(page)
    page.check("#fits")

    fitting = _rows(page)
    assert fastest[0] == "NVIDIA A100-SXM4-80GB"
    # Where there is no time, a device stands last in both orders.
    assert fastest[-1] == slowest[-1] == "Tesla T4"
    assert "Tesla T4" not in fitting
    assert page.locator("#devices tbody .chip.fits").count() == len(fitting)


def test_everything_is_reached_by_keyboard(atlas: str, open_page: Open) -> None:
    page = open_page(f"{atlas}{LLAMA}").page
    _rows(page)

    page.focus("#model")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.dataset.sort || document.activeElement.dataset.compare"
            )
        )
        if reached[-1] == "training":
            page.keyboard.press("Enter")
        if reached[-1] == "l4":
            page.keyboard.press("Space")
            break

    assert reached[:9] == [
        "method",
        "length",
        "batch",
        "tokens",
        "find",
        "fits",
        "csv",
        "json",
        "link",
    ]
    expect(page).to_have_url(re.compile(r"sort=training"))
    expect(page).to_have_url(re.compile(r"compare=l4"))


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_scrolls_only_down(atlas: str, open_page: Open, dark: bool) -> None:
    opened = open_page(f"{atlas}{LLAMA}&compare=t4,l4", "phone", dark=dark)
    _rows(opened.page)

    assert opened.overflow_px() == 0


def test_tables_can_be_taken_away(atlas: str, open_page: Open, tmp_path: Path) -> None:
    page = open_page(f"{atlas}{LLAMA}&length=512&batch=8", accept_downloads=True).page
    names = _rows(page)

    with page.expect_download() as downloading:
        page.click("#csv")
    downloading.value.save_as(tmp_path / "rows.csv")
    with page.expect_download() as downloading:
        page.click("#json")
    downloading.value.save_as(tmp_path / "rows.json")

    with open(tmp_path / "rows.csv", newline="", encoding="utf-8") as file:
        of_csv = list(csv.DictReader(file))
    of_json = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [row["device"] for row in of_csv] == [row["device"] for row in of_json["devices"]]
    assert [row["device"] for row in of_csv] == names
    assert of_json["question"]["model"] == "meta-llama/Llama-3.1-8B"
    peaks = [
        (float(one["peak_bytes"]), other["peak_bytes"])
        for one, other in zip(of_csv, of_json["devices"], strict=True)
    ]
    assert all(one == other for one, other in peaks)


def test_a_missing_table_is_said(atlas: str, open_page: Open, tmp_path: Path) -> None:
    opened = open_page(atlas)
    page = opened.page
    _rows(page)
    missing = (
        Path(atlas.removeprefix("file://")).parent / "tables" / "meta-llama.llama-3.1-8b.full.js"
    )
    aside = missing.rename(tmp_path / "aside.js")

    page.goto(f"{atlas}{LLAMA}&method=full")
    expect(page.locator("#problem")).to_contain_text("cannot be read")

    aside.rename(missing)
    assert any("ERR_FILE_NOT_FOUND" in error for error in opened.errors)
    opened.errors.clear()


CELLS = """rows => rows.map(row => [row.querySelector("th").innerText,
    ...[...row.querySelectorAll("td")].map(cell => cell.innerText)])"""


def _expected(entry: Mapping[str, Any]) -> list[str]:
    """Return what a page has to show of a device, from the JSON of `brimful plan`."""
    memory, plan = entry.get("memory"), entry.get("plan")
    if memory is None or plan is None:
        return [str(entry["reason"])]
    driver, predicted = memory["driver_bytes"], plan["predicted"]
    shown = [
        {"fits": "fits", "uncertain": "may fit", "does not fit": "does not fit"}[entry["verdict"]],
        f"{format_bytes(driver['value'])} of {format_bytes(memory['usable_bytes'])}",
        _between(format_bytes, (driver["low"], driver["high"])),
        f"{memory['micro_batch']} x {plan['accumulation']}",
    ]
    if entry["verdict"] == "does not fit":
        return shown
    ends = plan["predicted_interval"]
    for name in ("step_time_s", "training_time_s"):
        shown += [format_duration(predicted[name]), _between(format_duration, ends[name])]
    shown.append(f"{round(predicted['tokens_per_s']):,}")
    price = devices.price_of(str(entry["device"]))
    if price is None:
        return [*shown, "no price known"]
    training = (predicted["training_time_s"], *ends["training_time_s"])
    costs = [each / 3600 * price.usd_per_hour for each in training]
    return [*shown, format_money(costs[0]), _between(format_money, costs[1:])]


def _between(form: Any, ends: Any) -> str:
    low, high = ends
    return f"{form(low)} to {form(high)}"


def _differences(row: list[str], entry: Mapping[str, Any]) -> list[str]:
    """Return the numbers of a plan that a row of the page does not show."""
    pieces = [piece.strip() for cell in row for piece in cell.split("\n")]
    return [each for each in _expected(entry) if each not in pieces]


def _numbers_of(page: Page, address: str, question: Question) -> list[list[str]]:
    """Open the page of a question; return the texts of its table's cells."""
    page.goto(
        f"{address}#model={question.model}&method={question.method}&length={question.length}"
        f"&batch={question.batch}&tokens={question.tokens}"
    )
    title = f"{question.model}, {question.batch} x {question.length:,} tokens"
    expect(page.locator("#title")).to_contain_text(title, timeout=60_000)
    rows: list[list[str]] = page.locator("#devices tbody tr").evaluate_all(CELLS)
    return rows


def _planned(recipe: str, names: str, folder: Path) -> list[dict[str, Any]]:
    """Run `brimful plan` on a page's recipe; return what it says of each device."""
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    command = ["plan", str(folder / "recipe.yaml"), "--on", names, "--json"]
    program = "from brimful.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, check=False
    )
    found: list[dict[str, Any]] = json.loads(ended.stdout)["devices"]
    return found


def test_shown_numbers_are_those_of_brimful_plan(
    atlas: str, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(atlas).page
    every = [
        question
        for model in SCOPE.models
        for method in SCOPE.methods
        for question in SCOPE.questions(model, method)
    ]
    for question in random.Random(20).sample(every, 3):
        rows = _numbers_of(page, atlas, question)
        recipe = page.locator("#recipe pre").text_content() or ""

        entries = _planned(recipe, ",".join(SCOPE.devices), tmp_path)

        assert [row[0].strip() for row in rows] == [entry["device"] for entry in entries]
        for row, entry in zip(rows, entries, strict=True):
            assert _differences(row, entry) == []
            entry["memory"]["driver_bytes"]["value"] += 1e9
            assert len(_differences(row, entry)) == 1


def test_on_a_phone_what_does_not_fit_shows_no_empty_lines(atlas: str, open_page: Open) -> None:
    page = open_page(f"{atlas}{LLAMA}", "phone").page
    _rows(page)
    row = page.locator('#devices tr[data-device="t4"]')

    expect(row).to_contain_text("does not fit")
    assert "Step" not in row.inner_text()
    assert row.locator("td.nothing").count() == 4


def test_a_picture_of_the_page(atlas: str, open_page: Open, picture_folder: Path) -> None:
    page = open_page(f"{atlas}{LLAMA}&compare=4090,l4").page
    _rows(page)

    page.screenshot(path=picture_folder / "atlas.png", full_page=True)

    assert 0 < (picture_folder / "atlas.png").stat().st_size <= LARGEST_PICTURE_BYTES


@pytest.mark.parametrize("dark", [False, True])
def test_pictures_of_a_phone(atlas: str, open_page: Open, picture_folder: Path, dark: bool) -> None:
    page = open_page(f"{atlas}{LLAMA}&method=lora", "phone", dark=dark).page
    _rows(page)
    path = picture_folder / f"atlas-phone{'-dark' * dark}.png"

    page.screenshot(path=path)

    assert 0 < path.stat().st_size <= LARGEST_PICTURE_BYTES
