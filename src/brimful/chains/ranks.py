"""Several ranks in a chain: what all of them have to share before they begin, what the ranks after
the first do in a training, and how rank 0, which goes through the chain, tells them each piece of
work that all do together.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from brimful.base.env import launched_rank
from brimful.base.errors import DeviceError, PlanError, RunFolderError
from brimful.base.libraries import installed_version
from brimful.base.rundir import Lease
from brimful.base.types import Texts
from brimful.chains.checks import PACKAGES
from brimful.chains.devices import here
from brimful.chains.score_files import model_manifest
from brimful.chains.training_session import follow_session
from brimful.hardware import host
from brimful.hardware.device import Device
from brimful.hardware.host import stop_keeping_freed_memory
from brimful.hardware.probe import probe, torch_device
from brimful.kinds.run_data import AnyRunData, gather
from brimful.planning.plan import plan_from_json
from brimful.planning.spread import refuse_too_many
from brimful.recipe import PlanChoices, Recipe
from brimful.training.memory_errors import give_back_memory
from brimful.training.world import ALONE, World, join, leave

Jobs = Mapping[str, Callable[..., object]]
"""By name what a rank after the first does; called with the world and with what rank 0 told."""


def lead(world: World, job: str, **told: Any) -> None:
    """Tell the other ranks to begin a piece of work, which this one begins, too.

    Args:
        told: What they need to know; JSON.
    """
    world.tell({"job": job, "told": told})


def dismiss(world: World) -> None:
    """Tell the other ranks that there is nothing left to do together."""
    world.tell(None)


def follow_jobs(world: World, jobs: Jobs) -> None:
    """Do what rank 0 tells until it dismisses this rank. What cannot be planned on these devices is
    left to rank 0, which goes on without it or ends.

    Raises:
        BrimfulError: another failure in a piece of work.
    """
    while (told := world.tell(None)) is not None:
        try:
            jobs[told["job"]](world, **told["told"])
        except (PlanError, DeviceError):
            continue


@contextmanager
def joined() -> Iterator[World]:
    """Meet the other ranks of this run, if a launcher started several; leave them at the end.

    Launchers say by the environment which rank this process is, as torchrun does.

    Raises:
        DeviceError: there is no device for this rank.
        RanksParted: the other ranks did not come.
    """
    launched = launched_rank()
    if launched is None or launched["WORLD_SIZE"] == 1:
        yield ALONE
        return
    from brimful.training.endings import ends_together  # noqa: PLC0415 - most runs have one rank

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(launched["LOCAL_RANK"])
    with ends_together(launched["RANK"], launched["WORLD_SIZE"]) as store:
        world = join(
            launched["RANK"],
            launched["WORLD_SIZE"],
            local=(launched["LOCAL_RANK"], launched["LOCAL_WORLD_SIZE"]),
            store=store,
            kind=kind,
        )
        yield world
        leave(world)


def for_rank(recipe: Recipe, world: World) -> Recipe:
    """Return the recipe with the device of this rank among its plan's choices: the accelerator of
    its number on the machine, or its share of the processor's cores.

    Raises:
        DeviceError: there is none for it.
    """
    if world.is_alone:
        return recipe
    return recipe.model_copy(update={"plan": share_of_machine(recipe.plan, world)})


def share_of_machine(plan: PlanChoices, world: World) -> PlanChoices:
    """Return the choices with this rank's device: the accelerator of its number on the machine, or
    its share of the processor's cores.

    Raises:
        DeviceError: there is none for it.
    """
    choice = plan.device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if choice == "mps" or choice.startswith("cuda:"):
        raise DeviceError(
            f"plan.device={choice} is one device, and {world.size} ranks share this run. Use"
            " plan.device=auto, cuda or cpu, or leave --devices out."
        )
    if choice == "cuda" or (choice == "auto" and count):
        if world.local_rank >= count:
            raise DeviceError(
                f"rank {world.rank} has no device: {world.local_size} ranks run on this machine,"
                f" which has {count} CUDA devices. Start one rank for each, or use plan.device=cpu."
            )
        return plan.model_copy(update={"device": f"cuda:{world.local_rank}"})
    threads = plan.threads
    if threads == "auto":
        threads = max(1, host.usable_cores(host.control_group_limits()) // world.local_size)
    return plan.model_copy(update={"device": "cpu", "threads": threads})


def meet(recipe: Recipe, world: World) -> Device:
    """Return this rank's device, once all ranks have found theirs and run the same software.

    Raises:
        RequestError: there are more ranks than sequences in a step.
        DeviceError: a rank has no device, or another one or other versions than rank 0.
        RunFolderError: a rank has another recipe.
    """
    if world.is_alone:
        return here(recipe)
    refuse_too_many(recipe, world.size)
    device = world.check(lambda: here(for_rank(recipe, world)))
    refuse_unlike(world, device, {"recipe": recipe.to_yaml()})
    return device


def device_to_share(world: World, folder: Path, asked: str = "auto") -> torch.device:
    """Return this rank's device for work with a finished run's model, once all ranks have found
    theirs, run the same software and see the same model.

    Args:
        folder: The folder of the run.
        asked: auto, cpu, cuda, cuda:N or mps; the last two for one process only.

    Raises:
        DeviceError: a rank has no device, or another one or other versions than rank 0.
        RunFolderError: a rank sees another model.
    """
    device = find_device(world, asked)
    weights = hashlib.sha256(model_manifest(folder)).hexdigest()
    refuse_unlike(world, device, {"model": weights})
    return torch_device(device)


def find_device(world: World, asked: str) -> Device:
    """Return this rank's device, once all ranks have found theirs.

    Raises:
        DeviceError: a rank has none.
    """
    if world.is_alone:
        return probe(asked)

    def find() -> Device:
        choices = share_of_machine(PlanChoices(device=asked), world)
        if isinstance(choices.threads, int):
            torch.set_num_threads(choices.threads)
        return probe(choices.device)

    return world.check(find)


def refuse_unlike(world: World, device: Device, known: Texts) -> None:
    """Refuse ranks that differ from rank 0 in their software, device, or what else is `known`.

    Raises:
        DeviceError, RunFolderError: on every rank, of the first one that differs.
    """
    if world.is_alone:
        return
    facts = {
        **{package: installed_version(package) for package in ("brimful", *PACKAGES)},
        "Python": platform.python_version(),
        "device": device.name,
        **known,
    }
    everywhere = world.gather(facts)
    world.check(lambda: _refuse_different(everywhere))


def _refuse_different(facts: Sequence[Texts]) -> None:
    """Refuse ranks that have something else than rank 0.

    Args:
        facts: The facts of each rank, by name.
    """
    for rank, other in enumerate(facts):
        for name, value in facts[0].items():
            if other[name] == value:
                continue
            if name in {"recipe", "model", "questions"}:
                raise RunFolderError(
                    f"rank {rank} was started with another {name} than rank 0. Start all ranks with"
                    " the same command, on the same files."
                )
            raise DeviceError(
                f"rank {rank} has {name} {other[name]}, rank 0 has {value}. Ranks of one run need"
                " the same: install the same versions on every machine, and use machines of one"
                " kind."
            )


def check_same_folder(world: World, folder: Path, lease: Lease | None) -> None:
    """Check that every rank sees the run folder that rank 0 has locked.

    Raises:
        RunFolderError: a rank does not.
    """
    token = world.tell(None if lease is None else lease.token)

    def look() -> None:
        try:
            seen = json.loads((folder / Lease.FILE_NAME).read_bytes()).get("token")
        except (OSError, ValueError):
            seen = None
        if not world.is_alone and seen != token:
            raise RunFolderError(
                f"rank {world.rank} (on {platform.node()}) does not see in {folder.absolute()} what"
                " rank 0 wrote there. All ranks need the same run folder: put it on a disk that"
                " every machine mounts (run.folder=PATH)."
            )

    world.check(look)


def read_together(world: World, data: AnyRunData) -> None:
    """Let the other ranks read the data, now that rank 0 has, and check that they are the same.

    Raises:
        RunFolderError: a rank reads other data, or has another tokenizer.
    """
    world.tell("data are read")
    world.check(lambda: None)
    _check_same_data(world, data)


def _check_same_data(world: World, data: AnyRunData) -> None:
    fingerprints = world.gather(dict(data.fingerprints))
    for rank, other in enumerate(fingerprints):
        differing = [name for name, value in fingerprints[0].items() if other[name] != value]
        if differing:
            raise RunFolderError(
                f"rank {rank} reads another {differing[0]} than rank 0. Every machine needs the"
                " same files."
            )


def tell_that_it_is_finished(recipe: Recipe, world: World, folder: Path) -> None:
    """Let the other ranks end where there is nothing to train."""
    meet(recipe, world)
    world.tell({"folder": str(folder), "source": "", "finished": True})


def begin_together(world: World, folder: Path, source: str, lease: Lease) -> None:
    """Tell the other ranks where the run is and which model it starts from; see that they see it.

    Raises:
        RunFolderError: a rank does not see the run folder.
    """
    world.tell({"folder": str(folder), "source": source, "finished": False})
    check_same_folder(world, folder, lease)


def follow(recipe: Recipe, world: World) -> Path:
    """Train beside rank 0, which goes through the chain and writes the run folder.

    Raises:
        BrimfulError: as the first rank, or of this rank alone.
    """
    device = meet(recipe, world)
    start = world.hear()
    folder = Path(start["folder"])
    if start["finished"]:
        return folder
    check_same_folder(world, folder, None)
    # Rank 0 read the data first: what it prepared is in the cache, if the machine is the same.
    world.hear()
    data = world.check(lambda: gather(recipe, start["source"]))
    _check_same_data(world, data)
    plan = plan_from_json(world.hear())
    threads = for_rank(recipe, world).plan.threads
    if plan.threads is not None and threads != "auto":
        plan = replace(plan, threads=threads)
    follow_session(data, plan, device, folder, world)
    make_room(device)
    return folder


def make_room(device: Device) -> None:
    """Give memory back: what follows loads the model again, perhaps where training filled it."""
    give_back_memory(torch_device(device))
    stop_keeping_freed_memory()
