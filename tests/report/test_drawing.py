"""A drawing is one picture for every use: themable SVG on a page, PNG and SVG files that are
readable alone.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from matplotlib.figure import Figure
from PIL import Image

from brimful.report import drawing as drawing_module
from brimful.report.drawing import AXIS, SERIES, TRAIN, VARIABLES, Drawing, tick


def draw(figure: Figure) -> None:
    axes = figure.add_subplot()
    axes.plot([0, 1], [2, 3], color=TRAIN)
    axes.set_xlabel("<steps>", color=AXIS)


def test_on_a_page_colours_are_variables_that_fall_back_to_the_light_theme() -> None:
    svg = Drawing("line", "A line", "A line from <2> to 3", (300, 200), draw).wide
    assert f"var(--train, {TRAIN})" in svg
    assert 'aria-label="A line from &lt;2&gt; to 3"' in svg
    assert "&lt;steps&gt;" in svg


def test_a_phone_has_its_own_shape_and_ids() -> None:
    drawing = Drawing("line", "A line", "", (300, 200), draw, (100, 200))
    assert 'viewBox="0 0 300 200"' in drawing.wide
    assert 'viewBox="0 0 100 200"' in drawing.narrow
    assert 'id="line-wide-' in drawing.wide
    assert 'id="line-narrow-' in drawing.narrow


def test_files_are_light_titled_and_need_no_font(tmp_path: Path) -> None:
    drawing = Drawing("line", "A line", "", (300, 200), draw, legend=((SERIES[0], "a part"),))
    png, svg = drawing.save(tmp_path)
    assert [png.name, svg.name] == ["line.png", "line.svg"]
    with Image.open(png) as image:
        assert image.getpixel((0, 0))[:3] == (255, 255, 255)  # type: ignore[index]
        assert image.width > 800
    root = Xml.parse(svg).getroot()  # noqa: S314 - drawn here
    assert root.tag.endswith("svg")
    assert "var(" not in svg.read_text(encoding="utf-8")
    assert not [element for element in root.iter() if element.tag.endswith("}text")]


def draw_far_letters(figure: Figure) -> None:
    figure.add_subplot().barh(
        ["\N{CJK UNIFIED IDEOGRAPH-4E2D}", "\N{GRINNING FACE}", "plain"], [1, 2, 3]
    )


def test_letters_that_no_font_has_stay_text_and_are_not_warned_of(tmp_path: Path) -> None:
    drawing = Drawing(
        "far", "\N{CJK UNIFIED IDEOGRAPH-4E2D} & <b>", "", (300, 200), draw_far_letters
    )
    assert "\N{CJK UNIFIED IDEOGRAPH-4E2D}" in drawing.wide
    _, svg = drawing.save(tmp_path)
    root = Xml.parse(svg).getroot()  # noqa: S314 - drawn here
    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert {"\N{CJK UNIFIED IDEOGRAPH-4E2D}", "\N{GRINNING FACE}"} <= set(texts) or not texts, (
        "text, or outlines by a font that is installed"
    )


def test_an_installed_font_draws_what_dejavu_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing_module, "FALLBACKS", ("No Such Font", "cmsy10"))
    for kept in (drawing_module._fallbacks, drawing_module._letters):
        kept.cache_clear()
        monkeypatch.setattr(drawing_module, kept.__name__, functools.cache(kept.__wrapped__))
    assert drawing_module._fallbacks() == ("cmsy10",)
    svg = Drawing("line", "A line", "A line from <2> to 3", (300, 200), draw).wide
    assert "cmsy10" not in svg
    assert "var(--font, sans-serif)" in svg


def test_drawings_of_several_threads_are_those_of_one() -> None:
    drawings = [Drawing(f"line-{number}", "A line", "", (300, 200), draw) for number in range(6)]
    alone = [drawing.wide for drawing in drawings]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda drawing: drawing.wide, drawings * 2)) == alone * 2


def test_every_colour_has_a_variable_of_its_own() -> None:
    assert len(set(VARIABLES.values())) == len(VARIABLES)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12_000, "12k"), (0.25, "0.25"), (0.0004, "4e-04")]
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert tick(value) == text
