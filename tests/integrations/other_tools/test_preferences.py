"""Files of other tools that train on preferences: rows of both answers, passes of the reference, the
section of a recipe.
"""

from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.integrations.other_tools.as_recipe import recipe_text
from brimful.integrations.other_tools.job import ReadJob, TrainingJob, read_job
from brimful.integrations.other_tools.recognise import recognised, tool_named
from brimful.recipe import load_text

MODEL = "meta-llama/Llama-3.2-1B"
FILES: dict[str, JsonDict] = {
    "trl": {
        "model_name_or_path": MODEL,
        "use_peft": True,
        "per_device_train_batch_size": 4,
        "beta": 0.2,
    },
    "axolotl": {
        "base_model": MODEL,
        "adapter": "lora",
        "lora_r": 8,
        "lora_target_linear": True,
        "micro_batch_size": 4,
        "rl": "dpo",
        "rl_beta": 0.2,
    },
    "llama_factory": {
        "model_name_or_path": MODEL,
        "stage": "dpo",
        "per_device_train_batch_size": 4,
        "pref_beta": 0.2,
        "cutoff_len": 512,
    },
}
FULL: dict[str, JsonDict] = {
    "trl": {"use_peft": None},
    "axolotl": {"adapter": None, "flash_attention": True},
    "llama_factory": {"finetuning_type": "full"},
}


def read(name: str, **changes: Any) -> ReadJob:
    return read_job(tool_named(name), {**FILES[name], **changes})


def job_of(name: str, **changes: Any) -> TrainingJob:
    job = read(name, **changes).job
    assert job is not None
    return job


@pytest.mark.parametrize("name", FILES)
def test_a_pass_holds_both_answers_and_the_reference_reads_them_too(name: str) -> None:
    """Adapters are switched off for that; where all weights are trained it is a second model."""
    job, full = job_of(name), job_of(name, **FULL[name])
    assert job.micro_batch == full.micro_batch == 8
    assert (job.loss.passes, job.loss.second_model) == (1, False)
    assert (full.loss.passes, full.loss.second_model) == (1, True)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("trl", {"precompute_ref_log_probs": True}),
        ("axolotl", {"precompute_ref_log_probs": True}),
        ("axolotl", {"rl": "simpo"}),
        ("axolotl", {"rl": "orpo"}),
        ("llama_factory", {"pref_loss": "orpo"}),
        ("llama_factory", {"pref_loss": "simpo"}),
    ],
)
def test_without_a_reference_there_is_one_pass(name: str, changes: JsonDict) -> None:
    job = job_of(name, **changes, **FULL[name])
    assert (job.micro_batch, job.loss.passes, job.loss.second_model) == (8, 0, False)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("trl", {"desirable_weight": 1.2}),
        ("axolotl", {"rl": "kto"}),
        ("llama_factory", {"stage": "kto"}),
    ],
)
def test_judged_answers_are_a_row_each(name: str, changes: JsonDict) -> None:
    """Their passes without gradients are those of the reference and of other prompts' answers."""
    job = job_of(name, **changes)
    assert (job.micro_batch, job.loss.passes) == (4, 3)


@pytest.mark.parametrize(
    ("name", "changes", "section"),
    [
        ("trl", {"desirable_weight": 1.2}, {"loss": "kto", "desirable_weight": 1.2}),
        ("trl", {"loss_type": "apo_zero_unpaired"}, {"loss": "apo_zero_unpaired"}),
        (
            "axolotl",
            {"rl": "kto", "kto_undesirable_weight": 0.7},
            {"loss": "kto", "undesirable_weight": 0.7},
        ),
        (
            "llama_factory",
            {"stage": "kto", "kto_chosen_weight": 2.0},
            {"loss": "kto", "desirable_weight": 2.0},
        ),
    ],
)
def test_the_recipe_of_judged_answers_has_the_weights_of_the_file(
    name: str, changes: JsonDict, section: JsonDict
) -> None:
    recipe = load_text(recipe_text(Path("job.yaml"), read(name, **changes)), "job")
    assert (recipe.method, recipe.effective_batch) == ("kto", 4)
    assert recipe.preference is not None
    assert recipe.preference.model_dump(exclude_unset=True) == {"beta": 0.2, **section}


def test_passes_of_judged_answers_are_those_of_the_loss() -> None:
    """What is kept of a reference leaves the model's own pass of other prompts' answers."""
    kept = job_of("trl", desirable_weight=1.2, precompute_ref_log_probs=True)
    assert (kept.loss.passes, kept.loss.second_model) == (1, False)
    assert job_of("trl", loss_type="apo_zero_unpaired").loss.passes == 1


