"""The model catalog: every row is the network its publisher counted, and every wrong name or file
says what to do.
"""

import json
import random
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import date, timedelta
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
import transformers
from fixture_types import Captured, MakeRun, Refuses
from huggingface_hub import errors
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    Gemma3Config,
    GraniteMoeHybridConfig,
    PretrainedConfig,
)
from transformers.initialization import no_init_weights
from transformers.models.auto import modeling_auto
from transformers.utils import logging as transformers_logging

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.hardware import catalog as device_catalog
from brimful.model import catalog
from brimful.model.description import PACKABLE, PACKABLE_ENCODERS

ROWS: list[JsonDict] = tomllib.loads(
    resources.files("brimful.model").joinpath("catalog.toml").read_text(encoding="utf-8")
)["model"]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
ABSENT = "brimful-tests/absent"


def _num_parameters(config: PretrainedConfig, build: Any) -> int:
    with torch.device("meta"), no_init_weights():  # of parameters without values: half the time
        model = build.from_config(config)
        model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.long_but(
    "HuggingFaceTB/SmolLM2-135M",
    "google/gemma-3-1b-pt",
    "meta-llama/Llama-3.1-405B",
    "Qwen/Qwen1.5-1.8B",
    "Qwen/Qwen2.5-14B",
    "Qwen/Qwen3-14B-Base",
    "microsoft/deberta-v3-xsmall",
    "tiiuae/falcon-7b",
    "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen2.5-7B-Instruct-1M",
    "google/gemma-4-E2B",
    "HuggingFaceTB/SmolLM3-3B",
)
@every_row
def test_a_row_builds_the_model_with_the_published_number_of_parameters(
    row: JsonDict,
) -> None:
    config = catalog.config_of_model(row["name"])
    masked = config.architectures[0].endswith("ForMaskedLM")
    assert (
        _num_parameters(config, AutoModelForMaskedLM if masked else AutoModelForCausalLM)
        == row["parameters"]
    )
    assert masked == ("bare_parameters" in row)
    if masked:
        assert _num_parameters(config, AutoModel) == row["bare_parameters"]


@pytest.mark.parametrize(
    ("size", "whole"), [("4b", 4_300_079_472), ("12b", 12_187_325_040), ("27b", 27_432_406_640)]
)
def test_the_text_model_of_gemma_3_completes_the_published_whole(size: str, whole: int) -> None:
    """The hub counts text, vision tower (SigLIP, 896 pixels in patches of 14) and projector
    together.
    """
    vision = {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "image_size": 896,
        "patch_size": 14,
    }
    text = catalog.config_of_model(f"google/gemma-3-{size}-pt").to_dict()
    config = Gemma3Config(text_config=text, vision_config=vision | {"vision_use_head": False})
    assert _num_parameters(config, AutoModelForImageTextToText) == whole


@every_row
def test_a_row_says_where_it_comes_from_and_has_no_key_that_nobody_reads(
    row: JsonDict,
) -> None:
    known = {
        "name",
        "other_names",
        "parameters",
        "bare_parameters",
        "parameters_source",
        "published_dtype",
        "config",
        "null",
        "source",
        "read",
    }
    assert row.keys() <= known | {"uncertain", "note", "licence", "gated", "published"} | {
        "also_reads"
    }
    assert row["source"]
    assert row["parameters_source"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["read"])
    assert "remembered" not in row["parameters_source"] or "parameters" in row["uncertain"]


@every_row
def test_the_config_of_a_row_keeps_every_value_of_the_row(row: JsonDict) -> None:
    config = catalog.config_of_model(row["name"])
    kept = config.to_dict() | {"model_type": config.model_type}
    for key, value in row["config"].items():
        if isinstance(value, dict):
            assert value.items() <= kept[key].items(), key
        elif key in {"rotary_pct", "partial_rotary_factor"}:
            assert config.rope_parameters["partial_rotary_factor"] == value
        elif key != "sliding_window_pattern":  # becomes layer_types
            assert (kept[key] if key in kept else getattr(config, key, None)) == value, key
    for key in row.get("null", ()):
        assert getattr(config, key) is None
    assert str(config.dtype) == f"torch.{catalog.TORCH_DTYPES[row['published_dtype']]}"


