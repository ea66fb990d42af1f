"""Gradio is loaded before any test imports it, as `brimful studio` does."""

from brimful.studio.gradio_loading import load_gradio

load_gradio()
