"""A published Llama becomes one with kernel attention: its weights stay, and it trains like any
other model in a folder.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fixture_types import Refuses
from safetensors.torch import load_file
from syrupy.assertion import SnapshotAssertion
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from brimful.base.env import runs_folder
from brimful.base.errors import BrimfulError, PlanError, RequestError
from brimful.chains.serving import model_for_vllm
from brimful.model.description import is_own_architecture
from brimful.model.obtained import folder_of_model
from brimful.model.okadfa.conversion import KernelSettings, convert_to_kernel

Said = Callable[..., tuple[int, str, str]]

GgufWriter = Callable[..., Path]


def test_every_weight_stays_and_the_folder_is_a_whole_model(
    tmp_path: Path, write_gguf: GgufWriter, snapshot: SnapshotAssertion
) -> None:
    said: list[str] = []
    source, to = str(write_gguf()), tmp_path / "kernel"

    convert_to_kernel(source, to, KernelSettings(features=32, seed=7), said.append)

    config = json.loads((to / "config.json").read_text())
    assert (config["model_type"], config["num_features"], config["feature_seed"]) == (
        "kernel_llama",
        32,
        7,
    )
    assert is_own_architecture(str(to))
    assert said[-1] == snapshot
    assert (to / "tokenizer.json").is_file()
    read = AutoModelForCausalLM.from_pretrained(to)
    weights = read.state_dict()
    for name, tensor in load_file(folder_of_model(source) / "model.safetensors").items():
        assert torch.equal(weights[name], tensor), name
    temperatures = [value for name, value in weights.items() if name.endswith("log_temperature_G")]
    assert len(temperatures) == 2
    assert all(torch.allclose(value.exp(), torch.tensor(2.0)) for value in temperatures)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (KernelSettings(temperature=0), RequestError),
        (KernelSettings(features=0), RequestError),
        (None, RequestError),
    ],
)
def test_what_cannot_be_converted_leaves_nothing(
    tmp_path: Path,
    write_gguf: GgufWriter,
    settings: KernelSettings | None,
    kind: type[BrimfulError],
    refuses: Refuses,
) -> None:
    to = tmp_path / "kernel"
    if settings is None:
        to.mkdir()
    with refuses(kind):
        convert_to_kernel(str(write_gguf()), to, settings or KernelSettings(), print)
    assert not to.exists() or not list(to.iterdir())


def test_other_architectures_are_refused_by_name(tmp_path: Path, refuses: Refuses) -> None:
    folder = tmp_path / "gpt2"
    GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=50)).save_pretrained(
        folder
    )
    with refuses(PlanError, names=["gpt2"]):
        convert_to_kernel(str(folder), tmp_path / "kernel", KernelSettings(), print)


def test_one_command_converts_and_others_train_write_and_export(
    tmp_path: Path,
    write_gguf: GgufWriter,
    recipe_file: Path,
    said: Said,
    refuses: Refuses,
) -> None:
    to = tmp_path / "kernel"
    code, out, _ = said("models", "convert", str(write_gguf()), str(to), "--features", "16")
    assert (code, f"Train it: model={to}" in out) == (0, True)
    rows = tmp_path / "rows.jsonl"
    texts = recipe_file.with_name("corpus.txt").read_text().split("# ")[1:]
    rows.write_text("".join(json.dumps({"text": text[:90]}) + "\n" for text in texts))
    changes = (f"model={to}", "tokenizer=null", "method=sft", f"data={{path: {rows}}}")
    changes += ("sequence_length=128", "run.name=converted")

    assert said("train", str(recipe_file), *changes)[0] == 0
    assert said("generate", "converted", "--prompt", "the", "--tokens", "5")[0] == 0
    _, out, _ = said("export", "converted", "--to", str(tmp_path / "export"))
    assert "transformers reads it after `from brimful.model.registered" in out
    with refuses(RequestError):
        model_for_vllm(runs_folder() / "converted", print)
    code, _, err = said("models", "convert", str(to), str(tmp_path / "again"))
    assert (code, "is of the architecture kernel_llama" in err) == (2, True)
