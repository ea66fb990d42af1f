"""Charts, bars and matrices as files: titled, light, and readable without any font."""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from PIL import Image

from brimful.report import drawing as drawing_module
from brimful.report.bars import Bar, Bars, parts
from brimful.report.chart import Chart, Mark, Matrix, Rule, Series, series_of
from brimful.report.drawing import Shown, save, tick

PARTS = tuple(parts([("Compute", 9.0), ("Idle", 1.0)], "time_s"))
FAR_LETTERS = ("\N{CJK UNIFIED IDEOGRAPH-4E2D}", "\N{GRINNING FACE}", "plain $\\frac")
LINE = series_of("a <line>", [0, 1, 2], [2, 3, 4], look="dotted")
SHOWN: list[Shown] = [
    Chart(
        "line",
        "A line",
        "",
        "optimizer step",
        (
            LINE,
            Series("", (0.0, 1.0), (2.5, None), "points", "training", intervals=((2.0, 3.0), None)),
            Series("", (0.0, 1.0, 2.0), (3.0, 1.0), "steps", place=20),
        ),
        "MiB",
        (Rule(2.0, "base"),),
        (Rule(1.0, "chosen", "kept"),),
        (Mark(1.0, 3.0, "best"),),
        band=(2.0, 3.0),
        x_range=(0.0, 2.0),
        y_range=(0.0, None),
        is_main=True,
        stack=PARTS,
    ),
    Chart("counts", "Counts", "", "p", (LINE,), x_names=("a", "b", "c"), is_log=True),
    Bars("time", "Time", (Bar("predicted", PARTS, "10 s"), Bar("measured", PARTS, "10 s"))),
    Matrix("matrix", "Matrix", "", "true", "given", ("a", "b"), ((3, 1), (0, 2))),
]


def texts(path: Path) -> set[str | None]:
    root = Xml.parse(path).getroot()  # noqa: S314 - drawn here
    return {element.text for element in root.iter() if element.tag.endswith("}text")}


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.key)
def test_files_are_light_titled_and_need_no_font(shown: Shown, tmp_path: Path) -> None:
    png, svg = save(shown, tmp_path)
    assert [png.name, svg.name] == [f"{shown.key}.png", f"{shown.key}.svg"]
    with Image.open(png) as image:
        assert image.getpixel((0, 0))[:3] == (255, 255, 255)  # type: ignore[index]
        assert image.width > 800
    assert not texts(svg)


def test_letters_that_no_font_has_stay_text_and_are_not_warned_of(tmp_path: Path) -> None:
    _, svg = save(Chart("far", "Far", "", "x", (LINE,), x_names=FAR_LETTERS), tmp_path)
    assert set(FAR_LETTERS) <= texts(svg) or not texts(svg), "text, or outlines by a font"


def test_an_installed_font_draws_what_dejavu_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing_module, "FALLBACKS", ("No Such Font", "cmsy10"))
    monkeypatch.setattr(
        drawing_module, "_fallbacks", functools.cache(drawing_module._fallbacks.__wrapped__)
    )
    assert drawing_module._fallbacks() == ("cmsy10",)


def test_files_of_several_threads_are_those_of_one(tmp_path: Path) -> None:
    def drawn(folder: str) -> bytes:
        (tmp_path / folder).mkdir()
        return save(SHOWN[0], tmp_path / folder)[1].read_bytes()

    alone = drawn("alone")
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(drawn, "abcd")) == {alone}


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12_000, "12k"), (0.25, "0.25"), (0.0004, "4e-04")]
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert tick(value) == text
