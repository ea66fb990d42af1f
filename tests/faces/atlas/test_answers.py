"""Tables of an atlas are plans, written short."""

import pytest

from brimful.base.units import MIB
from brimful.chains.plans import survey
from brimful.faces.atlas.answers import CELL, HOW, VERDICTS, Tables, key_of, tables_of
from brimful.faces.atlas.scope import Question
from brimful.hardware import catalog
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe.loading import load_text

DEVICES = ("Tesla T4", "NVIDIA A100-SXM4-80GB")
QUESTIONS = [
    Question("meta-llama/Llama-3.1-8B", "lora", 512, 16, 10_000_000),
    Question("meta-llama/Llama-3.1-8B", "lora", 4096, 8, 1_000_000),
]


@pytest.fixture(scope="module")
def found() -> Tables:
    return tables_of(QUESTIONS, DEVICES, lambda question: None)


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_cell_is_what_a_plan_of_the_recipe_says(found: Tables, question: Question) -> None:
    text = found.recipe.replace("sequence_length: 512", f"sequence_length: {question.length}")
    text = text.replace("sequences: 16", f"sequences: {question.batch}")
    text = text.replace("tokens: 10000000", f"tokens: {question.tokens}")
    recipe = load_text(text, "atlas")
    cells = found.tables[key_of(question)]

    for cell, entry in zip(cells, survey(recipe, ",".join(DEVICES)), strict=True):
        assert isinstance(entry, Surveyed)
        footprint, plan = entry.derived.footprint, entry.derived.plan
        values = dict(zip(CELL, cell, strict=False))
        assert VERDICTS[values["verdict"]] == footprint.verdict
        assert values["micro_batch"] == footprint.micro_batch
        assert values["accumulation"] == len(plan.micro_batches)
        assert values["peak_mib"] * MIB == pytest.approx(footprint.driver.value, rel=1e-5)
        assert values["peak_high_mib"] * MIB == pytest.approx(footprint.driver.high, rel=1e-5)
        made = {choice.name: choice.value for choice in plan.choices}
        assert found.ways[values["how"]] == [made[name] for name in HOW]
        assert ("step_s" in values) is (footprint.verdict != "does not fit")
        if "step_s" in values:
            assert values["step_s"] == pytest.approx(plan.predicted["step_time_s"].value, rel=1e-5)


def test_what_does_not_fit_has_no_time(found: Tables) -> None:
    on_t4 = found.tables["4096/8/1000000"][0]

    assert VERDICTS[on_t4[0]] == "does not fit"
    assert len(on_t4) == CELL.index("step_s")


def test_what_cannot_be_planned_for_is_left_out_with_its_reason() -> None:
    found = tables_of(
        [Question("openai-community/gpt2", "lora", 4096, 8, 1_000_000)],
        DEVICES,
        lambda question: None,
    )

    assert found.tables == {}
    assert "1024" in found.left_out["4096/8/1000000"]


def test_a_reason_takes_the_place_of_a_cell_where_nothing_can_be_said() -> None:
    found = Tables("a/model", "lora")

    cells = [
        found.cell(Unplanned(catalog.get("Tesla T4"), reason))
        for reason in ("no kernel", "no memory", "no kernel")
    ]

    assert cells == [0, 1, 0]
    assert found.reasons == ["no kernel", "no memory"]


def test_a_table_like_an_earlier_one_is_its_name() -> None:
    question = QUESTIONS[0]

    found = tables_of([question, question._replace(tokens=11_000_000)], DEVICES, lambda *_: None)

    assert found.tables["512/16/11000000"] == "512/16/10000000"


def test_an_encoder_has_no_adapters_here() -> None:
    question = Question("google-bert/bert-base-uncased", "lora", 512, 16, 10_000_000)

    found = tables_of([question], DEVICES, lambda *_: None)

    assert "encoder" in found.left_out[key_of(question)]
