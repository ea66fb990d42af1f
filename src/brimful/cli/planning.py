"""The verbs about the machine and what fits it: plan, calibrate, doctor. Nothing heavy is imported
before one runs.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from brimful.base.console import waiting
from brimful.base.errors import RequestError
from brimful.base.garbage import collector_off, importing
from brimful.base.text import plural
from brimful.base.warning_codes import as_note
from brimful.cli.inputs import listed, listed_numbers, load_recipe, say_family_notes
from brimful.cli.job_planning import JobRequest
from brimful.cli.options import DeviceName, Devices, Json, Overrides, RecipeName
from brimful.cli.output import loading, open_console, print_json, say

if TYPE_CHECKING:
    from brimful.chains.limits import Answers
    from brimful.recipe.rewards import RewardsRecipe
    from brimful.rehearsal.verify import Verification
    from brimful.report.plan.table import Entries

Sort = Literal["time", "cost", "name"]


def plan(  # noqa: PLR0913, PLR0917 - each is one option of the verb
    recipe: RecipeName,
    overrides: Overrides = None,
    on: Devices = "here",
    explain: Annotated[
        bool, typer.Option("--explain", help="Name the ten largest tensors at the peak.")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the memory of a step over time (.png or .svg), and .json beside it.",
        ),
    ] = None,
    up_to: Annotated[
        int | None,
        typer.Option(
            "--up-to", metavar="N", min=2, help="Each device also in groups of 2, 4, ... up to N."
        ),
    ] = None,
    sort: Annotated[
        Sort | None,
        typer.Option(help="Several devices by time, cost or name; what fits comes first."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="LIMIT", help="May it take no more than 90m, 3h, 1.5d, or '$5' or 5usd?"
        ),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Sessions are killed after, say, 12h: how many, and how often to save.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="USD",
            help=(
                'An hour in US dollars, 2.5 or "NVIDIA L4=0.8"; in place of the catalog\'s dated'
                " price."
            ),
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the plans of the one device, for `train --plan FILE` or `run --plan FILE`.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help=(
                "Run one step as planned and one in the plainest manner, and compare them; 1 where"
                " they disagree."
            ),
        ),
    ] = False,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled",
            help="Trace the compiled step, too, where the plan compiles: some ten seconds.",
        ),
    ] = False,
    trust_custom_code: Annotated[
        bool,
        typer.Option("--trust-custom-code", help="Run code that comes with a published model."),
    ] = False,
    tool: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The file is of this tool: axolotl, llama_factory, trl, transformers_trainer,"
            " torchtune. Without: by its keys.",
        ),
    ] = None,
    as_recipe: Annotated[
        bool,
        typer.Option(
            "--as-recipe", help="Print the recipe that trains what another tool's file describes."
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """What a recipe needs on this or any device: memory, time, energy, cost, choices with reasons.
    Also of a job as another tool's file describes it. 0 fits, 1 does not or may not.
    """
    for_recipes_only = {
        "--explain": explain,
        "--timeline": timeline,
        "--up-to": up_to,
        "--sort": sort,
        "--budget": budget,
        "--session": session,
        "--price": price,
        "--save": save,
        "--verify": verify,
        "--compiled": compiled,
    }
    job = JobRequest(
        recipe,
        overrides,
        tool,
        on,
        as_recipe=as_recipe,
        trusts_custom_code=trust_custom_code,
        as_json=json_output,
        for_recipes_only=for_recipes_only,
    )
    job.answer_and_exit()
    with collector_off():
        resolved = load_recipe(recipe, overrides)
    with waiting(open_console(stderr=True)) as show:
        with importing("brimful.chains.plans"):
            from brimful.chains.limits import answers, limits_of
            from brimful.chains.plan_options import refuse_options, save_surveyed, verified
            from brimful.chains.plans import survey
            from brimful.report.plan.plans import exit_code, write_timeline

        limits = limits_of(budget, session, price or [])
        refuse_options(resolved, on, saves=save is not None, verifies=verify)
        surveyed = survey(
            resolved,
            on,
            trust_custom_code=trust_custom_code,
            prices=limits.prices,
            compiles=compiled,
            up_to=up_to,
            progress=show,
        )
        show("answering")
        answered = answers(resolved, surveyed, limits)
        if timeline is not None:
            write_timeline(surveyed, timeline)
        show("verifying" if verify else "answering")
        verification = verified(resolved, surveyed) if verify else None
    _say_notes(surveyed, up_to, on, price or [], resolved.rewards)
    if json_output:
        print_json(_plans_json(resolved.name, surveyed, answered, verification, sort))
    else:
        _print_plans(surveyed, answered, verification, sort, explain=explain)
    if save is not None:
        save_surveyed(save, resolved, surveyed)
        verb = "run" if resolved.makes_several_runs else "train"
        _say_saved(save, [verb, recipe, *(overrides or [])])
    code = exit_code(surveyed, answered.budget if limits.budget else None)
    if verification is not None and not verification.passed:
        code = max(code, 1)
    raise typer.Exit(code)


def _say_notes(
    surveyed: "Entries",
    up_to: int | None,
    on: str,
    prices: Sequence[str],
    rewards: "RewardsRecipe | None",
) -> None:
    from brimful.chains.plans import note_on_recordings
    from brimful.hardware.groups import alone_though_asked

    say_family_notes(on, *(each.rpartition("=")[0] for each in prices))
    obstacle = note_on_recordings(surveyed)
    if obstacle is not None:
        say(as_note(obstacle, "B102"), stderr=True)
    alone = alone_though_asked(each.device for each in surveyed) if up_to is not None else None
    if alone is not None:
        say(as_note(alone, "B107"), stderr=True)
    if on == "here" and rewards is not None:
        from brimful.verify.environment import require

        try:
            require(rewards.verifiers)
        except RequestError as error:
            say(as_note(str(error), "B409"), stderr=True)


def _say_saved(path: Path, words: list[str]) -> None:
    command = shlex.join(["brimful", *words, "--plan", str(path)])
    say(f"saved: {path}; `{command}` uses it", stderr=True)


def _plans_json(
    name: str,
    surveyed: "Entries",
    answered: "Answers",
    verification: "Verification | None",
    sort: Sort | None,
) -> dict[str, Any]:
    from brimful.report.plan.table import ordered

    devices = [entry.to_json() for entry in ordered(surveyed, sort)]
    plans = {"recipe": name, "devices": devices, **answered.to_json()}
    if verification is not None:
        plans["verification"] = verification.to_json()
    return plans


def _print_plans(
    surveyed: "Entries",
    answered: "Answers",
    verification: "Verification | None",
    sort: Sort | None,
    *,
    explain: bool,
) -> None:
    from brimful.report.plan.plans import render, tensor_blocks
    from brimful.report.terminal import told

    console = open_console(least_width=120)
    limits = (answered.budget, answered.sessions)
    console.print(render(surveyed, console.width, limits, sort), soft_wrap=True, end="")
    if explain:
        console.print(told(tensor_blocks(surveyed), console.width), soft_wrap=True, end="")
    if verification is not None:
        from brimful.report.plan.verification import verification_blocks

        shown = told(verification_blocks(verification), console.width)
        console.print(shown, soft_wrap=True, end="")


def atlas(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the page goes; new, or an older atlas.")
    ],
    models: Annotated[
        str, typer.Option(metavar="NAME,...", help="Without: seven that are known to many.")
    ] = "",
    methods: Annotated[str, typer.Option(metavar="NAME,...", help="lora, qlora, full.")] = "",
    lengths: Annotated[
        str, typer.Option(metavar="N,...", help="Tokens per sequence; without: 512 to 32768.")
    ] = "",
    batches: Annotated[
        str, typer.Option(metavar="N,...", help="Sequences a step; without: 8, 16, 64.")
    ] = "",
    tokens: Annotated[
        str, typer.Option(metavar="N,...", help="To train on; without: 1M to 1B in four steps.")
    ] = "",
    on: Annotated[
        str, typer.Option(metavar="DEVICES", help="Names separated by commas; without: all.")
    ] = "",
) -> None:
    """A web page of plans, to open or to put online: published models on every device. It needs no
    server; each of its numbers is that of `brimful plan`.
    """
    with waiting(open_console(stderr=True)) as show:
        from brimful.base.units import format_bytes
        from brimful.faces.atlas.pages import refuse_other_content, write_atlas
        from brimful.faces.atlas.scope import scope_of

        refuse_other_content(folder)
        say_family_notes(on)
        scope = scope_of(
            models=listed(models),
            methods=listed(methods),
            lengths=listed_numbers("lengths", lengths),
            batches=listed_numbers("batches", batches),
            tokens=listed_numbers("tokens", tokens),
            devices=listed(on),
        )
        written = write_atlas(folder, scope, show)
    left_out = f", {written.num_left_out} left out" if written.num_left_out else ""
    say(
        f"{written.page}: {plural(written.num_tables, 'table')} of"
        f" {plural(len(scope.devices), 'device')}{left_out},"
        f" {format_bytes(written.size_bytes)}. Open it in a browser, or put the folder online."
    )


def calibrate(
    show: Annotated[
        bool,
        typer.Option("--show", help="Show what is remembered of this machine; measure nothing."),
    ] = False,
    reset: Annotated[
        bool,
        typer.Option("--reset", help="Forget its rates and how runs compared with predictions."),
    ] = False,
    device: DeviceName = "auto",
    devices: Annotated[
        str | None,
        typer.Option(
            help="Measure only the links between so many devices of this machine: a number, or all."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="CPU threads that runs will use (plan.threads); by default all usable cores.",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Measure how fast this machine really is, in under a minute; plans for it then use what was
    measured.
    """
    with loading():
        from brimful.base.env import runs_folder
        from brimful.chains.launching import number_of
        from brimful.chains.link_calibration import measure_links
        from brimful.hardware import calibration, kept_rates, links
        from brimful.hardware.calibrate import calibrate as measure
        from brimful.hardware.probe import probe
        from brimful.report.plan.calibration import measuring, render, to_json

    here = probe(device)
    if reset:
        had_kept = kept_rates.forget(here.name) | links.forget(here.name)
        if calibration.reset(here.name) or had_kept:
            print(f"forgot all about {here.name}")
        else:
            print(f"nothing was remembered of {here.name}")
        return
    if devices is not None and not show:
        links.save(measure_links(here, number_of(devices, here.kind)))
    elif not show:
        with measuring(open_console(stderr=True)) as progress:
            calibration.save(measure(here, runs_folder(), threads=threads, progress=progress))
    if json_output:
        print_json(to_json(here, threads))
    else:
        console = open_console(least_width=120)
        console.print(render(here, threads, console.width), soft_wrap=True, end="")


def doctor(json_output: Json = False) -> None:
    """What this machine is and can do, and what to watch out for."""
    with loading():
        from brimful.base.env import runs_folder
        from brimful.hardware.doctor import examine, render
        from brimful.planning.allocator import extension

    diagnosis = examine(runs_folder(), extension is not None)
    if json_output:
        print_json(diagnosis.to_json())
    else:
        open_console().print(render(diagnosis))
