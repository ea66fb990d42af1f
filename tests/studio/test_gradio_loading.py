"""Gradio as the page loads it: its components' sources are not parsed, and nothing else differs."""

import inspect
from pathlib import Path

import gradio
import pytest
from gradio import component_meta

from brimful.studio import gradio_loading


def test_while_gradio_is_loaded_it_makes_no_stubs_of_its_components(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, parsed = inspect.getfile, list[str]()
    monkeypatch.setattr(component_meta, "extract_class_source_code", _noted(parsed))

    def define_components(_: str) -> None:
        component_meta.create_or_modify_pyi(gradio.Textbox, "Textbox", [])
        assert inspect.getfile(Path).endswith("pathlib.py")

    monkeypatch.setattr("importlib.import_module", define_components)
    gradio_loading.load_gradio()

    assert parsed == []
    assert inspect.getfile is before
    assert inspect.getfile(gradio.Textbox).endswith("textbox.py")


def _noted(parsed: list[str]) -> object:
    def note(code: str, class_name: str) -> tuple[None, None]:
        parsed.append(class_name)
        return None, None

    return note
