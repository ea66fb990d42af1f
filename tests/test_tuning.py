"""Published models tuned through the same loop, checkpoints and run folder as any other run."""

import json
import re
import signal
import weakref
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import newest_of, records_of, train
from fixture_types import MakeRecipe, Refuses
from json_lines import write_rows
from killed import in_a_child, kill_at
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file
from syrupy.assertion import SnapshotAssertion
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from brimful.base.errors import (
    BrimfulError,
    CheckpointError,
    DataError,
    PlanError,
    RecipeError,
    RequestError,
    RunFolderError,
)
from brimful.base.rundir import read_json
from brimful.chains import pipeline, plans, run_plan, scoring, study, training_session
from brimful.chains.measured_phases import phases_beside_measured
from brimful.chains.phases import Member
from brimful.chains.task_scores import EvaluationRequest
from brimful.generation.export import export
from brimful.generation.export_gguf import export_gguf
from brimful.generation.load import load_run, load_untuned
from brimful.generation.sampler import GREEDY, SamplingSettings
from brimful.generation.samples import draw_samples
from brimful.kinds import examples, finished, run_data
from brimful.kinds.run_data import gather
from brimful.model.gguf_file import read_gguf
from brimful.planning.pinned import save_plans
from brimful.planning.plan import BaseScoring
from brimful.recipe import Recipe
from brimful.recipe import load as load_recipe
from brimful.report.base_to_tuned import base_to_tuned
from brimful.report.model_card import model_card
from brimful.report.page import headline
from brimful.runs.folder import read_run
from brimful.runs.measurements import stage_times_s
from brimful.runs.side_by_side import read_side_by_side
from brimful.training import loop
from brimful.training.admission import holds_no_work, status_of
from brimful.training.checkpoint import differences

pytestmark = pytest.mark.filterwarnings("ignore")  # peft and bitsandbytes warn about themselves

CPU = torch.device("cpu")
MANNERS = {
    "lora": [],
    "qlora": ["quantize=nf4"],
    "full": ["adapter=null", "optimizer.learning_rate=1e-3"],
    "tokens": ["data.added_tokens=[<search>]"],
    "bf16": [
        "adapter=null",
        "plan.precision=bf16",
        "optimizer.weights=bf16",
        "optimizer.kind=adamw_8bit",
    ],
}


def _validation_losses(folder: Path) -> list[float]:
    return [record["loss"] for record in records_of(folder, "evaluation")]


def test_tuning_lowers_the_loss_of_held_out_answers(tuning: MakeRecipe) -> None:
    folder = train(tuning("training.steps=24", "evaluation.every=8"))
    losses = _validation_losses(folder)

    assert losses == sorted(losses, reverse=True)
    assert (
        losses[-1]
        < scoring.evaluate(folder, Console(file=StringIO()), untuned=True)["validation"]["loss"]
        - 0.3
    )


@pytest.mark.parametrize(
    ("recipes", "manner"),
    [*(("tuning", manner) for manner in MANNERS), ("continuing", "lora")],
)
@pytest.mark.long_but("tuning-lora", "tuning-full", "continuing-lora")
def test_killed_runs_end_bit_for_bit_like_undisturbed_ones(
    request: pytest.FixtureRequest, recipes: str, manner: str
) -> None:
    tuning: MakeRecipe = request.getfixturevalue(recipes)
    options = ["checkpoint.every=2", *MANNERS[manner]]
    undisturbed = train(tuning("run.name=undisturbed", *options))
    recipe = tuning("run.name=killed", *options)
    _killed_at(recipe, loop, "guarded_update", 6)

    folder = train(recipe)

    assert differences(newest_of(folder), newest_of(undisturbed)) == []
    is_whole = manner in {"full", "bf16"}
    weights = "model.safetensors" if is_whole else "adapter_model.safetensors"
    assert (folder / "model" / weights).read_bytes() == (
        undisturbed / "model" / weights
    ).read_bytes()


def test_how_a_step_is_cut_does_not_change_what_is_learned(tuning: MakeRecipe) -> None:
    changes = {
        "padded": "plan.packing=padded",
        "one-by-one": "plan.micro_batch=1",
        "recomputed": "plan.recompute=true",
        "short-chunks": "plan.loss_chunk=16",
    }
    packed = newest_of(train(tuning("run.name=packed"))).tensors["model"]

    for run, change in changes.items():
        other = newest_of(train(tuning(f"run.name={run}", change))).tensors["model"]
        for name, weight in packed.items():
            torch.testing.assert_close(
                other[name],
                weight,
                rtol=1e-3,
                atol=1e-4,
                msg=lambda text, run=run, name=name: f"{run}, {name}: {text}",
            )


