"""A run as a GGUF file: whole, or with adapters merged; it writes what the run writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fixture_types import Refuses
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel

from brimful.base.errors import RequestError
from brimful.base.manifest import note_hashes
from brimful.generation.export_gguf import export_gguf
from brimful.generation.load import load_run
from brimful.model.gguf_file import read_gguf

CPU = torch.device("cpu")


def read_back(path: Path) -> tuple[PreTrainedModel, Any]:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()
    return model, AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def greedy(model: PreTrainedModel, ids: list[int]) -> list[int]:
    made = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
    )
    return [int(each) for each in made[0][len(ids) :]]


def test_a_runs_model_is_one_file_that_writes_the_same_text(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run()
    exported = export_gguf(run, "q8_0", tmp_path / "out" / "tiny.gguf")

    assert exported.lines() == [
        f"wrote {exported.folder} ({exported.num_bytes / 1024:.1f} KiB): the whole model, matrices"
        " in q8_0 (8.5 bits a weight), with its tokenizer; for llama.cpp and what is built on it"
    ]
    assert [path.name for path in exported.folder.parent.iterdir()] == ["tiny.gguf"]
    model, tokenizer = read_back(exported.folder)
    loaded = load_run(run, CPU, torch.float32)
    ids = loaded.encode("the cat sat")
    assert tokenizer("the cat sat")["input_ids"] == ids
    assert greedy(model, ids) == greedy(loaded.model, ids)


def test_adapters_are_merged_and_the_end_of_an_answer_is_known(
    make_tuned: Callable[..., Path],
) -> None:
    run = make_tuned()
    exported = export_gguf(run, "f32")
    assert exported.folder == run / "tuned-f32.gguf"
    assert exported.merge is not None
    model, _ = read_back(exported.folder)
    loaded = load_run(run, CPU, torch.float32)
    ids = loaded.encode("the cat sat")
    assert greedy(model, ids) == greedy(loaded.model, ids)
    found = read_gguf(exported.folder).metadata
    assert found["tokenizer.ggml.eos_token_id"] == loaded.end_of_text_id
    others = loaded.stop_ids - {loaded.end_of_text_id}
    assert ("tokenizer.ggml.eot_token_id" in found) == bool(others)


def test_a_file_that_holds_this_run_already_is_left_as_it_is(
    make_run: Callable[..., Path], refuses: Refuses
) -> None:
    run = make_run()
    note_hashes(run / "model")
    first = export_gguf(run, "f16")
    written = first.folder.stat().st_mtime_ns
    assert export_gguf(run, "f16").lines()[0].endswith("nothing to do")
    assert first.folder.stat().st_mtime_ns == written
    with refuses(RequestError, names=["exists"]):
        export_gguf(run, "q8_0", first.folder)


def test_a_file_that_exists_and_a_name_that_says_something_else_are_refused(
    make_run: Callable[..., Path], tmp_path: Path, refuses: Refuses
) -> None:
    run = make_run()
    export_gguf(run, "bf16")
    with refuses(RequestError, names=["tiny-bf16.gguf exists"]):
        export_gguf(run, "bf16")
    with refuses(RequestError, names=[".gguf"]):
        export_gguf(run, "bf16", tmp_path / "tiny.bin")
    assert not list(run.glob(".*")), "nothing is left aside"
