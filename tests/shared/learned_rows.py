"""Rows of small files, as they are learned."""

import json

from brimful.data.formats import examples_of
from brimful.data.sources import open_rows
from brimful.recipe import DataRecipe

PAIRS = [{"prompt": f"q{number}", "completion": f"ä, {number}"} for number in range(4)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in PAIRS).encode()


def learned(data: DataRecipe) -> dict[str, list[tuple[object, str]]]:
    """Prompts and completions of each split."""
    return {
        split: [(example.prompt, example.completion) for example in examples_of(rows, data)]
        for split, rows in open_rows(data).parts[0].splits.items()
    }