@pytest.mark.parametrize(
    "manner", [["adapter=null"], ["quantize=nf4"]], ids=["all weights", "adapters on 4 bits"]
)
@pytest.mark.long_but("all weights")
def test_keeping_outputs_of_expensive_operators_gives_the_same_bits(
    tuning: MakeRecipe, manner: list[str]
) -> None:
    selective = ("run.name=selective", "plan.recompute=selective")
    plain = newest_of(train(tuning("run.name=plain", "plan.recompute=false", *manner)))

    assert differences(newest_of(train(tuning(*selective, *manner))), plain) == []


def test_a_saved_plan_keeps_its_choices_and_counts_the_tokens_of_the_examples(
    tuning: MakeRecipe, tmp_path: Path
) -> None:
    """It was made before the data were read, when four examples of at most 128 tokens counted as
    four times 128.
    """
    long = ("sequence_length=128", "training={tokens: 1280}")
    recipe = tuning(*long, "plan.micro_batch=1", "plan.loss_chunk=16")
    saved = plans.plan(recipe)
    save_plans(tmp_path / "plan.json", recipe, {"": saved})

    folder = train(tuning(*long), plan_file=tmp_path / "plan.json")
    plan = run_data.plan_of(folder)

    assert (saved.effective_batch, saved.total_steps) == (4, 2)
    assert (plan.effective_batch < 4, plan.micro_batches[0], plan.loss_chunk) == (True, 1, 16)
    assert len(records_of(folder, "step")) == plan.total_steps > 2


def test_what_an_optimizer_step_sees_is_told_in_examples_and_as_the_plan_counts_it(
    tuning: MakeRecipe,
) -> None:
    told = StringIO()
    recipe = tuning("training.steps=1", "sequence_length=128")
    pipeline.train(recipe, Console(file=told, width=200), explain=True)

    assert "an optimizer step sees 4 examples, about" in told.getvalue()
    assert "the plan counts them as full sequences, 2 of 128" in told.getvalue()


def test_speed_counts_the_tokens_of_the_examples_without_what_full_sequences_would_hold(
    tuning: MakeRecipe,
) -> None:
    folder = train(tuning("sequence_length=128", "training.steps=3"))
    split = read_json(folder / "data.json")["splits"]["train"]
    tokens = 4 * (split["tokens"] / split["examples"] - 1)
    (start,), steps = (records_of(folder, kind) for kind in ("start", "step"))

    assert start["tokens_per_step"] == pytest.approx(tokens, abs=0.5)
    assert steps[-1]["tokens_per_second"] * steps[-1]["step_time_s"] == pytest.approx(
        tokens, abs=0.5
    )


@pytest.mark.parametrize("manner", ["qlora", "full"])
def test_a_tokenizer_longer_than_the_embedding_is_harmless_where_no_text_needs_it(
    tuning: MakeRecipe, base_model: Path, examples_file: Path, manner: str, refuses: Refuses
) -> None:
    """Such a run is scored, answers and is exported; a text that needs the token is refused before
    the first step, and trains once the token is taken out of it.
    """
    _add_token(base_model, "<extra>")
    before = examples_file.read_text()
    recipe = tuning(*MANNERS[manner])
    examples_file.write_text(before.replace("Say ", "Say <extra> ", 1))
    with refuses(DataError, names=["'<extra>'", "id 280", "1 x", "280 rows"]):
        train(recipe)
    assert holds_no_work(pipeline.folder_of(recipe))
    examples_file.write_text(before)

    folder = train(recipe)

    assert status_of(folder) == "finished"
    assert scoring.evaluate(folder, Console(file=StringIO()))["validation"]["loss"] > 0
    exported = export(folder, merge=manner != "full").folder
    assert len(AutoTokenizer.from_pretrained(exported)) == 281
    loaded = load_run(folder, CPU, torch.float32)
    assert draw_samples(loaded, "Say red.", GREEDY, max_new_tokens=2, count=1, seed=0)


def _add_token(base_model: Path, token: str) -> None:
    longer = AutoTokenizer.from_pretrained(base_model)
    longer.add_tokens([token])
    longer.save_pretrained(base_model)


