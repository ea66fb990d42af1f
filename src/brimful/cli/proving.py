"""The verb that tries brimful on this machine: prove."""

from pathlib import Path
from typing import Annotated

import typer

from brimful.base.errors import RequestError
from brimful.cli.output import loading, say

MINUTES = {"cuda": 45.0, "mps": 15.0, "cpu": 3.5}
"""How long a proof goes on unless told otherwise, by kind of device."""


def prove(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Where record, page and runs go; new, or to go on."),
    ] = Path("proof"),
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Begin nothing after so many minutes. Without: 45 on a GPU, 3.5 on a CPU."
        ),
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="These trials, in this order. Without: all.")
    ] = "",
    longest: Annotated[
        float, typer.Option(metavar="SECONDS", help="End a command of a trial after so long.")
    ] = 1800.0,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")
    ] = "auto",
) -> None:
    """Does it hold on this machine? Short runs are killed and continued, memory and time measured
    beside their plans. The same command goes on where it ended; 1 where something did not hold.
    """
    for name, value in (("--minutes", minutes), ("--longest", longest)):
        if value is not None and not value > 0:
            raise RequestError(f"{name} {value} must be above 0.")
    with loading():
        from brimful.hardware.probe import probe_elsewhere
        from brimful.model.quiet import quiet_bitsandbytes

        # transformers' trainer imports bitsandbytes.
        with quiet_bitsandbytes():
            from brimful.prove.page import sentences
            from brimful.prove.proof import prove as prove_here
            from brimful.prove.trials import chosen, trials_for

    here = probe_elsewhere(device)
    trials = chosen(trials_for(here.kind), only.split(",") if only else ())
    limit_s = 60.0 * (minutes or MINUTES[here.kind])
    proof = prove_here(folder, here, trials, limit_s, say, longest)
    say("\n".join(sentences(proof.record, trials)))
    if proof.remaining:
        say(f"the rest: brimful prove {folder}")
    say(f"page: {proof.page}")
    if proof.failed:
        raise typer.Exit(1)
