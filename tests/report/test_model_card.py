"""A model card says what the report says, in Markdown, without places of this machine."""

from pathlib import Path

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from brimful.report.model_card import model_card, without_places
from brimful.runs.folder import read_run

RUNS = Path(__file__).resolve().parent.parent / "fixtures" / "old_runs" / "runs"
WHOLE = ["config.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["documents", "masked", "examples", "labels"])
def test_the_card_of_each_kind_of_run(name: str, snapshot: SnapshotAssertion) -> None:
    run = read_run(RUNS / f"{name}-finished")
    files = ["adapter_config.json"] if run.recipe.adapter else WHOLE
    card = model_card(run, "ada/stories", files)

    assert card == snapshot
    header = yaml.safe_load(card.split("---")[1])
    assert header["library_name"] == ("peft" if run.recipe.adapter else "transformers")
    assert "brimful" in header["tags"]


def test_the_code_of_a_card_is_python(tmp_path: Path) -> None:
    for folder in RUNS.glob("*-finished"):
        card = model_card(read_run(folder), "ada/stories", WHOLE)
        compile(card.split("```python\n")[1].split("```")[0], "card", "exec")


def test_a_gguf_file_is_used_with_llama_cpp() -> None:
    card = model_card(read_run(RUNS / "documents-finished"), "ada/stories", ["a-q8_0.gguf"])
    assert "llama-cli -hf ada/stories -hff a-q8_0.gguf" in card
    assert "library_name: gguf" in card


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("on /home/ada/data/tales.jsonl, on", "on tales.jsonl, on"),
        ("| Base | /srv/models/base |", "| Base | base |"),
        ("~/data/x.txt and `/a/b/c`", "x.txt and `c`"),
        (
            "https://hub.example/a/b stays, ada/stories too",
            "https://hub.example/a/b stays, ada/stories too",
        ),
        ("3 tokens/s and 1/2", "3 tokens/s and 1/2"),
    ],
)
def test_places_of_this_machine_are_left_out(text: str, kept: str) -> None:
    assert without_places(text) == kept
