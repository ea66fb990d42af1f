"""The verbs that look at runs: report, compare, runs, watch, studio. Nothing heavy is imported
before one runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from brimful.base.console import waiting
from brimful.base.text import printable
from brimful.base.warning_codes import as_note
from brimful.cli.inputs import run_folder
from brimful.cli.options import Json, RunName, run_names
from brimful.cli.output import loading, open_console, print_json, say


def report(
    run: RunName,
    files: Annotated[
        bool,
        typer.Option(
            "--files",
            help=(
                "Also every figure as PNG and SVG, every table as CSV, in the run's folder `files`."
            ),
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """Write report.html of a run, finished or not, and show what was predicted beside what was
    measured; as JSON all that the page shows.
    """
    folder = run_folder(run)
    with waiting(open_console(stderr=True)):
        from brimful.report.page.html import FILE_NAME, write_view
        from brimful.report.page.run_page import run_view
        from brimful.report.text import prediction_lines
        from brimful.report.views import as_json
        from brimful.runs.folder import read_run

        found = read_run(folder)
        view = run_view(found)
        path = write_view(view, folder / FILE_NAME)
    if json_output:
        print_json(as_json(view))
    else:
        say("\n".join([*prediction_lines(found), f"report: {path}"]))
    for problem in filter(None, [*found.problems.values(), found.model_problem]):
        say(as_note(problem, "B318"), stderr=True)
    if files:
        from brimful.report.page.files import write_files

        written = write_files(found)
        say(f"files: {len(written)} in {written[0].parent}", stderr=json_output)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Names or folders of two runs or more.", autocompletion=run_names
        ),
    ],
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also a page with curves, for a browser.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    json_output: Json = False,
) -> None:
    """Runs side by side, repetitions with other seeds together: scores with intervals, cost, and
    which differences are real.
    """
    with loading():
        from brimful.report.comparison.compare import compare as compared
        from brimful.report.comparison.text import comparison_markdown, comparison_text

    folders = [run_folder(run) for run in runs]
    comparison = compared(folders)
    if json_output:
        print_json(comparison.to_json())
    elif markdown:
        print(printable(comparison_markdown(comparison)), end="")
    else:
        print(printable(comparison_text(comparison, open_console(least_width=120).width)))
    if page is not None:
        from brimful.report.comparison.page import write_comparison

        say(f"page: {write_comparison(comparison, folders, page)}")


def runs(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]", help="Holds runs; a mirror, too. Default: BRIMFUL_RUNS or ./runs."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Read every checkpoint and model back and compare it with its hashes."
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """What runs there are, finished or not: score, size, and how to go on. 1 where a check finds
    damage.
    """
    from brimful.base.env import runs_folder
    from brimful.report.listing.listing import find_runs
    from brimful.report.listing.text import render

    entries = find_runs(folder or runs_folder(), check=check)
    if json_output:
        print_json(entries)
    else:
        console = open_console(least_width=120)
        console.print(render(entries, console.width), soft_wrap=True)
    if any(each.is_sound is False for entry in entries for each in entry.checked or ()):
        raise typer.Exit(1)


def watch(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run's name or folder, a study's, or its copy in a mirror.",
            autocompletion=run_names,
        ),
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Show how it stands now, and return.")
    ] = False,
) -> None:
    """A live view of a run from another shell: progress, device, memory, where its newest recovery
    points are.
    """
    from brimful.base.env import runs_folder
    from brimful.report.live.scene import is_awaited
    from brimful.report.live.watch import watch as watch_folder

    named = runs_folder() / run
    console = open_console()
    for folder in (named, Path(run)):
        if folder.is_dir():
            watch_folder(folder, console, once=once)
            return
    is_expected = not once and is_awaited(run, runs_folder())
    watch_folder(named if is_expected else run_folder(run), console, once=once)


def studio(
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 7860,
    only_fit: Annotated[
        bool,
        typer.Option(
            "--only-fit",
            help="Plans alone: what a host without runs can show to anyone.",
        ),
    ] = False,
) -> None:
    """A page in the browser: look at data, plan, train, watch, compare, try and export."""
    from brimful.base.env import runs_folder
    from brimful.faces.studio.page import serve

    serve(host, port, None if only_fit else runs_folder())
