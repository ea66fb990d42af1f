"""What the documents say is what the program does."""

import json
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
import torch
from fixture_types import Captured
from named_tests import PAGE, exists, named_tests

import tables
from brimful import cli
from brimful.base.discover import names_in
from brimful.base.errors import DeviceError, PlanError, RecipeError
from brimful.hardware.device import KINDS as DEVICE_KINDS
from brimful.hardware.probe import probe
from brimful.model.catalog import config_of_model
from brimful.model.published import require_nf4
from brimful.planning.choices import EIGHT_BIT_VARIANTS
from brimful.recipe import KINDS, Recipe, load
from brimful.training.world import BACKENDS

ROOT = Path(__file__).parents[1]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 70


def test_no_document_holds_the_marks_of_a_conflict() -> None:
    marks = re.compile(r"^(?:<{7} |={7}$|>{7} )", re.MULTILINE)
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [path.name for path in paths if marks.search(path.read_text(encoding="utf-8"))] == []


def test_no_document_and_no_message_claims_a_package_index() -> None:
    """brimful is on none yet: it is installed from a checkout or an address of its repository."""
    claim = re.compile(r"pip install (?:-\S+ )*['\"]?brimful")
    paths = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "notebooks" / "text").iterdir(),
        *(ROOT / "src").rglob("*.py"),
    ]
    assert [path.name for path in paths if claim.search(path.read_text(encoding="utf-8"))] == []


def test_what_the_page_on_installing_names_is_what_the_package_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE)
    named = {extra for row in rows for extra in _code_words(row)}
    assert named == project["optional-dependencies"].keys() - {"dev", "tried"}
    least = re.search(r"torch ([\d.]+) or newer", page)
    assert least is not None
    assert any(each.startswith(f"torch>={least[1]}") for each in project["dependencies"])


def _supported() -> dict[str, tuple[str, str]]:
    """The table of the README: what is and what is not, by subject."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What is supported")[2]
    rows = re.findall(r"^\| (\w+) \| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    return {subject: (yes, no) for subject, yes, no in rows}


def _code_words(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_methods_that_the_readme_supports_are_those_of_the_code() -> None:
    yes, no = _supported()["methods"]
    methods = set(names_in("brimful.training.methods", ".py"))
    assert _code_words(yes) == methods == {each for kind in KINDS.values() for each in kind.methods}
    assert ("rejection sampling" in yes) == ("rft" in Recipe.model_fields)
    assert _code_words(no).isdisjoint(methods)
    for method in _code_words(no):
        with pytest.raises(RecipeError):
            load("code-lora", [f"method={method}"])


def test_tuning_that_the_readme_supports_is_that_of_the_code() -> None:
    yes, no = _supported()["tuning"]
    assert _code_words(yes) | {"none"} == set(get_args(Recipe.model_fields["quantize"].annotation))
    assert ("8-bit optimizers" in yes) == bool(EIGHT_BIT_VARIANTS)
    for device in _code_words(no):
        with pytest.raises(DeviceError):
            require_nf4(torch.device(device))


def test_devices_that_the_readme_supports_are_those_of_the_code() -> None:
    yes, no = _supported()["devices"]
    assert _code_words(yes) == set(DEVICE_KINDS)
    assert _code_words(yes.partition("several of")[2]) == set(BACKENDS)
    assert "TPU" in no
    for several in ("cuda:0,cuda:1", "cuda:0-1", "tpu"):
        with pytest.raises(DeviceError):
            probe(several)


def test_models_that_the_readme_does_not_support_are_refused(tmp_path: Path) -> None:
    yes, no = _supported()["models"]
    assert {kind.task for kind in KINDS.values()} >= {
        "causal_lm",
        "masked_lm",
        "sequence_classification",
    }
    assert tuple(each for each in ("causal language models", "encoders") if each in yes) == (
        "causal language models",
        "encoders",
    )
    refused = {"vision": "vit", "audio": "wav2vec2", "T5": "t5"}
    for word, model_type in refused.items():
        assert word in no
        config = tmp_path / f"{model_type}.json"
        config.write_text(json.dumps({"model_type": model_type}))
        with pytest.raises(PlanError):
            config_of_model(str(config))


def test_systems_that_the_readme_supports_have_what_the_code_imports() -> None:
    """`resource` exists on Linux and macOS alone."""
    _, no = _supported()["systems"]
    imports = (ROOT / "src/brimful/hardware/process_memory.py").read_text(encoding="utf-8")
    assert ("Windows" in no) == ("\nimport resource\n" in imports)


def test_docs_recipes_md_lists_every_key(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("sys.argv", ["brimful", "recipes", "keys"])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code in (0, None)
    table = capsys.readouterr().out.strip()
    assert table in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"), (
        "update the table in docs/recipes.md: brimful recipes keys"
    )


@pytest.mark.parametrize(
    ("document", "page"),
    [
        ("measured", "measured"),
        ("okadfa", "ablation"),
        ("verify", "verify"),
        ("install", "environments"),
        ("guides", "guides_trained"),
        ("questions", "questions"),
    ],
)
def test_figures_are_those_of_the_records(document: str, page: str) -> None:
    assert tables.page(page) in (ROOT / "docs" / f"{document}.md").read_text("utf-8"), (
        f"update docs/{document}.md: python benchmarks/tables.py {page}"
    )


def test_scripts_that_the_page_of_measurements_names_exist() -> None:
    named = set(re.findall(r"`(?:python benchmarks/)?(\w+\.py)", tables.page("measured")))
    assert not {name for name in named if not (ROOT / "benchmarks" / name).is_file()}


def test_tests_that_the_page_on_security_names_exist() -> None:
    named = named_tests()
    assert len(named) > 100
    assert sorted(test for test in named if not exists(test)) == []


def test_every_claim_of_the_page_on_security_names_its_test() -> None:
    """Each row, point and paragraph of what is trusted, what is not, and what was tried."""
    text = PAGE.read_text(encoding="utf-8").partition("## What is not covered")[0]
    blocks = re.split(r"\n\n|\n(?=\||- )", text.partition("## What is trusted")[2])
    is_head = re.compile(r"\s*(## |\| What \||\|-)")
    claims = [block for block in blocks if block.strip() and not is_head.match(block)]
    assert len(claims) >= 23
    assert [claim for claim in claims if "`tests/" not in claim] == []
