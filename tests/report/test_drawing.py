"""A drawing is one picture for every use: themable SVG on a page, PNG and SVG files that are readable alone."""

from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from matplotlib.figure import Figure
from PIL import Image

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


def test_every_colour_has_a_variable_of_its_own() -> None:
    assert len(set(VARIABLES.values())) == len(VARIABLES)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (12_000, "12k"), (0.25, "0.25"), (0.0004, "4e-04")])
def test_ticks_are_short(value: float, text: str) -> None:
    assert tick(value) == text
