"""What ranks after the first do in a chain of several steps: rank 0 goes through the chain, and
tells them each piece of work that all do together.
"""

from collections.abc import Callable, Mapping
from typing import Any

from brimful.base.errors import DeviceError, PlanError
from brimful.training.world import World

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
