"""What one process prints the notebook reads as it was."""

import json
from dataclasses import asdict

from brimful.notebook.example_groups import AnsweredPrompt, ExampleGroup, ScoresAndExamples
from brimful.runs.parsing import parse


def test_printed_and_read_again_it_is_the_same() -> None:
    prompts = (AnsweredPrompt("?", (("before", "no"), ("after", "yes"))), AnsweredPrompt("!", ()))
    shown = ScoresAndExamples(("loss 1.5",), (ExampleGroup("Answers", prompts),))

    assert parse(ScoresAndExamples, json.loads(json.dumps(asdict(shown)))) == shown