def test_names_and_other_names_are_unique() -> None:
    every_name = [
        name.casefold() for row in ROWS for name in (row["name"], *row.get("other_names", ()))
    ]
    assert len(every_name) == len(set(every_name))
    assert catalog.names() == [row["name"] for row in ROWS]
    assert len(ROWS) >= 150


def test_a_row_is_found_by_its_exact_name_or_another_listed_name_in_any_case() -> None:
    row = catalog.find("nousresearch/llama-2-7B-hf ")
    assert row is not None
    assert (row.name, row.parameters, row.published_dtype) == (
        "meta-llama/Llama-2-7b-hf",
        6_738_415_616,
        "fp16",
    )
    assert (row.config["model_type"], row.config["hidden_size"], row.read) == (
        "llama",
        4096,
        "2026-11-21",
    )
    assert row.source.startswith("catalog, read 2026-11-21")
    assert catalog.find("Llama-2-7b-hf") is None
    assert catalog.find("") is None


def test_the_newest_model_and_the_newest_reading_are_no_older_than_the_release_allows() -> None:
    """The release is the date that CHANGELOG.md gives the version of the package."""
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    release = date.fromisoformat(changelog.partition("\n## ")[2].split("(")[1].split(")")[0])
    newest = max(row["published"] for row in ROWS if "published" in row)
    for day in (newest, catalog.read_until(), device_catalog.read_until()):
        assert release - date.fromisoformat(day) <= timedelta(days=120)


AS_PEOPLE_TYPE_THEM = {
    "Qwen/Qwen3.5-4B": "Qwen/Qwen3.5-4B",
    "unsloth/Qwen3.5-2B": "Qwen/Qwen3.5-2B",
    "qwen/qwen3.5-35b-a3b": "Qwen/Qwen3.5-35B-A3B",
    "google/gemma-4-E4B-it": "google/gemma-4-E4B",
    "unsloth/gemma-4-31B-it-unsloth-bnb-4bit": "google/gemma-4-31B",
    "openai/gpt-oss-20b": "openai/gpt-oss-20b",
    "unsloth/gpt-oss-20b-unsloth-bnb-4bit": "openai/gpt-oss-20b",
    "HuggingFaceTB/SmolLM3-3B": "HuggingFaceTB/SmolLM3-3B",
    "Qwen/Qwen3-4B-Instruct-2507": "Qwen/Qwen3-4B-Instruct-2507",
    "unsloth/Qwen3-4B-Instruct-2507-bnb-4bit": "Qwen/Qwen3-4B-Instruct-2507",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "unsloth/DeepSeek-R1-Distill-Llama-8B": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "Qwen/Qwen2.5-Coder-7B-Instruct": "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen2.5-Coder-1.5B": "Qwen/Qwen2.5-1.5B-Instruct",
    "microsoft/Phi-3.5-mini-instruct": "microsoft/Phi-3.5-mini-instruct",
    "mistralai/Mistral-Small-24B-Instruct-2501": "mistralai/Mistral-Small-24B-Base-2501",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "mistralai/Mistral-Small-3.1-24B-Base-2503",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "meta-llama/Llama-4-Scout-17B-16E",
    "google/gemma-3n-E4B-it": "google/gemma-3n-E4B",
    "LiquidAI/LFM2-1.2B": "LiquidAI/LFM2-1.2B",
    "LiquidAI/LFM2-8B-A1B": "LiquidAI/LFM2-8B-A1B",
    "zai-org/GLM-4.7-Flash": "zai-org/GLM-4.7-Flash",
    "THUDM/GLM-4-9B-0414": "zai-org/GLM-4-9B-0414",
    "unsloth/Llama-3.2-1B-Instruct": "meta-llama/Llama-3.2-1B",
    "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": "meta-llama/Llama-3.1-8B",
    "NousResearch/Meta-Llama-3-8B": "meta-llama/Meta-Llama-3-8B",
    "unsloth/mistral-7b-v0.3-bnb-4bit": "mistralai/Mistral-7B-v0.3",
    "google/gemma-3-270m-it": "google/gemma-3-270m",
    "deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-V3",
}


def test_thirty_ids_are_found_as_people_type_them() -> None:
    assert len(AS_PEOPLE_TYPE_THEM) == 30
    found = {typed: catalog.find(typed) for typed in AS_PEOPLE_TYPE_THEM}
    assert {typed: row and row.name for typed, row in found.items()} == AS_PEOPLE_TYPE_THEM


