"""Scores and examples of a run: `brimful.notebook.answers` prints them as JSON, and the notebook
reads and shows them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnsweredPrompt:
    """A prompt with one or more answers, each with its title, such as `before tuning`."""

    prompt: str
    texts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ExampleGroup:
    """Examples of one kind."""

    title: str
    examples: tuple[AnsweredPrompt, ...]


@dataclass(frozen=True)
class ScoresAndExamples:
    """The scores in words, and groups of examples."""

    lines: tuple[str, ...]
    groups: tuple[ExampleGroup, ...]
