"""Scripts that start a recipe on several machines: by torchrun, SLURM or SkyPilot. They are texts
to start from; brimful starts nothing.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from brimful.base.text import plural
from brimful.planning.spread import refuse_too_many
from brimful.recipe import Recipe

PORT = 29500
"""At which ranks meet; torchrun's own default."""
SAVE_BEFORE_S = 300
"""How long before its end SLURM asks a job to stop: time to finish a step and to save."""


@dataclass(frozen=True)
class Launch:
    """What is started.

    Attributes:
        name: The name of the job.
        command: The command of brimful, as every rank runs it: verb, recipe, changes.
        machines: How many.
        devices: The devices of each machine, one rank for each.
        has_folder: Whether the recipe says where the run folder is.
    """

    name: str
    command: Sequence[str]
    machines: int
    devices: int
    has_folder: bool

    @property
    def told(self) -> str:
        """Return what the script does, as a sentence."""
        machines = plural(self.machines, "machine")
        each = " each" * (self.machines > 1)
        return f"Trains {self.name} on {machines} with {plural(self.devices, 'device')}{each}."

    @property
    def shared(self) -> str:
        """Return what machines need in common, as a comment; empty for one machine."""
        if self.machines == 1:
            return ""
        where = "The run folder" if self.has_folder else "The run folder (add run.folder=PATH)"
        return (
            f"# {where} lies on a disk that every machine mounts. All have\n"
            "# the same versions of brimful, torch, transformers and Python, and the same data.\n"
        )

    @property
    def ranks(self) -> str:
        """Return what torchrun is to run in every rank."""
        return f"-m brimful {shlex.join(self.command)}"


def script(
    recipe: Recipe, kind: str, command: Sequence[str], *, machines: int, devices: int
) -> str:
    """Return the script that starts a recipe.

    Args:
        kind: A key of `SCRIPTS`.
        command: The command of brimful: verb, recipe, changes.
        machines: How many.
        devices: The devices of each machine.

    Raises:
        RequestError: more devices than an optimizer step has sequences.
    """
    refuse_too_many(recipe, machines * devices)
    return SCRIPTS[kind](
        Launch(recipe.run_name, command, machines, devices, recipe.run.folder is not None)
    )


def _torchrun(launch: Launch) -> str:
    if launch.machines == 1:
        how = "Start it here; the same command continues a run that was stopped."
        meet = "--standalone"
    else:
        how = "Start it on every machine: FIRST_MACHINE=its-name-or-address bash this-file"
        meet = (
            f"--nnodes {launch.machines} --rdzv-backend c10d --rdzv-id {shlex.quote(launch.name)}"
            f' \\\n  --rdzv-endpoint "${{FIRST_MACHINE:?name of the first machine}}:{PORT}"'
        )
    return (
        f"#!/usr/bin/env bash\n# {launch.told}\n# {how}\n{launch.shared}set -euo pipefail\n\n"
        f"exec torchrun {meet} --nproc-per-node {launch.devices} \\\n  {launch.ranks}\n"
    )


def _slurm(launch: Launch) -> str:
    return f"""#!/usr/bin/env bash
# {launch.told} Submit it: sbatch this-file
# Add what your cluster asks for: --account, --partition, --cpus-per-task, --mem.
# The same job, submitted again, continues a run that was stopped.
#SBATCH --job-name={launch.name}
#SBATCH --nodes={launch.machines}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={launch.devices}
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@{SAVE_BEFORE_S}
#SBATCH --output=%x-%j.log
{launch.shared}set -euo pipefail

first_machine=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node {launch.devices} \\
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first_machine:{PORT}" \\
  {launch.ranks}
"""


def _skypilot(launch: Launch) -> str:
    return f"""# {launch.told} Start it: sky launch this-file
# Name your accelerator (sky show-gpus) and where runs are kept; the same task continues a run.
{launch.shared}name: {json.dumps(launch.name)}
num_nodes: {launch.machines}
resources:
  accelerators: H100:{launch.devices}
workdir: .
setup: |
  pip install .  # in a checkout of brimful
run: |
  set -euo pipefail
  first_machine=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
  torchrun --nnodes "$SKYPILOT_NUM_NODES" --nproc-per-node "$SKYPILOT_NUM_GPUS_PER_NODE" \\
    --node-rank "$SKYPILOT_NODE_RANK" --master-addr "$first_machine" --master-port {PORT} \\
    {launch.ranks}
"""


SCRIPTS: dict[str, Callable[[Launch], str]] = {
    "torchrun": _torchrun,
    "slurm": _slurm,
    "skypilot": _skypilot,
}
"""What writes a script, by the launcher's name."""
