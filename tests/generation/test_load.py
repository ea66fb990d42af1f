"""A run folder gives back its model, or says clearly why it cannot."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from fixture_types import MakeRun, Refuses
from json_lines import write_rows
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, PreTrainedModel

from brimful.base.errors import DataError, PlanError, RequestError, RunFolderError
from brimful.data.formats import Message
from brimful.generation.engine import generate
from brimful.generation.load import (
    LoadedRun,
    base_of,
    load_base,
    load_run,
    load_unquantised,
    load_untuned,
)
from brimful.generation.sampler import GREEDY
from brimful.model.published import without_adapters
from brimful.recipe import AdapterRecipe

CPU = torch.device("cpu")


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_run_loads_as_the_model_tokenizer_and_recipe_that_were_saved(
    make_run: MakeRun, tiny_llama: PreTrainedModel
) -> None:
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
    rows = generate(
        loaded.model,
        [loaded.prompt_ids("the ")],
        GREEDY,
        max_new_tokens=3,
        stop_ids=frozenset(),
        seeds=[0],
    )
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
    (folder / "recipe.yaml").write_text(
        recipe.replace('"builtin:python-docs"', '"builtin:python-docs", layout: document')
    )
    loaded = load_run(folder, CPU, torch.float32)
    assert loaded.prompt_ids("the") == [loaded.end_of_text_id, *loaded.encode("the")]


def test_an_unfinished_run_says_how_far_it_is_and_how_to_go_on(
    make_run: MakeRun, refuses: Refuses
) -> None:
    folder = make_run()
    (folder / "model").rename(folder / "elsewhere")
    records = [
        {"kind": "start", "step": 0, "total_steps": 500},
        {"kind": "step", "step": 120, "loss": 3.0},
    ]
    write_rows(folder / "metrics.jsonl", records)
    with refuses(RunFolderError, names=["120 of 500", "brimful train"]):
        load_run(folder, CPU, torch.float32)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError, names=["recipe.yaml"]):
        load_run(tmp_path, CPU, torch.float32)


def test_missing_weights_are_never_replaced_by_random_ones(
    make_run: MakeRun, refuses: Refuses
) -> None:
    folder = make_run()
    edit_weights(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with refuses(RunFolderError, names=["model.norm.weight"]):
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
    edit_json(
        folder / "model" / "config.json",
        model_type="own",
        auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    )
    with pytest.raises(RunFolderError, match="cannot be loaded"):
        load_run(folder, CPU, torch.float32)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["make_run", "make_tuned"])
def test_a_run_whose_tokenizer_is_longer_than_the_embedding_is_used_as_it_is(
    request: pytest.FixtureRequest, kind: str, refuses: Refuses
) -> None:
    """A prompt that needs the token without a row is refused."""
    folder = request.getfixturevalue(kind)()
    before = load_run(folder, CPU, torch.float32)
    longer = AutoTokenizer.from_pretrained(folder / "model")
    longer.add_tokens([f"<|extra{number}|>" for number in range(len(longer), 301)])
    longer.save_pretrained(folder / "model")

    loaded = load_run(folder, CPU, torch.float32)

    assert len(loaded.tokenizer) == 301 > loaded.model.config.vocab_size == 300
    assert loaded.prompt_ids("the cat") == before.prompt_ids("the cat")
    known, unknown = loaded.prompt_ids("the cat"), loaded.prompt_ids("the <|extra300|>")
    for prompt_ids, expected in (
        (known, nullcontext()),
        (unknown, refuses(RequestError, names=["token id 300"])),
    ):
        with expected:
            generate(
                loaded.model,
                [prompt_ids],
                GREEDY,
                max_new_tokens=4,
                stop_ids=loaded.stop_ids,
                seeds=[0],
            )


# --- tuned runs


def tuned(make_tuned: MakeRun, *arguments: object, **options: object) -> LoadedRun:
    return load_run(make_tuned(*arguments, **options), CPU, torch.float32)


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.arange(1, 30)[None]).logits
    return logits


def test_a_tuned_run_is_its_base_with_its_adapters(make_tuned: MakeRun) -> None:
    folder = make_tuned()
    loaded, untuned = load_run(folder, CPU, torch.float32), load_untuned(folder, CPU)
    after = logits_of(loaded.model)
    assert not torch.equal(after, logits_of(untuned.model))
    with without_adapters(loaded.model):
        assert torch.equal(logits_of(loaded.model), logits_of(untuned.model))
    assert not loaded.model.training
    assert torch.equal(logits_of(load_unquantised(folder, CPU).model), after)


def test_a_fully_tuned_run_is_its_own_weights(make_tuned: MakeRun) -> None:
    folder = make_tuned(None)
    assert not torch.equal(
        logits_of(load_run(folder, CPU, torch.float32).model),
        logits_of(load_untuned(folder, CPU).model),
    )
    assert load_run(folder, CPU, torch.bfloat16).model.dtype == torch.bfloat16


def test_adapters_of_a_4_bit_base_load_on_one_and_on_the_unquantised_one(
    make_tuned: MakeRun,
) -> None:
    folder = make_tuned(quantize="nf4")
    quantized, whole = (
        load_run(folder, CPU, torch.float32).model,
        load_unquantised(folder, CPU).model,
    )
    assert (
        quantized.get_submodule("model.layers.0.mlp.up_proj.base_layer").weight.dtype == torch.uint8
    )
    assert {parameter.dtype for parameter in whole.parameters()} == {torch.float32}


def test_text_for_a_run_on_messages_is_one_message_under_the_template(make_tuned: MakeRun) -> None:
    loaded = tuned(make_tuned)
    text = "### Instruction:\nthe cat\n\n### Response:\n"
    assert (
        loaded.prompt_ids("the cat")
        == loaded.prompt_ids((Message("user", "the cat"),))
        == loaded.encode(text)
    )
    assert loaded.takes_messages


def test_text_for_a_run_on_text_stands_as_it_is(make_tuned: MakeRun) -> None:
    loaded = tuned(make_tuned, prompts="text")
    assert loaded.prompt_ids("the cat") == loaded.encode("the cat")
    assert loaded.prompt_ids("") == [loaded.end_of_text_id]


def test_every_stop_token_of_recipe_tokenizer_and_base_ends_an_answer(
    make_tuned: MakeRun, base_folder: Path
) -> None:
    edit_json(base_folder / "generation_config.json", eos_token_id=[5, 9])
    loaded = tuned(make_tuned, more='sample: {stop: ["a"]}\n')
    stop = loaded.tokenizer.convert_tokens_to_ids("a")
    assert loaded.stop_ids == {loaded.end_of_text_id, 5, 9, stop}

    for token in (9, stop):
        loaded.model.get_output_embeddings().bias = torch.nn.Parameter(
            10_000.0 * torch.nn.functional.one_hot(torch.tensor(token), 300)
        )
        rows = generate(
            loaded.model,
            [loaded.prompt_ids("the")],
            GREEDY,
            max_new_tokens=5,
            stop_ids=loaded.stop_ids,
            seeds=[0],
        )
        assert (rows[0].token_ids, rows[0].finish) == ([], "end_of_text")


def test_a_chat_template_makes_the_prompt_and_its_end_of_turn_ends_the_answer(
    make_tuned: MakeRun,
) -> None:
    folder = make_tuned()
    chat = AutoTokenizer.from_pretrained(folder / "model")
    chat.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|end|>"]})
    chat.chat_template = (
        "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{%"
        " endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    )
    chat.save_pretrained(folder / "model")
    loaded = load_run(folder, CPU, torch.float32)

    start, end = loaded.tokenizer.convert_tokens_to_ids(["<|start|>", "<|end|>"])
    spelled = loaded.prompt_ids("the cat")
    assert loaded.tokenizer.decode(spelled) == "<|start|>user\nthe cat<|end|>\n<|start|>assistant\n"
    assert spelled.count(start) == 2
    assert loaded.stop_ids == {loaded.end_of_text_id, end}


def test_a_stop_token_that_is_none_is_told(make_tuned: MakeRun, refuses: Refuses) -> None:
    with refuses(DataError, names=["sample.stop", "'<|end|>'"]):
        tuned(make_tuned, more='sample: {stop: ["<|end|>"]}\n')


def test_messages_for_a_run_that_continues_text_are_refused(
    make_run: MakeRun, refuses: Refuses
) -> None:
    loaded = load_run(make_run(), CPU, torch.float32)
    with refuses(RequestError):
        loaded.prompt_ids((Message("user", "the cat"),))


def test_a_base_that_is_gone_is_told(
    make_tuned: MakeRun, base_folder: Path, refuses: Refuses
) -> None:
    folder = make_tuned()
    base_folder.rename(base_folder.with_name("moved"))
    with refuses(RunFolderError):
        load_run(folder, CPU, torch.float32)


def test_a_base_that_changed_is_told(make_tuned: MakeRun, base_folder: Path) -> None:
    folder = make_tuned()
    tensors = {
        name: tensor.clone()
        for name, tensor in load_file(base_folder / "model.safetensors").items()
    }
    tensors["model.norm.weight"] *= 2
    save_file(tensors, base_folder / "model.safetensors", metadata={"format": "pt"})
    for load in (
        lambda: load_run(folder, CPU, torch.float32),
        lambda: load_untuned(folder, CPU),
        lambda: load_unquantised(folder, CPU),
    ):
        with pytest.raises(
            RunFolderError,
            match=r"was tuned from has changed since \(fingerprint .*\)\. Put the old one back",
        ):
            load()


def test_a_base_whose_config_changed_is_told_unless_an_earlier_version_noted_its_weights_alone(
    make_tuned: MakeRun, base_folder: Path
) -> None:
    folder = make_tuned()
    config = json.loads((base_folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 3
    (base_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunFolderError, match="has changed since"):
        load_run(folder, CPU, torch.float32)

    data = json.loads((folder / "data.json").read_text())
    data["base"]["fingerprint"] = data["base"]["fingerprint"].partition("+")[0]
    (folder / "data.json").write_text(json.dumps(data))
    load_run(folder, CPU, torch.float32)


def test_adapters_of_another_run_are_told(make_tuned: MakeRun, refuses: Refuses) -> None:
    folder, other = (
        make_tuned(),
        make_tuned(AdapterRecipe(rank=4, targets=["q_proj"]), name="other"),
    )
    (other / "model" / "adapter_model.safetensors").replace(
        folder / "model" / "adapter_model.safetensors"
    )
    with refuses(PlanError):
        load_run(folder, CPU, torch.float32)


def test_a_damaged_adapter_file_is_told(make_tuned: MakeRun) -> None:
    path = make_tuned() / "model" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(PlanError, match="or are damaged"):
        load_run(path.parent.parent, CPU, torch.float32)


def test_a_run_that_tuned_nothing_has_no_model_from_before(
    make_run: MakeRun, refuses: Refuses
) -> None:
    folder = make_run()
    (folder / "data.json").write_text('{"fingerprints": {}}')
    for load in (load_untuned, load_unquantised, load_base):
        with refuses(RunFolderError):
            load(folder, CPU)


def test_the_base_of_a_run_whose_data_facts_are_lost_is_not_guessed(
    make_tuned: MakeRun, make_run: MakeRun, refuses: Refuses
) -> None:
    tuned, fresh = make_tuned(), make_run()
    for folder in (tuned, fresh):
        (folder / "data.json").unlink(missing_ok=True)

    assert base_of(fresh) == ""
    with refuses(RunFolderError):
        base_of(tuned)
