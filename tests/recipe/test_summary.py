"""What a recipe trains, in a few words."""

import pytest

from brimful.recipe import load
from brimful.recipe.summary import summary_of


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("quickstart",), "a fresh llama model (4 layers, 192 wide), 8 x 256 tokens a step"),
        (("quickstart", "model.layers=2", "batch.sequences=3"), "2 layers, 192 wide), 3 x 256"),
        (("code-lora", "adapter.rank=4"), "LoRA of rank 4 on google/gemma-2-2b, 16 x 768 tokens"),
        (("code-qlora",), "QLoRA of rank 16 on"),
        (("code-full",), "full fine-tuning of google/gemma-2-2b"),
        (("moderation",), "classifier on vinai/phobert-base"),
        (("tiny-gpt", "model=gpt2", "tokenizer=null"), "continued pre-training of gpt2"),
    ],
)
def test_it_says_what_is_trained_with_the_changes(changes: tuple[str, ...], said: str) -> None:
    name, *overrides = changes
    assert said in summary_of(load(name, overrides))
