"""How to get the same run again: versions to install, the recipe as it was resolved, and what the
data must be.
"""

import shlex

from brimful.report.commands import repeat_command
from brimful.report.page.headline import Command
from brimful.report.table import Table
from brimful.runs.runfiles import RunFiles, number, section

CPU_WHEELS = "https://download.pytorch.org/whl/"
"""Where builds of torch for one kind of device are, by the tag that follows the `+` of their
version.
"""


def steps_to_reproduce(run: RunFiles) -> list[Command]:
    """From an empty environment to the same training; without what the run folder does not say."""
    found = []
    if install := _install(run):
        found.append(
            Command(f"In a new environment{_python(run)}, with the versions of this run", install)
        )
    if run.recipe_text:
        again = repeat_command(run, "recipe.yaml")
        found.append(
            Command(
                "With the recipe below saved as recipe.yaml", f"brimful plan recipe.yaml\n{again}"
            )
        )
    return found


def identity_table(run: RunFiles) -> Table | None:
    """What must be equal for the same training: seed, fingerprints of the data, the tokenizer and
    the base, and the command that was typed.
    """
    prints, base = section(run.data, "fingerprints"), section(run.data, "base")
    seed = number(run.recipe.get("seed"))
    facts = [
        ("Command", run.environment.get("command")),
        ("Started", run.environment.get("started")),
        ("Seed", None if seed is None else f"{seed:.0f}"),
        *((f"Fingerprint of the {name}", value) for name, value in prints.items()),
        ("Fingerprint of the base", base.get("fingerprint")),
    ]
    rows = tuple((name, str(value)) for name, value in facts if value is not None)
    return Table(("", ""), rows) if rows else None


def _python(run: RunFiles) -> str:
    return f" of Python {run.environment['python']}" if run.environment.get("python") else ""


def _install(run: RunFiles) -> str:
    """pip commands with exact versions; torch first, from where its build is."""
    packages = {
        str(name): str(version) for name, version in section(run.environment, "packages").items()
    }
    lines = []
    if torch := packages.pop("torch", ""):
        version, _, tag = torch.partition("+")
        index = f" --index-url {shlex.quote(CPU_WHEELS + tag)}" if tag else ""
        lines.append(f"pip install {shlex.quote(f'torch=={version}')}{index}")
    if run.environment.get("brimful"):
        packages = {"brimful": str(run.environment["brimful"]), **packages}
    pins = " ".join(shlex.quote(f"{name}=={version}") for name, version in packages.items())
    return "\n".join([*lines, *([f"pip install {pins}"] if pins else [])])
