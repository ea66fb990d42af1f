"""Models of a published shape with random weights, and a tokenizer, made once."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from brimful.prove.bases import TooLarge, random_base


def test_a_model_of_a_shape_loads_in_transformers(base_model: Path, tmp_path: Path) -> None:
    made = random_base(str(base_model), tmp_path / "bases")

    model: Any = AutoModelForCausalLM.from_pretrained(made)
    shape = json.loads((base_model / "config.json").read_text())
    assert model.config.hidden_size == shape["hidden_size"]
    assert 0 < float(model.lm_head.weight.detach().float().std()) < 0.1
    tokenizer: Any = AutoTokenizer.from_pretrained(made)
    assert tokenizer.decode(tokenizer.encode("red twice")) == "red twice"
    assert max(tokenizer.encode("The library's reference")) < shape["vocab_size"]


def test_a_model_that_is_there_is_not_made_again(base_model: Path, tmp_path: Path) -> None:
    (tmp_path / "bases" / "base").mkdir(parents=True)

    assert random_base(str(base_model), tmp_path / "bases") == tmp_path / "bases" / "base"


def test_a_model_without_room_says_how_much_it_needs(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)

    with pytest.raises(TooLarge, match=r"of memory, 1000 B are free"):
        random_base(str(base_model), tmp_path / "bases")
