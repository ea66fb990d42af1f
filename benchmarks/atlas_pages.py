"""Is each number on a page of the atlas that of `brimful plan`? Twenty pages, drawn at random, in a
headless Chromium, against the command that each page names, in a process of its own.

    python benchmarks/atlas_pages.py [--pages 20] [--seed 0] [--minutes 60]

For each page an atlas is written that holds its table alone, for every device of the catalog: all
tables of five models would take a quarter of an hour. Compared are verdict, memory, micro-batch,
step time, tokens a second, training time and cost of every device, with intervals, as texts. Each
page and each command takes some three CPU seconds; steps whose recordings do not come with brimful
are traced by the first of them and kept. Needs Chromium and playwright.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

from brimful.base.units import format_bytes, format_duration, format_money
from brimful.faces.atlas.pages import write_atlas
from brimful.faces.atlas.scope import METHODS, Question, Scope
from brimful.hardware import catalog as devices
from record import write_record

MODELS = (
    "meta-llama/Llama-3.1-8B",
    "HuggingFaceTB/SmolLM2-135M",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen3-0.6B",
    "meta-llama/Llama-3.2-1B",
)
"""Whose recordings for all cards come with brimful: nothing is traced."""
LENGTHS, BATCHES, TOKENS = (512, 2048, 4096), (8, 16), (10_000_000,)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 60_000
ROWS = """rows => rows.map(row => [row.querySelector("th").innerText,
    ...[...row.querySelectorAll("td")].map(cell => cell.innerText)])"""


def expected(entry: Mapping[str, Any]) -> list[str]:
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


def differences(row: list[str], entry: Mapping[str, Any]) -> list[str]:
    """Return the numbers of a plan that a row of the page does not show."""
    pieces = [piece.strip() for cell in row for piece in cell.split("\n")]
    return [each for each in expected(entry) if each not in pieces]


def rows_of(page: Page, address: str, question: Question) -> list[list[str]]:
    """Open the page of a question; return the texts of its table's cells."""
    page.goto(
        f"{address}#model={question.model}&method={question.method}&length={question.length}"
        f"&batch={question.batch}&tokens={question.tokens}"
    )
    title = f"{question.model}, {question.batch} x {question.length:,} tokens"
    expect(page.locator("#title")).to_contain_text(title, timeout=PATIENCE_MS)
    rows: list[list[str]] = page.locator("#devices tbody tr").evaluate_all(ROWS)
    return rows


def planned(recipe: str, names: str, folder: Path) -> list[dict[str, Any]]:
    """Run `brimful plan` on a page's recipe; return what it says of each device."""
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    command = ["plan", str(folder / "recipe.yaml"), "--on", names, "--json"]
    program = "from brimful.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, check=False
    )
    found: list[dict[str, Any]] = json.loads(ended.stdout)["devices"]
    return found


def pages_of(scope: Scope, count: int, choice: random.Random) -> Iterator[Question]:
    """Yield questions at random."""
    every = [
        question
        for model in scope.models
        for method in scope.methods
        for question in scope.questions(model, method)
    ]
    yield from choice.sample(every, count)


def narrowed(scope: Scope, question: Question) -> Scope:
    """Return the scope of an atlas that answers one question."""
    return Scope(
        (question.model,),
        (question.method,),
        (question.length,),
        (question.batch,),
        (question.tokens,),
        scope.devices,
    )


def compared(
    scope: Scope, count: int, choice: random.Random, folder: Path, end_s: float
) -> dict[str, Any]:
    """Write atlases, and compare a page of each with a plan; none is begun after `end_s`."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    size_bytes, start_s = 0, time.process_time()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        page = browser.new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        for question in pages_of(scope, count, choice):
            if time.monotonic() > end_s:
                break
            site = folder / f"site-{len(rows)}"  # another address, so that the page loads anew
            written = write_atlas(site, narrowed(scope, question), lambda text: None)
            size_bytes = max(size_bytes, written.size_bytes)
            shown = rows_of(page, written.page.resolve().as_uri(), question)
            recipe = page.locator("#recipe pre").text_content() or ""
            entries = planned(recipe, ",".join(scope.devices), folder)
            other = [
                {"device": row[0].strip(), "row": row, "not_shown": missing}
                for row, entry in zip(shown, entries, strict=True)
                if (missing := differences(row, entry))
            ]
            numbers = sum(len(expected(entry)) for entry in entries)
            rows.append({**question._asdict(), "numbers": numbers, "different": other})
            print(f"{question}: {numbers} numbers, {len(other)} rows differ", flush=True)
        browser.close()
    return {
        "pages_drawn": count,
        "pages": len(rows),
        "devices": len(scope.devices),
        "numbers": sum(row["numbers"] for row in rows),
        "pages_that_differ": sum(bool(row["different"]) for row in rows),
        "console": errors,
        "cpu_s": round(time.process_time() - start_s, 1),
        "largest_site_bytes": size_bytes,
        "rows": rows,
    }


def main() -> None:
    """Compare, print, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60, help="no page is begun after these")
    options = parser.parse_args()
    end_s = time.monotonic() + 60 * options.minutes
    scope = Scope(MODELS, METHODS, LENGTHS, BATCHES, TOKENS, tuple(devices.names()))
    with tempfile.TemporaryDirectory() as folder:
        values = compared(scope, options.pages, random.Random(options.seed), Path(folder), end_s)
    print(write_record("atlas_pages", values))
    sys.exit(bool(values["pages_that_differ"] or values["console"]))


if __name__ == "__main__":
    main()