def test_no_other_model_stands_in_for_an_unknown_one() -> None:
    for unknown in (
        "Qwen/Qwen3.5-3B",
        "unsloth/Qwen3-4B-Instruct-2508",
        "somebody/Qwen3-4B",
        "Qwen3-4B",
        "openai/gpt-oss-20b-GGUF",
        "google/gemma-4-12b-it",
    ):
        assert catalog.find(unknown) is None


def test_a_config_that_is_kept_is_read_without_the_hub(
    folder: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    """The error of an unknown model says how; it is followed here."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", _raising(ConnectionError("no network"))
    )
    with pytest.raises(PlanError, match="brimful models add FOLDER --name ID"):
        catalog.config_of_model(ABSENT)
    kept = catalog.keep_config(str(folder(TINY)), ABSENT)
    config = catalog.config_of_model(ABSENT.upper())
    assert (config.model_type, config.hidden_size, config.vocab_size) == ("llama", 8, 16)
    sound = kept.read_text(encoding="utf-8")
    kept.write_text(sound.replace('"hidden_size": 8', '"hidden_size": 9'), encoding="utf-8")
    with pytest.raises(PlanError, match="brimful models add"):
        catalog.config_of_model(ABSENT)
    kept.write_text(json.dumps(TINY), encoding="utf-8")  # as an earlier version wrote it
    assert catalog.config_of_model(ABSENT).hidden_size == 8
    with refuses(PlanError, names=["--name OWNER/NAME"]):
        catalog.keep_config(str(tmp_path / "model"), "")
    with refuses(PlanError, names=["gpt2"]):
        catalog.keep_config(str(tmp_path / "model"), "gpt2")
    kept.unlink()
    with pytest.raises(PlanError, match="could not be reached"):
        catalog.config_of_model(ABSENT)


def test_infinity_is_read_as_transformers_writes_it(tmp_path: Path) -> None:
    GraniteMoeHybridConfig(time_step_limit=(0.0, float("inf"))).save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text(encoding="utf-8")
    config = catalog.config_of_model(str(tmp_path))
    assert tuple(config.time_step_limit) == (0.0, float("inf"))


@pytest.mark.long
def test_code_says_what_classes_say_of_fused_attention() -> None:
    classes = {
        **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    }
    some = random.Random(0).sample(sorted(classes.keys() - PACKABLE - PACKABLE_ENCODERS), 30)
    some += ["gpt_oss", "bloom", "deberta-v2", "granite_swa", "mixtral"]
    said = {name: catalog.has_fused_attention(name) for name in some}

    assert said == {name: getattr(transformers, classes[name])._supports_sdpa for name in some}
    assert set(said.values()) == {True, False}
    assert catalog.has_fused_attention("a type of its own code")


def test_types_that_are_not_asked_have_fused_attention() -> None:
    """`has_fused_attention` imports no class for the types whose packed rows are tested. Gemma 2
    caps its scores, so that they are stored whatever its class says.
    """
    classes = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        | modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )
    for model_type in (PACKABLE | PACKABLE_ENCODERS) & classes.keys() - {"gemma2"}:
        assert getattr(transformers, classes[model_type])._supports_sdpa, model_type


def test_a_null_of_the_published_config_survives() -> None:
    row = catalog.find("mistralai/Mistral-7B-v0.3")
    assert row is not None
    assert row.config["sliding_window"] is None
    assert catalog.config_of_model("mistralai/Mistral-7B-v0.1").sliding_window == 4096


def test_gemma_layers_alternate_between_a_window_and_full_attention() -> None:
    assert (
        catalog.config_of_model("google/gemma-2-2b").layer_types[:4]
        == ["sliding_attention", "full_attention"] * 2
    )
    assert (
        catalog.config_of_model("google/gemma-3-4b-pt").layer_types[:12]
        == (["sliding_attention"] * 5 + ["full_attention"]) * 2
    )


def test_a_config_asked_for_twice_is_two_objects() -> None:
    changed = catalog.config_of_model("gpt2")
    changed.n_layer = 1
    assert catalog.config_of_model("gpt2").n_layer == 12


def test_questions_about_rows_load_no_framework() -> None:
    code = (
        "import sys; from brimful.model import catalog; catalog.find('gpt2'); print({'torch',"
        " 'transformers'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


@pytest.fixture
def folder(tmp_path: Path) -> MakeRun:
    """`folder(values)` is a model folder whose config.json holds them; a text is written as it
    is.
    """

    def write(values: object) -> Path:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(
            values if isinstance(values, str) else json.dumps(values)
        )
        return tmp_path / "model"

    return write


TINY = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 16,
}


def test_a_local_folder_or_file_needs_no_catalog_and_no_network(
    folder: MakeRun,
) -> None:
    path = folder(TINY)
    for given in (path, path / "config.json"):
        config = catalog.config_of_model(str(given))
        assert (config.model_type, config.hidden_size, config.vocab_size) == ("llama", 8, 16)


def test_a_local_folder_comes_before_the_catalog(
    folder: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(TINY).rename(tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    assert catalog.config_of_model("gpt2").model_type == "llama"


def test_a_local_folder_without_a_config_does_not_hide_a_catalog_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert catalog.config_of_model("gpt2").model_type == "gpt2"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "holds a JSON list"),
        ({}, "has no model_type, .* it has no keys at all"),
        ({"hidden_size": 8}, "has no model_type, .* it has hidden_size"),
        ({"model_type": "gpt2", "n_layer": -3}, "num_hidden_layers is -3, .* must be 1 to 1,024"),
        ({"model_type": "llama", "vocab_size": 0}, "vocab_size is 0, .* must be 1 to"),
        ({"model_type": "llama", "hidden_size": 1 << 40, "head_dim": 8}, "hidden_size is 1,099"),
        ({"model_type": "lama"}, "does not know model_type 'lama' - did you mean 'llama'?"),
        (
            {"model_type": "vit"},
            (
                r"a model without a vocabulary \(no vocab_size\): model_type 'vit'. Causal language"
                r" models"
            ),
        ),
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            r"an encoder-decoder model: model_type 't5' \(T5For",
        ),
        ({"model_type": "clip"}, "no head to predict tokens: model_type 'clip'"),
        (
            {"model_type": "gpt2", "n_layer": "many"},
            "for model_type 'gpt2': .*'n_layer' expected int, got str",
        ),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "o/r--configuration_own.C"}},
            r"run Python code from the repository \(configuration_own.py\)",
        ),
    ],
)
def test_a_config_that_cannot_be_planned_says_why(
    folder: MakeRun, values: object, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        catalog.config_of_model(str(folder(values)))


def test_a_folder_without_a_config_and_a_path_that_is_not_there_are_errors(
    tmp_path: Path, refuses: Refuses
) -> None:
    with refuses(PlanError, names=["config.json"]):
        catalog.config_of_model(str(tmp_path))
    for missing in (str(tmp_path / "absent"), "./absent", "absent.json", "a/b/c", ""):
        with refuses(PlanError):
            catalog.config_of_model(missing)


def test_a_weights_file_is_not_read_as_a_config(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0")
    with refuses(PlanError, names=["config.json"]):
        catalog.config_of_model(str(tmp_path / "model.safetensors"))


CUSTOM_CODE = """
from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "own"
    vocab_size = 16
"""


def test_custom_code_runs_with_consent_only(
    folder: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    automatic = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnModel",
    }
    path = folder({"model_type": "own", "auto_map": automatic})
    (path / "configuration_own.py").write_text(CUSTOM_CODE)
    with pytest.raises(
        PlanError,
        match=r"configuration_own\.py, modeling_own\.py\)\. Read it, .* --trust-custom-code",
    ):
        catalog.config_of_model(str(path))
    assert type(catalog.config_of_model(str(path), trust_custom_code=True)).__name__ == "OwnConfig"


def test_custom_code_beside_a_file_of_another_name_is_not_looked_for(
    folder: MakeRun,
) -> None:
    path = folder({"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.C"}})
    file = (path / "config.json").rename(path / "other.json")
    with pytest.raises(PlanError, match=r"beside a file named config\.json only"):
        catalog.config_of_model(str(file), trust_custom_code=True)


def _raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            errors.GatedRepoError("no", response=Mock()),
            "is gated on the Hugging Face hub and this user has no access. Accept its terms",
        ),
        (
            errors.RepositoryNotFoundError("no", response=Mock()),
            "not in the catalog, and not on the Hugging Face hub or private there",
        ),
        (
            errors.RemoteEntryNotFoundError("no", response=Mock()),
            r"on the Hugging Face hub has no config\.json",
        ),
        (
            ConnectionError("Name or service not known"),
            r"could not be reached \(Name or service not known\)",
        ),
        (
            errors.OfflineModeIsEnabled("offline mode is enabled"),
            r"could not be reached \(offline mode is enabled\)",
        ),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_message(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", _raising(error))
    with pytest.raises(PlanError, match=message) as raised:
        catalog.config_of_model(ABSENT)
    assert "A local config.json is enough" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_misspelt_name_without_network_is_told_the_nearest_exact_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", _raising(ConnectionError("no network"))
    )
    with pytest.raises(
        PlanError,
        match=r"not in the catalog of \d+ models \(20[\d-]+\) - did you mean 'meta-llama/Llama-3\.1-8B'\?",
    ):
        catalog.config_of_model("meta-llama/Llama-3.1-8C")


def test_a_name_of_a_run_is_told_where_its_model_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRIMFUL_RUNS", str(tmp_path))
    model = tmp_path / "mine" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", _raising(ConnectionError("no network"))
    )

    with pytest.raises(PlanError, match=rf"has one: model={re.escape(str(model))}\.") as raised:
        catalog.config_of_model("mine")

    advised = str(raised.value).partition("model=")[2].partition(". ")[0]
    assert catalog.config_of_model(advised).model_type == "llama"


def test_a_hub_out_of_reach_is_asked_once(monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    asked = []

    def no_network(host: object, *_: object, **__: object) -> NoReturn:
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    with pytest.raises(PlanError, match="could not be reached"):
        catalog.config_of_model(ABSENT)
    assert len(asked) <= 1  # none where the user set HF_HUB_OFFLINE
    assert capfd.readouterr() == ("", "")


def _on_the_hub(file: Path, *, online: bool) -> Callable[..., str]:
    def download(
        name: str, _: str, *, local_files_only: bool = False, etag_timeout: float = 0.0
    ) -> str:
        assert name == ABSENT
        assert local_files_only or (online and 0 < etag_timeout <= catalog.HUB_TIMEOUT_S)
        return str(file)

    return download


@pytest.mark.parametrize("online", [True, False])
def test_a_config_comes_from_the_hub_or_from_its_cache(
    online: bool, folder: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = Mock() if online else _raising(ConnectionError("no network"))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", _on_the_hub(folder(TINY) / "config.json", online=online)
    )
    assert catalog.config_of_model(ABSENT).hidden_size == 8


def test_libraries_are_quiet_meanwhile_and_as_before_afterwards(
    folder: MakeRun, capfd: Captured
) -> None:
    before = transformers_logging.get_verbosity()
    catalog.config_of_model(
        str(folder({"model_type": "gpt2", "vocab_size": 16}))
    )  # its default bos_token_id, 50256, is worth a log line
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == before


def test_a_strangers_config_is_filled_in_and_keeps_neither_code_nor_kernels_even_of_its_parts() -> (
    None
):
    part = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "_attn_implementation": "org/kernel",
        "quantization_config": {"load_in_4bit": True},
        "note": 1,
    }

    values, ignored = catalog.checked_values(
        {
            "model_type": "gemma3",
            "text_config": part,
            "auto_map": {"AutoModel": "x.Y"},
            "mystery": 2,
        },
        "here",
    )

    text = values["text_config"]
    assert (
        text["model_type"],
        text["hidden_size"],
        text["vocab_size"],
        text["max_position_embeddings"],
    ) == ("gemma3_text", 64, 262_208, 131_072)
    assert not {"_attn_implementation", "quantization_config", "note"} & text.keys()
    assert not {"auto_map", "mystery", "id2label"} & values.keys()
    assert ignored == ("mystery",)


def test_values_that_are_used_under_another_name_are_not_called_left_out() -> None:
    values, ignored = catalog.checked_values(
        {"model_type": "llama", "rope_theta": 5.0, "id2label": {"0": "a"}}, "here"
    )

    assert (values["rope_parameters"]["rope_theta"], values["vocab_size"], ignored) == (
        5.0,
        32_000,
        (),
    )
    values, ignored = catalog.checked_values({"model_type": "gpt2", "num_hidden_layers": 3}, "here")
    assert (values["n_layer"], ignored) == (3, ())
