"""An export is the model that was trained: copied as it is, or merged and equal but for
rounding.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixture_types import Refuses
from peft import PeftModel
from syrupy.assertion import SnapshotAssertion
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.manifest import note_hashes
from brimful.base.rundir import read_json, write_json_atomically
from brimful.generation import export
from brimful.generation.export import Exported, MergeCheck, export_merged, export_run, refuse_unlike
from brimful.generation.load import load_run
from brimful.recipe import AdapterRecipe

MakeTuned = Callable[..., Path]
CPU = torch.device("cpu")
IDS_BT = torch.arange(2, 42)[None]


def logits_of(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=IDS_BT).logits[0]
    return logits


def load(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def check_of(exported: Exported) -> MergeCheck:
    assert exported.merge is not None
    return exported.merge


def first_order_bound(model: PreTrainedModel, position: int, token: int, unit: float) -> float:
    """How far one logit can move when every weight moves by at most `unit` of itself: the sum of
    |gradient x weight|.
    """
    model.zero_grad()
    model(input_ids=IDS_BT).logits[0, position, token].backward()
    return unit * sum(
        float((parameter.grad * parameter.detach()).abs().sum())
        for parameter in model.parameters()
        if parameter.grad is not None
    )


@pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
)  # peft 0.21 asks transformers 5.23 for it
def test_exported_adapters_load_with_peft_on_the_base_and_give_equal_logits(
    make_tuned: MakeTuned, base_folder: Path, tmp_path: Path
) -> None:
    run = make_tuned()
    exported = export_run(run, tmp_path / "out")

    ours = logits_of(load_run(run, CPU, torch.float32).model)
    config = json.loads((exported.folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base_folder)
    assert config["target_modules"] == sorted(config["target_modules"]), "not in an order of chance"
    assert torch.equal(logits_of(PeftModel.from_pretrained(load(base_folder), run / "model")), ours)
    assert torch.equal(
        logits_of(PeftModel.from_pretrained(load(base_folder), exported.folder)), ours
    )
    assert torch.equal(logits_of(load(exported.folder)), ours)
    assert len(AutoTokenizer.from_pretrained(exported.folder)) == 279
    assert exported.num_bytes == sum(path.stat().st_size for path in exported.folder.iterdir())


def test_a_base_that_was_named_from_here_is_found_from_elsewhere(
    make_tuned: MakeTuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_tuned()
    facts = read_json(run / "data.json")
    facts["base"]["source"] = "base"
    write_json_atomically(run / "data.json", facts, with_checksum=True)
    monkeypatch.chdir(tmp_path)

    exported = export_run(run, tmp_path / "out")
    assert json.loads((exported.folder / "adapter_config.json").read_text())[
        "base_model_name_or_path"
    ] == str(tmp_path / "base")


def test_a_whole_model_is_copied_and_ends_at_every_stop_token(
    make_tuned: MakeTuned, tmp_path: Path
) -> None:
    run = make_tuned(None, more='sample: {stop: ["a", "b"]}\n')
    exported = export_run(run, tmp_path / "out")

    tokenizer = AutoTokenizer.from_pretrained(exported.folder)
    stops = tokenizer.convert_tokens_to_ids(["a", "b"])
    assert torch.equal(
        logits_of(load(exported.folder)), logits_of(load_run(run, CPU, torch.float32).model)
    )
    assert load(exported.folder).generation_config.eos_token_id == [tokenizer.eos_token_id, *stops]


def test_a_model_trained_from_nothing_is_copied_as_it_is(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run()
    folder = export_run(run, tmp_path / "deep" / "out").folder
    hashes = json.loads((folder / "MANIFEST.json").read_text())["files"]
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in hashes} == {
        path.name: path.read_bytes() for path in (run / "model").iterdir()
    }
    assert hashes.keys() == {path.name for path in folder.iterdir()} - {"MANIFEST.json"}


@pytest.mark.parametrize(
    "adapter",
    [
        AdapterRecipe(rank=4),
        AdapterRecipe(rank=4, dora=True),
        AdapterRecipe(rank=3, rslora=True, targets=["q_proj"]),
    ],
)
def test_merged_weights_in_fp32_give_the_logits_of_base_and_adapters(
    make_tuned: MakeTuned, tmp_path: Path, adapter: AdapterRecipe
) -> None:
    run = make_tuned(adapter)
    check = check_of(export_merged(run, tmp_path / "out", "fp32"))

    merged, apart = (
        logits_of(load(tmp_path / "out")),
        logits_of(load_run(run, CPU, torch.float32).model),
    )
    assert (merged - apart).abs().max() < 2e-5 * apart.abs().max()
    assert (
        check.difference == check.unrounded <= check.summing < check.allowed < 1e-2 * check.tuning
    )


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_merged_weights_differ_by_no_more_than_rounding_allows(
    make_tuned: MakeTuned, tmp_path: Path, dtype: export.Dtype, torch_dtype: torch.dtype
) -> None:
    run = make_tuned()
    check = check_of(export_merged(run, tmp_path / "out", dtype))

    merged = load(tmp_path / "out")
    difference_TV = (logits_of(merged) - logits_of(load_run(run, CPU, torch.float32).model)).abs()
    position, token = divmod(int(difference_TV.argmax()), difference_TV.shape[1])
    unit_roundoff = torch.finfo(torch_dtype).eps / 2
    assert 0 < difference_TV.max() < 1.1 * first_order_bound(merged, position, token, unit_roundoff)
    assert 0 < check.difference <= check.allowed < check.tuning
    assert {parameter.dtype for parameter in load(tmp_path / "out", torch_dtype).parameters()} == {
        torch_dtype
    }
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == str(
        torch_dtype
    ).removeprefix("torch.")


def test_a_merged_model_stands_alone_with_tokenizer_and_every_stop_token(
    make_tuned: MakeTuned, base_folder: Path, tmp_path: Path
) -> None:
    run = make_tuned(more='sample: {stop: ["b", "a"]}\n')
    exported = export_merged(run, tmp_path / "out")
    shutil.rmtree(base_folder)

    tokenizer, model = AutoTokenizer.from_pretrained(exported.folder), load(exported.folder)
    assert model.generation_config.eos_token_id == [
        tokenizer.eos_token_id,
        *tokenizer.convert_tokens_to_ids(["a", "b"]),
    ]
    assert not [path.name for path in exported.folder.iterdir() if "adapter" in path.name]
    assert check_of(exported).quantized is None
    assert [path.name for path in tmp_path.iterdir() if "tmp-" in path.name] == []


def test_adapters_of_a_4_bit_base_are_merged_into_the_unquantised_one_and_the_distance_is_measured(
    make_tuned: MakeTuned, tmp_path: Path
) -> None:
    run = make_tuned(quantize="nf4")
    check = check_of(export_merged(run, tmp_path / "out", "fp32"))

    assert load(tmp_path / "out").num_parameters() == load(tmp_path / "base").num_parameters()
    assert check.difference <= check.allowed
    assert check.quantized is not None
    assert check.quantized > 10 * check.difference
    assert 0 <= (check.same_choice or 0) <= check.tokens == 48


def test_a_difference_that_rounding_does_not_explain_is_refused(
    refuses: Refuses,
) -> None:
    check = MergeCheck(
        tokens=48, unrounded=1e-5, summing=1e-4, difference=0.1, allowed=0.2, tuning=4.0
    )
    refuse_unlike(check, "bf16")
    for wrong in (
        replace(check, difference=0.3),
        replace(check, unrounded=0.1),
        replace(check, difference=float("nan")),
    ):
        with refuses(RunFolderError, names=["0.2"]):
            refuse_unlike(wrong, "bf16")


def test_a_wrong_merge_is_noticed_and_leaves_nothing(
    make_tuned: MakeTuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_tuned()
    merge = export.merge_adapters

    def merge_too_strongly(model: PreTrainedModel) -> frozenset[str]:
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data *= 1.1
        return merge(model)

    monkeypatch.setattr(export, "merge_adapters", merge_too_strongly)
    with pytest.raises(RunFolderError, match="not the tuned one"):
        export_merged(run, tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out")]


def test_an_existing_folder_is_never_touched(
    make_tuned: MakeTuned, tmp_path: Path, refuses: Refuses
) -> None:
    run = make_tuned()
    (tmp_path / "out").mkdir()
    for write in (export_run, export_merged):
        with refuses(RequestError, names=["--to FOLDER"]):
            write(run, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def _written(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written; reading changes the time of the last access, too."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def test_the_same_export_again_finds_it_there_and_leaves_it(
    make_tuned: MakeTuned, tmp_path: Path, refuses: Refuses
) -> None:
    run, out = make_tuned(), tmp_path / "out"
    note_hashes(run / "model")
    export_merged(run, out)
    before = {path: _written(path) for path in out.iterdir()}

    again = export_merged(run, out)
    assert again.is_older
    assert "is there already" in again.lines()[0]
    assert {path: _written(path) for path in out.iterdir()} == before

    for other in (lambda: export_merged(run, out, "fp32"), lambda: export_run(run, out)):
        with refuses(RequestError, names=["--to FOLDER"]):
            other()
    flip_a_bit(out / "model.safetensors")
    with refuses(RequestError, names=["--to FOLDER"]):
        export_merged(run, out)


def test_an_export_of_another_run_or_of_one_that_was_trained_anew_is_refused(
    make_tuned: MakeTuned, tmp_path: Path, refuses: Refuses
) -> None:
    run, out = make_tuned(), tmp_path / "out"
    note_hashes(run / "model")
    export_run(run, out)
    assert export_run(run, out).is_older

    (run / "model" / "notes.json").write_text("{}")
    note_hashes(run / "model")
    with refuses(RequestError, names=["--to FOLDER"]):
        export_run(run, out)


def test_what_a_killed_export_left_is_removed_by_the_next_one(
    make_tuned: MakeTuned, tmp_path: Path
) -> None:
    run, left = make_tuned(), tmp_path / "out.tmp-0123abcd"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"a part")
    (tmp_path / "out.txt").write_text("somebody's")

    export_run(run, tmp_path / "out")

    assert {path.name for path in tmp_path.iterdir()} >= {"out", "out.txt"}
    assert not left.exists()


def test_an_unfinished_run_is_refused(
    make_tuned: MakeTuned, tmp_path: Path, refuses: Refuses
) -> None:
    run = make_tuned()
    shutil.rmtree(run / "model")
    for write in (export_run, export_merged):
        with refuses(RunFolderError):
            write(run, tmp_path / "out")


def test_merging_needs_adapters(
    make_tuned: MakeTuned,
    make_run: Callable[..., Path],
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    for run in (make_tuned(None), make_run()):
        with refuses(RequestError):
            export_merged(run, tmp_path / "out")


def test_too_little_room_is_told_before_anything_is_written(
    make_tuned: MakeTuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_tuned()
    monkeypatch.setattr(export, "disk_free_bytes", lambda _folder: 1024)
    for write in (export_run, export_merged):
        with pytest.raises(RunFolderError, match=r"needs .* KiB, only 1\.00 KiB are free"):
            write(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_told(
    make_tuned: MakeTuned, tmp_path: Path, refuses: Refuses
) -> None:
    run = make_tuned()
    (tmp_path / "file").write_text("")
    with refuses(RunFolderError):
        export_run(run, tmp_path / "file" / "out")


def test_without_a_folder_the_export_stands_in_the_run_and_says_what_it_is(
    make_tuned: MakeTuned, base_folder: Path
) -> None:
    run = make_tuned()
    copied, merged = export.export(run), export.export(run, merge=True)

    assert (copied.folder, merged.folder) == (run / "export", run / "merged")
    assert copied.lines()[0].endswith(
        f"adapters in PEFT layout for {base_folder}, with its tokenizer"
    )
    assert "the whole model in bf16, adapters merged" in merged.lines()[0]
    assert "logits at 48 tokens differ by up to" in merged.lines()[1]
    assert len(merged.lines()) == 2


def test_the_line_on_a_4_bit_model_says_what_the_merged_one_rests_on(
    snapshot: SnapshotAssertion,
) -> None:
    check = MergeCheck(48, 1e-5, 1e-4, 0.1, 0.2, 4.0, quantized=0.75, same_choice=41)
    line = Exported(Path("out"), 1024, "a model", check).lines()[-1]
    assert line == snapshot


def test_a_type_without_a_merge_is_refused(make_tuned: MakeTuned, refuses: Refuses) -> None:
    with refuses(RequestError, names=["--dtype", "--merge"]):
        export.export(make_tuned(), dtype="fp16")
