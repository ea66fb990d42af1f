"""Files of other people, changed at random: read, or refused with one error of ours."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRun
from safetensors.numpy import save
from tokenizers import Tokenizer, models

from brimful.base.errors import BrimfulError
from brimful.base.types import JsonDict
from brimful.chains.base_model import what_is_left_out
from brimful.model.catalog import config_of_model
from brimful.model.gguf_file import read_gguf
from brimful.model.published import refuse_unsafe_files
from brimful.model.tokenizer import load_tokenizer
from brimful.recipe.adapter_folder import base_and_section

CHANGES = 60
DEEP = json.loads("[" * 90 + "]" * 90)
HOSTILE: tuple[Any, ...] = (None, True, -1, 0, 1e300, 10**400, float("nan"), "", "x", [], [[1]], {})
GGUF_VALUES: tuple[Any, ...] = (0, 3, float("nan"), float("inf"), "x", True, [1, 2])
OBJECTS: dict[str, JsonDict] = {
    "config.json": {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 300,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "torch_dtype": "float32",
    },
    "adapter_config.json": {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "hub/some-model",
        "r": 4,
        "lora_alpha": 12,
        "lora_dropout": 0.05,
        "target_modules": ["v_proj", "q_proj"],
        "rank_pattern": {},
    },
    "trainer_state.json": {"global_step": 500, "log_history": [{"loss": 1.0}]},
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "model_max_length": 64,
        "chat_template": "{{ messages }}",
        "added_tokens_decoder": {"0": {"content": "</s>", "special": True}},
    },
    "tokenizer.json": json.loads(
        Tokenizer(models.BPE({"</s>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")])).to_str()
    ),
    "model.safetensors.index.json": {"weight_map": {"a": "model-1.safetensors"}, "metadata": {}},
}
READERS: dict[str, Callable[[Path], object]] = {
    "config.json": lambda folder: config_of_model(str(folder)),
    "adapter_config.json": base_and_section,
    "trainer_state.json": what_is_left_out,
    "tokenizer_config.json": lambda folder: load_tokenizer(folder)("ab"),
    "tokenizer.json": lambda folder: load_tokenizer(folder)("ab"),
    "model.safetensors.index.json": refuse_unsafe_files,
}


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Bytes with some replaced, cut off, or put in."""
    place = rng.randrange(len(content))
    put_in = rng.choice((b"", b"\0", b"\xff" * 8, b"[" * 100_000, rng.randbytes(4)))
    return content[:place] + put_in + content[place + rng.choice((0, 1, len(put_in), 1 << 20)) :]


def changed_object(values: JsonDict, rng: random.Random) -> bytes:
    """An object with one value replaced by one that is hostile there."""
    key = rng.choice([*values, "a_key_of_nobody"])
    return json.dumps(values | {key: rng.choice((*HOSTILE, DEEP))}).encode()


def variants(name: str) -> Iterator[bytes]:
    values, rng = OBJECTS[name], random.Random(name)
    for number in range(CHANGES):
        whole = json.dumps(values).encode()
        yield changed_bytes(whole, rng) if number % 2 else changed_object(values, rng)


def crash_of(read: Callable[[], object]) -> str:
    """What else than an error of ours is raised, for the test to name."""
    try:
        read()
    except BrimfulError as error:
        return "" if "\n" not in str(error).strip() or len(str(error)) < 2000 else "long"
    except Exception as error:  # what must not happen
        return repr(error)[:200]
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OBJECTS)
def test_a_changed_json_file_is_read_or_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(save({}))
    for beside in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / beside).write_text(json.dumps(OBJECTS[beside]), encoding="utf-8")
    crashes = []
    for content in variants(name):
        (tmp_path / name).write_bytes(content)
        if crash := crash_of(lambda: READERS[name](tmp_path)):
            crashes.append((content[:200], crash))
    assert crashes == []


@pytest.mark.filterwarnings("ignore")
def test_a_changed_gguf_file_is_read_or_refused(write_gguf: MakeRun) -> None:
    whole, rng, crashes = write_gguf().read_bytes(), random.Random(0), []
    header = whole.index(b"token_embd.weight") + 200
    for _ in range(CHANGES):
        path = write_gguf()
        path.write_bytes(changed_bytes(whole[:header], rng) + whole[header:])
        crashes.append(crash_of(lambda path=path: config_of_model(str(path))))  # type: ignore[misc]
    for key in (
        "general.alignment",
        "general.architecture",
        "llama.block_count",
        "llama.embedding_length",
        "llama.attention.head_count",
        "llama.rope.freq_base",
        "tokenizer.ggml.tokens",
    ):
        for value in GGUF_VALUES:
            path = write_gguf(**{key.replace(".", "__"): value})
            crash = crash_of(lambda path=path: config_of_model(str(path)))  # type: ignore[misc]
            crashes.append(crash and f"{key} {value}: {crash}")
    assert [crash for crash in crashes if crash] == []
    with pytest.raises(BrimfulError, match="alignment"):
        read_gguf(write_gguf(general__alignment=0))
