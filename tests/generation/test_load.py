"""A run folder gives back its model, or says clearly why it cannot."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, PreTrainedModel

from brimful.base.errors import RunFolderError
from brimful.generation.engine import generate
from brimful.generation.load import load_run, resolve_run
from brimful.generation.sampler import GREEDY

MakeRun = Callable[..., Path]
CPU = torch.device("cpu")


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_run_loads_as_the_model_tokenizer_and_recipe_that_were_saved(make_run: MakeRun, tiny_llama: PreTrainedModel) -> None:
    loaded = load_run(make_run(), CPU, torch.float32)
    ids_BT = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(loaded.model(ids_BT).logits, tiny_llama(ids_BT).logits)
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation == "sdpa"
    assert (loaded.context, loaded.end_of_text_id, loaded.recipe.name) == (32, 0, "tiny")
    text = "the cat, naïvely"
    assert loaded.tokenizer.decode(loaded.encode(text)) == text


def test_a_run_loads_in_the_dtype_asked_for(make_run: MakeRun) -> None:
    loaded = load_run(make_run(), CPU, torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    rows = generate(loaded.model, [loaded.prompt_ids("the ")], GREEDY, max_new_tokens=3, stop_ids=frozenset(), seeds=[0])
    assert len(rows[0].token_ids) == 3


def test_a_prompt_that_spells_end_of_text_is_text(make_run: MakeRun) -> None:
    loaded = load_run(make_run(), CPU, torch.float32)
    ids = loaded.prompt_ids("a<|endoftext|>b")
    assert loaded.end_of_text_id not in ids
    assert loaded.tokenizer.decode(ids) == "a<|endoftext|>b"


def test_an_empty_prompt_starts_with_end_of_text(make_run: MakeRun) -> None:
    loaded = load_run(make_run(), CPU, torch.float32)
    assert loaded.prompt_ids("") == [loaded.end_of_text_id]
    assert loaded.prompt_ids("the") == loaded.encode("the")


def test_prompts_start_with_end_of_text_where_training_sequences_did(make_run: MakeRun) -> None:
    folder = make_run()
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(recipe.replace('"builtin:python-docs"', '"builtin:python-docs", layout: document'))
    loaded = load_run(folder, CPU, torch.float32)
    assert loaded.prompt_ids("the") == [loaded.end_of_text_id, *loaded.encode("the")]


def test_an_unfinished_run_says_how_far_it_is_and_how_to_go_on(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "model").rename(folder / "elsewhere")
    records = [{"kind": "start", "step": 0, "total_steps": 500}, {"kind": "step", "step": 120, "loss": 3.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(RunFolderError, match=r"no model yet \(training reached step 120 of 500\).*same `brimful train` command"):
        load_run(folder, CPU, torch.float32)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"not a run folder.*recipe\.yaml"):
        load_run(tmp_path, CPU, torch.float32)


def test_missing_weights_are_never_replaced_by_random_ones(make_run: MakeRun) -> None:
    folder = make_run()
    edit_weights(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(RunFolderError, match=r"missing: model\.norm\.weight"):
        load_run(folder, CPU, torch.float32)


def test_weights_of_another_shape_are_refused(make_run: MakeRun) -> None:
    folder = make_run()
    edit_json(folder / "model" / "config.json", intermediate_size=96)
    with pytest.raises(RunFolderError, match="cannot be loaded"):
        load_run(folder, CPU, torch.float32)


def test_a_truncated_weights_file_is_refused(make_run: MakeRun) -> None:
    folder = make_run()
    path = folder / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RunFolderError, match="cannot be loaded"):
        load_run(folder, CPU, torch.float32)


def test_pickled_weights_are_never_read(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "model" / "model.safetensors").rename(folder / "model" / "pytorch_model.bin")
    with pytest.raises(RunFolderError, match="cannot be loaded"):
        load_run(folder, CPU, torch.float32)


def test_code_in_the_model_folder_is_never_run(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    (folder / "model" / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    edit_json(folder / "model" / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    with pytest.raises(RunFolderError, match="cannot be loaded"):
        load_run(folder, CPU, torch.float32)
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(make_run: MakeRun) -> None:
    folder = make_run()
    more = AutoTokenizer.from_pretrained(folder / "model")
    more.add_tokens([f"<|extra{number}|>" for number in range(301 - len(more))])
    more.save_pretrained(folder / "model")
    with pytest.raises(RunFolderError, match="301 tokens, the model only 300"):
        load_run(folder, CPU, torch.float32)


def test_a_run_is_found_by_its_name_or_its_path(make_run: MakeRun) -> None:
    folder = make_run("first")
    assert resolve_run("first", folder.parent) == folder
    assert resolve_run(str(folder), folder.parent / "elsewhere") == folder


def test_a_mistyped_name_is_answered_with_the_nearest_run(make_run: MakeRun) -> None:
    make_run("quickstart")
    runs = make_run("shakespeare").parent
    with pytest.raises(RunFolderError, match=r"did you mean 'quickstart'.*Runs there: quickstart, shakespeare"):
        resolve_run("quikstart", runs)


def test_a_missing_runs_folder_says_how_to_make_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no runs there yet"):
        resolve_run("quickstart", tmp_path / "runs")


def test_a_folder_without_a_recipe_is_not_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "notes").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        resolve_run("notes", tmp_path / "runs")