def test_a_sample_that_cannot_be_written_does_not_take_the_run_away(
    tuning: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    """Only a note says that there is none."""
    told = StringIO()
    recipe = tuning("training.steps=1", f"sample.prompt={'red ' * 200}")

    folder = pipeline.train(recipe, Console(file=told, width=200)).folder

    assert status_of(folder) == "finished"
    assert [line for line in told.getvalue().splitlines() if "B325" in line] == snapshot
    assert not (folder / "samples.jsonl").exists()


def test_a_model_that_cannot_be_loaded_leaves_its_runs_name_free(
    tuning: MakeRecipe, base_model: Path
) -> None:
    weights = base_model / "model.safetensors"
    weights.rename(base_model / "model.bin")
    with pytest.raises(PlanError, match="safetensors"):
        train(tuning("training.steps=1"))
    (base_model / "model.bin").rename(weights)

    assert train(tuning("training.steps=1", "adapter.rank=2")).name == "tuned"


def test_scores_of_weights_that_training_replaced_are_gone(tuning: MakeRecipe) -> None:
    folder = train(tuning("training.steps=1"))
    scoring.evaluate(folder, Console(file=StringIO()))
    scored = [(folder / name).exists() for name in ("scores.json", "evaluations")]

    train(tuning("training.steps=2"), accept=["training"])

    assert scored == [True, True]
    assert not any((folder / name).exists() for name in ("scores.json", "evaluations"))


@pytest.mark.parametrize(
    ("template", "asked"), [("auto", "<user>Say 3\n<assistant>"), ("plain", "Say 3")]
)
def test_a_prompt_is_asked_in_training_generation_and_export_alike(
    tuning: MakeRecipe, base_model: Path, tmp_path: Path, template: str, asked: str
) -> None:
    """Rows are text, and the tokenizer has a chat template."""
    (base_model / "chat_template.jinja").write_text(
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    rows = [{"prompt": f"Say {number}", "completion": " yes"} for number in range(30)]
    pairs = tmp_path / "pairs.jsonl"
    write_rows(pairs, rows)
    recipe = tuning(f"data.path={pairs}", f"data.template={template}", "training.steps=1")
    split = gather(recipe, str(base_model)).splits["train"]
    number = [example.where for example in split.examples].index(f"{pairs}:4")
    folder = train(recipe)
    tuned = load_run(folder, CPU, torch.float32)
    ids = tuned.prompt_ids("Say 3")

    assert tuned.tokenizer.decode(ids) == asked
    assert load_untuned(folder, CPU).prompt_ids("Say 3") == ids
    trained = split.tokens_N[split.offsets_E[number] : split.offsets_E[number + 1]].tolist()
    assert trained[: len(ids)] == ids
    if template == "auto":
        turns = [{"role": "user", "content": "Say 3"}]
        exported = AutoTokenizer.from_pretrained(folder / "model")
        text = exported.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert text == asked


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_every_export_stops_where_a_turn_ends_and_at_end_of_text(
    tuning: MakeRecipe, base_model: Path, tmp_path: Path
) -> None:
    """The base's own configuration knows end-of-text alone."""
    tokenizer = AutoTokenizer.from_pretrained(base_model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(base_model)
    base = AutoModelForCausalLM.from_pretrained(base_model)
    base.resize_token_embeddings(len(tokenizer))
    base.save_pretrained(base_model)
    end, stop = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")
    more = ["training.steps=1", "sample.stop=[r]"]
    letter = tokenizer.convert_tokens_to_ids("r")
    run = train(tuning(*more))
    full = train(tuning(*more, "adapter=null", "run.name=full"))

    exported = [export(run), export(run, merge=True), export(full)]
    ends = {run / "model": [end, stop], full / "model": [end, stop]}
    ends |= {each.folder: [end, *sorted([stop, letter])] for each in exported}
    for folder, ids in ends.items():
        config = GenerationConfig.from_pretrained(folder)
        assert config.eos_token_id == ids, folder
        config.max_new_tokens = 4
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        likeliest = torch.nn.functional.one_hot(torch.tensor(stop), len(tokenizer))
        model.get_output_embeddings().bias = torch.nn.Parameter(10_000.0 * likeliest)
        # A model with adapters gets the base's configuration from transformers by itself.
        made = model.generate(torch.tensor([[5, 6]]), config)
        assert made[0].tolist() == [5, 6, stop]
    for each in (run, full):
        found = read_gguf(export_gguf(each, "f32").folder).metadata
        assert found["tokenizer.ggml.eos_token_id"] == end
        assert found["tokenizer.ggml.eot_token_id"] in (stop, letter)


def test_an_own_chat_template_is_trained_by_and_stored_with_the_model(
    tuning: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    """Also its options, as defaults; base, export and next session ask alike."""
    file = tmp_path / "own.jinja"
    file.write_text(
        "{% for m in messages %}({{ m.role }}){{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}(assistant){% if loud %}!{% endif %}{% endif %}"
    )
    recipe = tuning(
        f"data.chat_template={file}", "data.template_options={loud: true}", "training.steps=2"
    )
    asked = "(user)Say red.\n(assistant)!"
    with refuses(DataError, names=["message 2"]):  # answers do not begin with !
        train(recipe)
    file.write_text(
        file.read_text().replace(
            "{{ m.content", "{% if loud and loop.index0 % 2 %}!{% endif %}{{ m.content"
        )
    )
    folder = train(recipe)
    turns = [{"role": "user", "content": "Say red."}]
    for place in (folder / "model", export(folder, merge=True).folder):
        exported = AutoTokenizer.from_pretrained(place)
        options = {"tokenize": False, "add_generation_prompt": True}
        assert exported.apply_chat_template(turns, **options) == asked
        assert exported.apply_chat_template(turns, loud=False, **options) == asked[:-1]
    file.unlink()
    for loaded in (load_run(folder, CPU, torch.float32), load_untuned(folder, CPU)):
        assert loaded.tokenizer.decode(loaded.prompt_ids("Say red.")) == asked
    longer = recipe.model_copy(update={"training": recipe.training.model_copy(update={"steps": 4})})
    with refuses(DataError, names=["data.chat_template", "own.jinja"]):
        train(longer, accept=["training"])
    file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{# loud #}")
    with pytest.raises(RunFolderError, match=r"the data of .* changed"):
        train(longer, accept=["training"])


@pytest.mark.parametrize(
    ("manner", "tied"), [("lora", True), ("qlora", False), ("full", True), ("full", False)]
)
def test_added_tokens_are_learned_and_load_elsewhere_with_the_same_text(
    tuning: MakeRecipe, base_model: Path, examples_file: Path, manner: str, tied: bool
) -> None:
    """Their rows of embedding and head are trained and exported; peft and transformers write the
    same text by them.
    """
    _tie(base_model, tied=tied)
    examples_file.write_text(examples_file.read_text().replace("red", "<search>"))
    recipe = tuning(
        *MANNERS[manner], "data.added_tokens=[<search>, <done>]", "optimizer.learning_rate=1e-2"
    )
    folder = train(recipe)
    tuned = load_run(folder, CPU, torch.float32)
    ids = tuned.prompt_ids("Say <search>.")
    rows = tuned.tokenizer.convert_tokens_to_ids(["<search>", "<done>"])
    assert rows == [280, 281]
    assert rows[0] in tuned.tokenizer("<search>").input_ids
    for layer in (tuned.model.get_input_embeddings(), tuned.model.get_output_embeddings()):
        assert layer.weight.shape[0] == 282
        assert not torch.equal(layer.weight[280], layer.weight[281])

    def greedy(model: Any) -> list[int]:
        settings = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
        return list(model.generate(torch.tensor([ids]), **settings)[0].tolist())

    said = greedy(tuned.model)
    if manner == "lora":
        assert said == greedy(_loaded_as_told(folder))
    if manner != "full":
        assert not (set(_weights_of(folder)) & {"model.embed_tokens.weight", "lm_head.weight"})
    exported = export(folder, merge=manner != "full").folder
    assert len(AutoTokenizer.from_pretrained(exported)) == 282
    merged = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    if manner != "qlora":  # merged into weights that are not in 4 bits
        assert said == greedy(merged)
    assert merged.config.vocab_size == 282
    assert merged.config.tie_word_embeddings is tied
    base = load_untuned(folder, CPU)
    assert base.model.get_input_embeddings().weight.shape[0] == 280


def _loaded_as_told(folder: Path) -> Any:
    """The model of adapters that the code of the page loads, which that of the card does, too."""
    run, made = read_run(folder), {}
    told = {each.purpose: each.text for each in headline.commands(run)}["Load it in Python"]
    card = model_card(run, "ada/tuned", ["adapter_config.json"])
    code = card.split("```python\n")[1].split("```")[0].replace("ada/tuned", f"{folder}/model")
    assert code.startswith(told)
    exec(code, made)  # noqa: S102 - the project's own
    return made["model"]


def _tie(base_model: Path, *, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    config = AutoModelForCausalLM.from_pretrained(base_model).config
    torch.manual_seed(0)
    config.tie_word_embeddings = tied
    AutoModelForCausalLM.from_config(config).save_pretrained(base_model)


def _weights_of(folder: Path) -> list[str]:
    with safe_open(folder / "model" / "adapter_model.safetensors", framework="pt") as file:
        return [name.removeprefix("base_model.model.") for name in file.keys()]  # noqa: SIM118


def test_the_trained_model_is_gone_before_the_sample_loads_it_again(
    tuning: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, load, trained, alive = training_session.run_session, finished.load_run, [], []

    def session(setup: Any) -> Any:
        trained.append(weakref.ref(setup.model))
        return real(setup)

    def load_again(*arguments: Any) -> Any:
        alive.append(trained[0]() is not None)
        return load(*arguments)

    monkeypatch.setattr(training_session, "run_session", session)
    monkeypatch.setattr(finished, "load_run", load_again)
    train(tuning("training.steps=1"), writes=True)

    assert alive == [False]


@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit"])
@pytest.mark.long_but("adamw")
def test_weights_that_train_in_bf16_are_kept_and_exported_in_it(
    tuning: MakeRecipe, kind: str
) -> None:
    changes = ["adapter=null", "optimizer.learning_rate=1e-3", f"optimizer.kind={kind}"]
    lengths = ["training.steps=24", "evaluation.every=8", "plan.precision=bf16"]
    plain, folder = (
        train(tuning(f"run.name={weights}", f"optimizer.weights={weights}", *changes, *lengths))
        for weights in ("fp32", "bf16")
    )
    losses = _validation_losses(folder)

    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(_validation_losses(plain)[-1], abs=0.15)
    assert {value.dtype for value in newest_of(folder).tensors["model"].values()} == {
        torch.bfloat16
    }
    exported = load_file(folder / "model" / "model.safetensors")
    assert {value.dtype for value in exported.values()} == {torch.bfloat16}


def test_a_checkpoint_of_adapters_holds_no_frozen_weight(
    tuning: MakeRecipe, continuing: MakeRecipe
) -> None:
    for recipe in (tuning(), continuing()):
        names = newest_of(train(recipe)).tensors["model"]

        assert names
        assert all("lora_" in name for name in names)


def test_a_tuned_run_answers_as_it_was_trained_and_the_untuned_model_is_still_there(
    tuning: MakeRecipe,
) -> None:
    folder = train(tuning())
    tuned, untuned = load_run(folder, CPU, torch.float32), load_untuned(folder, CPU)
    ids = torch.tensor([tuned.prompt_ids("Say red twice.")])

    assert tuned.takes_messages
    assert ids.tolist() == [untuned.prompt_ids("Say red twice.")]
    assert not torch.equal(tuned.model(ids).logits, untuned.model(ids).logits)


def test_a_base_that_changed_is_refused_by_the_next_session_and_by_generation(
    tuning: MakeRecipe, base_model: Path
) -> None:
    folder = train(tuning("training.steps=4"))
    from transformers import AutoModelForCausalLM

    other = AutoModelForCausalLM.from_pretrained(base_model)
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    other.save_pretrained(base_model)

    with pytest.raises(RunFolderError, match="has changed since"):
        load_run(folder, CPU, torch.float32)
    with pytest.raises(CheckpointError, match="another base model"):
        train(tuning(), accept=["training"])


def test_a_base_whose_config_changed_is_refused_by_the_next_session(
    tuning: MakeRecipe, base_model: Path
) -> None:
    train(tuning("training.steps=4"))
    config = json.loads((base_model / "config.json").read_text())
    config["rms_norm_eps"] *= 1000
    (base_model / "config.json").write_text(json.dumps(config))

    with pytest.raises(CheckpointError, match="another base model"):
        train(tuning(), accept=["training"])


def test_facts_of_a_tuned_run_name_its_base_and_what_was_dropped(
    tuning: MakeRecipe, base_model: Path, examples_file: Path
) -> None:
    with examples_file.open("a") as file:
        file.write(json.dumps({"instruction": "Say red often.", "output": "red " * 200}) + "\n")

    facts = read_json(train(tuning()) / "data.json")

    assert facts["base"]["source"] == str(base_model)
    assert sum(split["dropped"] for split in facts["splits"].values()) == 1
    assert facts["prompts"] == "messages"


@pytest.mark.parametrize("manner", ["lora", "full"])
def test_pre_training_goes_on_from_a_published_model(
    continuing: MakeRecipe, manner: str, snapshot: SnapshotAssertion
) -> None:
    """It is scored beside its base, in bits per byte too, continues text and is exported."""
    recipe = continuing("training.steps=24", "evaluation.base=always", *MANNERS[manner])
    report = pipeline.run(recipe, Console(file=StringIO()))
    folder = report.parent
    before = scoring.evaluate(folder, Console(file=StringIO()), untuned=True)["validation"]
    after = read_json(folder / "scores.json")["validation"]

    assert after["bits_per_byte_interval"][1] < before["bits_per_byte_interval"][0]
    assert after["tokens"] == before["tokens"]
    (base,) = records_of(folder, "base")
    assert base["loss"] == pytest.approx(before["loss"], abs=1e-3)
    compared = base_to_tuned(read_run(folder))
    assert compared is not None
    assert [(each.name, each.before.unit) for each in compared.scores] == snapshot
    assert all(each.before.interval and each.after.interval for each in compared.scores)
    assert [pair.prompt for pair in compared.samples] == ["Say red twice."]
    loaded, untuned = load_run(folder, CPU, torch.float32), load_untuned(folder, CPU)
    ids = loaded.prompt_ids("# story")
    assert loaded.template is None
    assert loaded.tokenizer.decode(ids) == "# story"
    assert ids == untuned.prompt_ids("# story")
    exported = load_file(export(folder, merge=manner != "full").folder / "model.safetensors")
    assert exported.keys() >= {"model.embed_tokens.weight"}
    page = " ".join(re.sub(r"<[^>]*>", " ", report.read_text()).split())
    assert "bits per byte" in page
    assert "Learned whole documents" in page


def test_continued_pre_training_needs_the_text_alone(
    base_model: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the shipped recipe; a method that reads no published model says so."""
    monkeypatch.chdir(corpus.parent)
    corpus.rename("text.txt")
    few = ["training.epochs=null", "training.steps=2", "sequence_length=64", "batch.sequences=4"]
    few += ["sample.tokens=4", "plan.precision=fp32", "data.document_start=^# story"]
    told = StringIO()

    recipe = load_recipe("continue-text", [f"model={base_model}", *few])
    folder = pipeline.train(recipe, Console(file=told, width=80)).folder

    assert (folder / "model" / "model.safetensors").exists()
    assert "before tuning (base) -> after" in told.getvalue()
    with pytest.raises(RecipeError, match="needs a recipe that describes a fresh model"):
        train(load_recipe("continue-text", [f"model={base_model}", "method=mlm", "name=other"]))


def test_a_model_that_another_recipe_trains_is_trained_first(
    tuning: MakeRecipe, tiny: MakeRecipe, tmp_path: Path
) -> None:
    first = tmp_path / "first.yaml"
    first.write_text(tiny("training.steps=3", "model.context=64", "name=first").to_yaml())
    recipe = tuning(f"model=recipe:{first}", "training.steps=2")

    folder = train(recipe)

    assert (folder.parent / "first" / "model" / "model.safetensors").exists()
    assert read_json(folder / "data.json")["base"]["source"] == str(
        (folder.parent / "first" / "model").resolve()
    )
    before, own = phases_beside_measured(recipe, None, [Member("", recipe)])
    assert (before["name"], own["name"]) == ("training of first", "training")
    took = stage_times_s(read_run(folder.parent / "first"))["total_time_s"]
    assert before["measured_s"] == took
    assert before["expected_s"] > 0


BAD = {
    "targets that match nothing": (
        ["adapter.targets=[q_prj]"],
        RecipeError,
        r"no linear layer is named q_prj.*q_proj",
    ),
    "the output head": (["adapter.targets=[lm_head]"], RecipeError, "output head"),
    "sequences longer than the model reads": (
        ["sequence_length=256"],
        PlanError,
        "above the 128 positions",
    ),
    "a stop token that does not exist": (["sample.stop=[<|im_end|>]"], DataError, "im_end"),
    "missing columns": (["data.format=messages"], DataError, "instruction, output"),
    "a model that is nowhere": (["model=./nowhere"], PlanError, "nowhere"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_error_and_leaves_nothing_half_done(
    tuning: MakeRecipe, what: str
) -> None:
    changes, kind, message = BAD[what]

    with pytest.raises(BrimfulError, match=message) as caught:
        train(tuning(*changes))
    assert isinstance(caught.value, kind)
    assert caught.value.exit_code == 2


def test_an_empty_answer_is_told_with_its_row(
    tuning: MakeRecipe, examples_file: Path, refuses: Refuses
) -> None:
    with open(examples_file, "a") as file:
        file.write(json.dumps({"instruction": "Say nothing.", "output": " "}) + "\n")

    with refuses(DataError, names=["61"]):
        train(tuning())


@pytest.mark.parametrize(
    "asked", ["evaluation.tasks=[humanevall]", "evaluation.data={humanevall: problems.jsonl}"]
)
def test_a_task_that_there_is_not_is_told_before_anything_is_trained(
    tuning: MakeRecipe, asked: str, refuses: Refuses
) -> None:
    recipe = tuning(asked)
    with refuses(RequestError, names=["'humanevall'", "'humaneval'"]):
        train(recipe)
    assert not pipeline.folder_of(recipe).exists()


def test_task_data_that_cannot_be_read_are_told_before_anything_is_trained(
    tuning: MakeRecipe, refuses: Refuses
) -> None:
    recipe = tuning(
        "evaluation.tasks=[code-syntax, humaneval]", "evaluation.data={humaneval: nowhere.jsonl}"
    )
    with refuses(DataError, names=["nowhere.jsonl"]):
        pipeline.run(recipe, Console(file=StringIO()))
    assert not pipeline.folder_of(recipe).exists()


def test_a_whole_run_ends_with_its_scores(tuning: MakeRecipe, refuses: Refuses) -> None:
    told = StringIO()
    report = pipeline.run(tuning("evaluation.tasks=[code-syntax]"), Console(file=told, width=160))
    assert report.exists()
    assert told.getvalue().index("every token scored once") < told.getvalue().index(
        "code-syntax\nasked through its template"
    )
    with refuses(RequestError, names=["'code_syntax'"]):
        scoring.evaluate(
            report.parent,
            Console(file=StringIO()),
            request=EvaluationRequest(paths={"code_syntax": "examples.jsonl"}),
        )
    with refuses(RequestError, names=["--ask"]):
        scoring.evaluate(report.parent, Console(), request=EvaluationRequest(ask="plain"))
    asked = EvaluationRequest(
        ("code-syntax",), max_examples=2, samples=3, temperature=0.8, max_new_tokens=5
    )
    sampled = scoring.evaluate(report.parent, Console(file=StringIO()), request=asked)["tasks"][
        "code-syntax"
    ]
    assert (
        sampled["n"],
        sampled["samples"],
        sampled["temperature"],
        sampled["max_new_tokens"],
        sum(sampled["errors"].values()) <= 6,
    ) == (2, 3, 0.8, 5, True)
    for wrong, said in (
        (("code-syntax",), "set a temperature above 0"),
        (("lm-eval:gsm8k",), "tasks of lm-eval set their own sampling"),
    ):
        with pytest.raises(RequestError, match=said):
            scoring.evaluate(
                report.parent,
                Console(file=StringIO()),
                request=EvaluationRequest(wrong, samples=3),
            )


def test_the_recipe_for_own_examples_needs_their_file_alone(
    base_model: Path, examples_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here with a tiny model and few steps. It shows what it answers to a held-out prompt."""
    monkeypatch.chdir(examples_file.parent)
    examples_file.rename("pairs.jsonl")
    few = ["training.epochs=null", "training.steps=2", "sequence_length=64", "sample.tokens=4"]
    few.append("plan.precision=fp32")  # a step that other tests trace, too
    told = StringIO()

    pipeline.train(load_recipe("lora", [f"model={base_model}", *few]), Console(file=told, width=80))

    assert re.search(r"sample after 'Say \w+ \d times, number \d+\.':", told.getvalue())
    assert "before tuning (base) -> after" in told.getvalue()


def _weights(folder: Path) -> bytes:
    return (folder / "model" / "adapter_model.safetensors").read_bytes()


def test_scoring_the_base_does_not_change_what_is_learned(tuning: MakeRecipe) -> None:
    """Not even with dropout, whose random numbers come from the same generator."""
    options = ("adapter.dropout=0.3", "checkpoint.every=2")
    never = train(tuning("run.name=never", "evaluation.base=never", *options))
    always = train(tuning("run.name=always", "evaluation.base=always", *options))

    assert differences(newest_of(always), newest_of(never)) == []
    assert _weights(always) == _weights(never)
    assert _validation_losses(always) == _validation_losses(never)
    assert not records_of(never, "base")
    assert not (never / "side_by_side.jsonl").exists()


@pytest.mark.long_but("lora", "full")
@pytest.mark.parametrize("manner", ["lora", "qlora", "full", "tokens", "bf16"])
def test_the_loss_before_the_first_step_is_the_published_models(
    tuning: MakeRecipe, manner: str
) -> None:
    told = StringIO()
    recipe = tuning("evaluation.base=always", "plan.precision=fp32", *MANNERS[manner])
    folder = pipeline.train(recipe, Console(file=told, width=80)).folder
    (record,) = records_of(folder, "base")
    untuned = scoring.evaluate(folder, Console(file=StringIO()), untuned=True)["validation"]

    assert (record["step"], record["model"], record["share"]) == (0, "base", 1.0)
    assert record["loss"] == pytest.approx(untuned["loss"], rel=2e-3)
    pairs = read_side_by_side(folder)
    assert pairs[0].prompt == "Say red twice."
    assert len(pairs) == 3
    assert pairs[1].reference
    with_base = load_untuned(folder, CPU)
    greedy = SamplingSettings(temperature=0.0, top_k=None, top_p=1.0)
    for loaded, answer in (
        (with_base, pairs[0].base),
        (load_run(folder, CPU, torch.float32), pairs[0].tuned),
    ):
        (sample,) = draw_samples(
            loaded, "Say red twice.", greedy, max_new_tokens=8, count=1, seed=0
        )
        assert sample.completion == answer
    last = told.getvalue().rstrip().splitlines()[-6:]
    assert last[0].startswith("before tuning (base)")
    for loss in (record["loss"], min(_validation_losses(folder))):
        assert f" {loss:.3f} nats/token" in last[2]
    assert all(len(line) <= 80 for line in last)


def test_a_base_scored_on_few_sequences_is_compared_on_the_same_ones(
    tuning: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_plan.settle_plan

    def few(*arguments: Any) -> Any:
        plan, notes = real(*arguments)
        return replace(plan, base=BaseScoring(0.5)), notes

    monkeypatch.setattr(pipeline, "settle_plan", few)
    folder = train(tuning("training.steps=24", "evaluation.every=8"))
    base, tuned = records_of(folder, "base")
    count = gather(tuning(), str(tuning().model)).validation_count

    assert [each["model"] for each in (base, tuned)] == ["base", "tuned"]
    assert base["tokens"] == tuned["tokens"]
    assert tuned["loss"] < base["loss"] - 0.3
    assert count > 2
    found = base_to_tuned(read_run(folder))
    assert found is not None
    (loss,) = found.scores
    assert (loss.before.value, loss.after.value) == (base["loss"], tuned["loss"])
    assert loss.about == "50% of the validation sequences"


def _killed_at(recipe: Recipe, target: object, name: str, call: int) -> None:
    """Train in a child, which is killed at the given use of a function."""

    def act() -> None:
        kill_at(target, name, call)
        train(recipe, writes=True)

    assert in_a_child(act) == signal.SIGKILL


KILLS: dict[str, tuple[object, str, int]] = {
    "in the base's evaluation": (examples, "score_examples", 1),
    "after it, before a checkpoint": (loop, "guarded_update", 2),
    "after a checkpoint": (loop, "guarded_update", 6),
    "before the samples": (finished, "write_side_by_side", 1),
}


@pytest.mark.long
def test_a_run_killed_around_the_scoring_of_its_base_ends_like_an_undisturbed_one(
    tuning: MakeRecipe,
) -> None:
    options = ["checkpoint.every=4", "evaluation.base=always", "adapter.dropout=0.3"]
    undisturbed = train(tuning("run.name=undisturbed", *options), writes=True)
    (expected,) = records_of(undisturbed, "base")
    for number, (place, kill) in enumerate(KILLS.items()):
        recipe = tuning(f"run.name=killed{number}", *options)
        _killed_at(recipe, *kill)
        before = records_of(pipeline.folder_of(recipe), "base")
        assert (not before) is (number == 0), place

        folder = train(recipe, writes=True)

        assert differences(newest_of(folder), newest_of(undisturbed)) == [], place
        assert _weights(folder) == _weights(undisturbed)
        (record,) = records_of(folder, "base")
        if before:
            assert record == before[0], f"it was scored again: {place}"
        assert record["loss"] == expected["loss"]
        pairs, wanted = read_side_by_side(folder), read_side_by_side(undisturbed)
        assert [replace(each, seconds=None) for each in pairs] == [
            replace(each, seconds=None) for each in wanted
        ]


def test_the_tasks_of_base_and_tuned_model_stand_beside_each_other_and_are_scored_once(
    tuning: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tuning(
        "evaluation.tasks=[code-syntax]", "evaluation.max_examples=4", "evaluation.base=always"
    )
    told = StringIO()
    report = pipeline.run(recipe, Console(file=told, width=80))
    folder = report.parent

    found = base_to_tuned(read_run(folder))
    assert found is not None
    names = [each.name for each in found.scores]
    assert names == ["held-out loss", "code-syntax: syntax"]
    assert all(each.before.interval and each.after.interval for each in found.scores[1:])
    assert "\nbefore tuning (base) -> after" in told.getvalue()
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "evaluate_into", None)
        pipeline.run(recipe, Console(file=StringIO()))


def test_a_study_scores_its_base_once_for_all_members(tuning: MakeRecipe) -> None:
    recipe = tuning("study={variants: {a: [], b: [adapter.rank=2]}}")
    folder = study.run_study(recipe, Console(file=StringIO())).parent

    for name in ("a", "b"):
        assert not records_of(folder / name, "base")
        found = base_to_tuned(read_run(folder / name))
        assert found is not None
        assert [each.name for each in found.scores] == ["held-out loss"]
