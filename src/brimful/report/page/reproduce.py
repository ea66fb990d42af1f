"""How to get the same run again: versions to install, the recipe as it was resolved, and what the
data must be.
"""

import shlex

from brimful.report.commands import repeat_command
from brimful.report.table import Table, table_of
from brimful.report.views import Command
from brimful.runs.files import RECIPE_FILE
from brimful.runs.folder import RunFolder

TORCH_WHEELS = "https://download.pytorch.org/whl/"
"""Builds of torch for one kind of device are below it, by the tag that follows the `+` of their
version.
"""


def steps_to_reproduce(run: RunFolder) -> list[Command]:
    """Return the commands from an empty environment to the same training; without those that need
    what the run folder does not hold.
    """
    commands = []
    if install := _install(run):
        python = f" of Python {run.environment.python}" if run.environment.python else ""
        brimful = run.environment.brimful
        checkout = f", in a checkout of brimful {brimful}" if brimful else ""
        purpose = f"In a new environment{python}{checkout}, with the versions of this run"
        commands.append(Command(purpose, install))
    if run.recipe.text:
        again = f"brimful plan {RECIPE_FILE}\n{repeat_command(run, RECIPE_FILE)}"
        commands.append(Command(f"With the recipe below saved as {RECIPE_FILE}", again))
    return commands


def identity_table(run: RunFolder) -> Table | None:
    """What must be equal for the same training: seed, fingerprints of the data, the tokenizer and
    the base, and the command that was typed.
    """
    seed, base = run.recipe.seed, run.data.base
    facts = {
        "Command": run.environment.command,
        "Started": run.environment.started,
        "Seed": "" if seed is None else f"{seed:.0f}",
        **{f"Fingerprint of the {name}": each for name, each in run.data.fingerprints.items()},
        "Fingerprint of the base": base.fingerprint if base else "",
    }
    return table_of(("", ""), [(name, value) for name, value in facts.items() if value])


def _install(run: RunFolder) -> str:
    """pip commands with exact versions: torch first, from the place of its build; brimful, on no
    package index, from a checkout.
    """
    packages = dict(run.environment.packages)
    lines = []
    if torch := packages.pop("torch", ""):
        version, _, tag = torch.partition("+")
        index = f" --index-url {shlex.quote(TORCH_WHEELS + tag)}" if tag else ""
        lines.append(f"pip install {shlex.quote(f'torch=={version}')}{index}")
    wanted = [shlex.quote(f"{name}=={version}") for name, version in packages.items()]
    if run.environment.brimful:
        wanted.insert(0, ".")
    if wanted:
        lines.append(f"pip install {' '.join(wanted)}")
    return "\n".join(lines)