@pytest.mark.parametrize(
    ("name", "changes", "section"),
    [
        ("trl", {}, {"loss": "sigmoid"}),
        ("trl", {"loss_type": ["ipo"]}, {"loss": "ipo"}),
        ("trl", {"loss_type": "hinge"}, {"loss": "hinge"}),
        (
            "trl",
            {"loss_type": "robust", "label_smoothing": 0.1},
            {"loss": "robust", "label_smoothing": 0.1},
        ),
        ("trl", {"loss_type": "sigmoid_norm"}, {"loss": "sigmoid", "per_token": True}),
        (
            "trl",
            {"loss_type": ["sigmoid", "sft"], "loss_weights": [2.0, 1.0]},
            {"loss": "sigmoid", "sft_weight": 0.5},
        ),
        ("axolotl", {}, {"loss": "sigmoid"}),
        ("axolotl", {"rl": "ipo"}, {"loss": "ipo"}),
        ("axolotl", {"rl": "orpo"}, {"loss": "orpo"}),
        ("axolotl", {"rl": "simpo"}, {"loss": "simpo", "margin": 0.5, "sft_weight": 1.0}),
        ("llama_factory", {}, {"loss": "sigmoid"}),
        ("llama_factory", {"pref_ftx": 0.3}, {"loss": "sigmoid", "sft_weight": 0.3}),
        (
            "llama_factory",
            {"pref_loss": "simpo", "simpo_gamma": 1.5},
            {"loss": "simpo", "margin": 1.5},
        ),
        ("llama_factory", {"pref_loss": "orpo"}, {"loss": "orpo", "sft_weight": 1.0}),
    ],
)
def test_the_recipe_has_the_loss_of_the_file(
    name: str, changes: JsonDict, section: JsonDict
) -> None:
    """And as many pairs in a step, beta among the section's values."""
    recipe = load_text(recipe_text(Path("job.yaml"), read(name, **changes)), "job")
    assert recipe.method == "dpo"
    assert recipe.effective_batch == 4
    assert recipe.preference is not None
    assert recipe.preference.model_dump(exclude_unset=True) == {"beta": 0.2, **section}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("trl", {"loss_type": "discopop"}),
        ("trl", {"f_divergence_type": "js_divergence"}),
        ("llama_factory", {"pref_loss": "kto_pair"}),
        ("llama_factory", {"stage": "kto", "pref_ftx": 0.5}),
    ],
)
def test_a_loss_that_no_recipe_has_is_planned_and_not_written(
    name: str, changes: JsonDict, refuses: Refuses
) -> None:
    found = read(name, **changes)
    assert found.job is not None
    with refuses(RequestError, names=["job.yaml", "preference.loss"]):
        recipe_text(Path("job.yaml"), found)


REWARDS: dict[str, JsonDict] = {
    "trl": {"num_generations": 8, "max_completion_length": 256},
    "axolotl": {"rl": "grpo", "trl": {"num_generations": 8, "max_completion_length": 256}},
}


@pytest.mark.parametrize("name", REWARDS)
def test_files_of_rewards_say_what_is_scored_and_how_many_answers_are_drawn_at_once(
    name: str, refuses: Refuses
) -> None:
    steps = {"gradient_accumulation_steps": 3}
    job, full = job_of(name, **REWARDS[name], **steps), job_of(name, **REWARDS[name], **FULL[name])
    assert job.sampling is not None
    assert (job.micro_batch, job.sampling.rows, job.loss.scored) == (4, 12, 256)
    assert job.sampling.tokens == job.sequence_length
    assert not job.loss.second_model
    assert full.loss.second_model == (name == "trl")  # whose file has a beta
    with refuses(RequestError, names=["rewards.verifiers"]):
        recipe_text(Path("job.yaml"), read(name, **REWARDS[name]))


def test_versions_that_cut_prompts_hold_whole_logits_and_a_reference() -> None:
    job = job_of("trl", **REWARDS["trl"], **FULL["trl"], max_prompt_length=128, beta=None)
    assert (job.sequence_length, job.loss.cross_entropy) == (128 + 256, "torch")
    assert job.loss.second_model
    assert not job_of("trl", **REWARDS["trl"], max_prompt_length=128, beta=0.0).loss.second_model


def test_vllm_beside_the_training_is_read_and_a_server_is_not_counted() -> None:
    beside = REWARDS["trl"] | {"use_vllm": True, "vllm_gpu_memory_utilization": 0.4}
    sampling = job_of("trl", **beside).sampling
    assert sampling is not None
    assert (sampling.vllm_share, sampling.sleeps) == (0.4, False)
    assert job_of("trl", **beside, vllm_mode="server").sampling is None
    older = REWARDS["trl"] | {"use_vllm": True, "max_prompt_length": 128}
    assert job_of("trl", **older).sampling is None  # before 1.0 on another device
    assert job_of("trl", **older, vllm_mode="colocate").sampling is not None
    assert job_of("trl", **older, vllm_gpu_memory_utilization=0.2).sampling is not None
    inside = REWARDS["axolotl"]["trl"] | {"use_vllm": True, "vllm_enable_sleep_mode": True}
    slept = job_of("axolotl", rl="grpo", trl=inside, vllm={"gpu_memory_utilization": 0.3}).sampling
    assert slept is not None
    assert (slept.vllm_share, slept.sleeps) == (0.3, True)


def test_a_file_of_preferences_is_recognised() -> None:
    for name, values in FILES.items():
        assert recognised(values, "job.yaml") == name
