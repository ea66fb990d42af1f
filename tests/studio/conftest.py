"""Gradio is silenced before any test imports it, as `brimful studio` does."""

from brimful.base.env import silence_gradio

silence_gradio()
