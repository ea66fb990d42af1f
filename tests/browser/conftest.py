"""A headless Chromium for pages of brimful: opened at any width, in light and dark, and held to
have no errors and to ask nobody else for anything.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from brimful.base.env import runs_folder

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 120_000
"""How long a page may take to show what is expected: other programs use the machine, too."""
expect.set_options(timeout=PATIENCE_MS)
SIZES = {"desktop": (1280, 900), "phone": (360, 740)}
"""Of windows, in CSS pixels."""
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
RUNS = runs_folder().resolve()
"""As the shell has it: tests have runs folders of their own."""
OWN_HOSTS = ("", "127.0.0.1", "localhost")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pictures",
        action="store_true",
        help="write the screenshots to docs/pictures instead of a temporary folder",
    )
    parser.addoption(
        "--picture-run",
        type=Path,
        help=(
            "the finished run whose report the pictures show (default: quickstart in the runs"
            " folder)"
        ),
    )


@dataclass
class Opened:
    """A page, and what went wrong or out while it was open."""

    page: Page
    errors: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def check(self) -> None:
        """No error in the console, no request to another host."""
        assert self.errors == []
        assert self.strangers == []

    def overflow_px(self) -> int:
        """How far the page is wider than its window."""
        found: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return found


Open = Callable[..., Opened]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a process."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is installed")
    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox; a small /dev/shm ends tabs.
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """`open_page(path or address, "phone", dark=True, ...)`; other arguments are those of
    playwright's new_context. Checked when the test ends.
    """
    opened: list[Opened] = []

    def make(
        address: Path | str, size: str = "desktop", *, dark: bool = False, **options: Any
    ) -> Opened:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            **options,
        )
        context.set_default_timeout(PATIENCE_MS)
        found = Opened(context.new_page())
        found.page.on(
            "console",
            lambda message: (
                found.errors.append(message.text) if message.type in {"error", "warning"} else None
            ),
        )
        found.page.on("pageerror", lambda error: found.errors.append(str(error)))
        found.page.on(
            "request",
            lambda request: (
                found.strangers.append(request.url) if _host(request.url) not in OWN_HOSTS else None
            ),
        )
        opened.append(found)
        found.page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        return found

    yield make
    for each in opened:
        each.page.context.close()
    for each in opened:
        each.check()


def _host(address: str) -> str:
    return urlsplit(address).hostname or ""


@pytest.fixture
def picture_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where screenshots go: docs/pictures where `--pictures` is given, else a temporary folder."""
    folder = (
        PICTURES if request.config.getoption("pictures", default=False) else tmp_path / "pictures"
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def picture_run(request: pytest.FixtureRequest) -> Path | None:
    """The finished run that pictures show: of `--picture-run`, else quickstart; None where pictures
    are not kept.
    """
    if not request.config.getoption("pictures", default=False):
        return None
    folder: Path = request.config.getoption("picture_run") or RUNS / "quickstart"
    return folder
