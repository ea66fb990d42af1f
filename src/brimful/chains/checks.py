"""What is refused before a run or an evaluation begins; of a run that goes on with other versions
than it was trained with, what is known to break is refused, and what may be rounded in another way
is told.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.libraries import refuse_unfit_adapters
from brimful.base.types import Json, Texts
from brimful.base.warning_codes import coded
from brimful.hardware.device import Device
from brimful.hardware.environment import describe_environment
from brimful.hardware.probe import torch_device
from brimful.kinds.run_data import AnyRunData
from brimful.model.published import require_nf4
from brimful.planning.choices import EIGHT_BIT_VARIANTS
from brimful.recipe import Recipe
from brimful.recipe.rewards import draws_by_vllm
from brimful.runs.deciding import read_deciding
from brimful.runs.files import DATA_FILE, ENVIRONMENT_FILE
from brimful.training import eight_bit


def refuse_unfit(recipe: Recipe, data: AnyRunData, run_folder: Path | None) -> None:
    """Raise if data do not fit what a recipe evaluates, or, given one, the run that goes on."""
    if recipe.evaluation.tasks:
        from brimful.chains.task_checks import refuse_unscorable  # noqa: PLC0415 - for tasks alone

        refuse_unscorable(recipe, data)
    if run_folder is not None:
        refuse_changed_data(run_folder, data)


def refuse_changed_data(run_folder: Path, data: AnyRunData) -> None:
    """Raise RunFolderError if data or tokenizer are not those that the run was trained on."""
    has_data = (run_folder / DATA_FILE).exists()
    stored = read_deciding(run_folder, DATA_FILE).get("fingerprints", {}) if has_data else {}
    for name, now in data.fingerprints.items():
        if stored.get(name, now) != now:
            raise RunFolderError(
                f"the {name} of {run_folder} changed since it was trained on (fingerprint"
                f" {stored[name]}, now {now}). Put the old one back, start over with --fresh, or"
                " start a new run with run.name=NAME."
            )


def refuse_unsupported(recipe: Recipe, device: Device) -> None:
    """Raise before anything is read if this machine cannot train the recipe, or if it names a task,
    verifier or model that does not exist.

    Raises:
        LibraryError: it tunes adapters, and the installed libraries do not fit each other;
        RequestError: no such task or verifier, or no vLLM; RecipeError: a fresh model that is not
            described; DeviceError: no kernels for the quantisation or the optimizer.
    """
    if recipe.adapter is not None:
        refuse_unfit_adapters()
    if recipe.evaluation.tasks or recipe.evaluation.data:
        from brimful.chains.task_checks import refuse_unknown_tasks  # noqa: PLC0415 - as above

        refuse_unknown_tasks(recipe)
    if recipe.rewards is not None:
        from brimful.verify.environment import require  # noqa: PLC0415 - as above

        require(recipe.rewards.verifiers)
    if draws_by_vllm(recipe):
        from brimful.generation.backends.vllm_engine import require_vllm  # noqa: PLC0415 - as above

        require_vllm(device.kind)
    if recipe.kind.starts_from == "fresh":
        _ = recipe.fresh_model
    if recipe.quantize == "nf4":
        require_nf4(torch_device(device))
    if recipe.optimizer.kind in EIGHT_BIT_VARIANTS:
        eight_bit.require(EIGHT_BIT_VARIANTS[recipe.optimizer.kind][0], device.kind)


PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "numpy")
"""Those that decide how a step is computed. Data and tokenizer are compared by fingerprints."""
SECTION = "versions"
"""Of the keys that `--accept-change` takes."""

Changes = Mapping[str, tuple[str, str]]
"""By name the version before and now."""


def changed_versions(run_folder: Path, device: Device) -> Changes:
    """Return the packages, and the kind of device, that are others than in the run's last session
    and may change how a step is computed. What one of the two sessions does not name is left out.
    """
    if not (run_folder / ENVIRONMENT_FILE).exists():
        return {}
    before = _deciding(read_deciding(run_folder, ENVIRONMENT_FILE))
    now = _deciding(describe_environment(device))
    return {
        name: (before[name], now[name])
        for name in before.keys() & now.keys()
        if before[name] != now[name]
    }


def _deciding(environment: Json) -> Texts:
    packages = environment.get("packages", {})
    versions = {
        "brimful": environment.get("brimful"),
        **{name: packages.get(name) for name in PACKAGES},
        "device": environment.get("device", {}).get("kind"),
    }
    return {name: str(version) for name, version in versions.items() if version}


def refuse_breaking_versions(run_folder: Path, device: Device, accept: Sequence[str]) -> None:
    """Raise RunFolderError if a changed version is known to break a run and was not accepted."""
    changes = changed_versions(run_folder, device)
    breaking = {
        name: f"  - {name}: {old} -> {new}, {reason}"
        for name, (old, new) in sorted(changes.items())
        if (reason := _why_it_breaks(name, old, new))
        and not {SECTION, f"{SECTION}.{name}"} & set(accept)
    }
    if breaking:
        accepting = " ".join(f"--accept-change {SECTION}.{name}" for name in breaking)
        raise RunFolderError(
            f"{run_folder} was trained with other versions:\n"
            + "\n".join(breaking.values())
            + f"\nInstall the old ones again, or go on all the same: {accepting}"
        )


def _why_it_breaks(name: str, old: str, new: str) -> str:
    """Return why a run does not go on as it was; empty where only rounding may differ."""
    if name in {"transformers", "peft"} and _numbers(old)[:1] != _numbers(new)[:1]:
        return "whose models may be built and named in another way"
    if name == "brimful" and _numbers(new) < _numbers(old):
        return "which may not know everything that the run's files hold"
    return ""


def _numbers(version: str) -> list[int]:
    """`5.23.0rc1` -> [5, 23]: the leading parts that are numbers."""
    numbers: list[int] = []
    for part in version.split("+", maxsplit=1)[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return numbers


def describe_changes(changes: Changes) -> str:
    """Return what is told of changed versions, empty where there are none."""
    if not changes:
        return ""
    listed = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in sorted(changes.items()))
    dropout = ""
    if "device" in changes:
        dropout = ", and dropout draws other numbers"
    return coded(
        "B308",
        f"this run goes on with other versions than before ({listed}): steps may be rounded"
        f" differently{dropout}",
    )
