"""The verbs. Each reads its arguments, calls one pipeline function and prints; nothing heavy is imported before it runs."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from brimful.base.env import wait_politely
from brimful.base.errors import BrimfulError

app = typer.Typer(
    name="brimful", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Say what to train. brimful works out what the hardware can hold, trains it that way, and shows what came of it.",
)  # fmt: skip
recipes_app = typer.Typer(
    no_args_is_help=False, invoke_without_command=True, rich_markup_mode=None, help="Shipped recipes: list, show NAME, keys, schema."
)
app.add_typer(recipes_app, name="recipes")

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a .yaml file.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe, as dotted.key=value.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over; unfinished work is moved aside, a finished run is never replaced.")]
Accept = Annotated[list[str] | None, typer.Option("--accept-change", metavar="KEY", help="Continue with a changed value of this key.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def doctor(json_output: Json = False) -> None:
    """What this machine is and can do, and what to watch out for."""
    from brimful.base.env import runs_folder
    from brimful.hardware.doctor import examine, render

    diagnosis = examine(runs_folder())
    _print_json(diagnosis.to_json()) if json_output else _console().print(render(diagnosis))


@app.command()
def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    on: Annotated[str, typer.Option(metavar="DEVICES", help="here, all, or exact names separated by commas; `--on all` lists them.")] = "here",
    explain: Annotated[bool, typer.Option("--explain", help="Name the ten largest tensors at the peak.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the memory of a step over time (.png or .svg), and .json beside it.")
    ] = None,
    trust_custom_code: Annotated[bool, typer.Option("--trust-custom-code", help="Run code that comes with a published model.")] = False,
    json_output: Json = False,
) -> None:
    """What a recipe needs on this or any device: memory term by term, the largest micro-batch, choices with reasons. 0 fits, 1 does not or may not."""
    from brimful.plans import survey
    from brimful.recipe import load
    from brimful.report.plans import exit_code, render, tensor_lines, write_timeline

    resolved = load(recipe, overrides or [])
    surveyed = survey(resolved, on, trust_custom_code=trust_custom_code)
    if timeline is not None:
        write_timeline(surveyed, timeline)
    if json_output:
        _print_json({"recipe": resolved.name, "devices": [entry.to_json() for entry in surveyed]})
    else:
        _console(least_width=120).print(render(surveyed), soft_wrap=True)
        if explain:
            print("\n".join(tensor_lines(surveyed)))
    raise typer.Exit(exit_code(surveyed))


@app.command()
def train(recipe: RecipeName, overrides: Overrides = None, fresh: Fresh = False, accept_change: Accept = None) -> None:
    """Train a recipe. The same command again continues an unfinished run."""
    from brimful import pipeline
    from brimful.recipe import load

    finished = pipeline.train(load(recipe, overrides or []), _console(), fresh=fresh, accept=accept_change or [])
    name = finished.folder.name
    print(f"next: brimful evaluate {name} | brimful generate {name} --prompt TEXT | brimful report {name}")


@app.command()
def run(recipe: RecipeName, overrides: Overrides = None, fresh: Fresh = False, accept_change: Accept = None) -> None:
    """The whole chain of a recipe: plan, train, sample, evaluate, report."""
    from brimful import pipeline
    from brimful.recipe import load

    path = pipeline.run(load(recipe, overrides or []), _console(), fresh=fresh, accept=accept_change or [])
    print(f"report: {path}")


@app.command()
def generate(
    run: RunName,
    prompt: Annotated[str | None, typer.Option(help="Text to continue; without it, an interactive session.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k likeliest tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest tokens that hold this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="How many continuations.")] = 1,
) -> None:
    """Continue a prompt with a finished run's model."""
    from brimful import pipeline
    from brimful.generation.sampler import SamplingSettings

    writer = pipeline.Writer(_run_folder(run), SamplingSettings(temperature, top_k, top_p), tokens=tokens, count=samples, seed=seed)
    if prompt is not None:
        _write(writer, prompt)
        return
    print("Type a prompt and press Enter; an empty line or Ctrl-D ends.")
    while text := _ask():
        _write(writer, text)


@app.command()
def evaluate(
    run: RunName,
    split: Annotated[str | None, typer.Option(help="validation, test or train. Default: validation, and test where there is one.")] = None,
    stride: Annotated[int | None, typer.Option(help="New tokens per window; below the context every token is scored with more context.")] = None,
    json_output: Json = False,
) -> None:
    """Loss, perplexity and bits per byte on whole held-out splits, with intervals, beside counting baselines."""
    from brimful import pipeline
    from brimful.report.text import score_lines

    scores = pipeline.evaluate(_run_folder(run), _console(stderr=json_output), split=split, stride=stride)
    _print_json(scores) if json_output else print("\n".join(score_lines(scores)))


@app.command()
def diagnose(run: RunName, json_output: Json = False) -> None:
    """Is a run sound: tokenizer, checkpoints, parameters, loss against baselines, sample."""
    from dataclasses import asdict

    from brimful import pipeline
    from brimful.report.text import finding_lines

    findings = pipeline.diagnose(_run_folder(run), _console(stderr=json_output))
    _print_json([asdict(finding) for finding in findings]) if json_output else print("\n".join(finding_lines(findings)))
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)


@app.command()
def report(run: RunName) -> None:
    """Write report.html of a run, finished or not."""
    from brimful.report.html import write_report

    print(f"report: {write_report(_run_folder(run))}")


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """Shipped recipes, one line each."""
    if context.invoked_subcommand is None:
        from brimful.recipe import load, shipped_names

        names = shipped_names()
        width = max(map(len, names))
        print("\n".join(f"{name:<{width}}  {load(name).description}" for name in names))


@recipes_app.command("show")
def recipes_show(name: Annotated[str, typer.Argument(help="A shipped recipe.")]) -> None:
    """Print a shipped recipe, to save and edit."""
    from brimful.recipe import shipped_text

    print(shipped_text(name), end="")


@recipes_app.command("keys")
def recipes_keys() -> None:
    """Print every key of a recipe with its type, default and meaning, as a Markdown table."""
    from brimful.base.keys import describe_keys
    from brimful.recipe import Recipe

    print("| key | value | default | meaning |\n| --- | --- | --- | --- |")
    print("\n".join(f"| `{key}` | {kind} | {default} | {meaning} |" for key, kind, default, meaning in describe_keys(Recipe)))


@recipes_app.command("schema")
def recipes_schema() -> None:
    """Print the JSON schema of recipes."""
    from brimful.recipe import Recipe

    _print_json(Recipe.model_json_schema())


def main() -> None:
    """Entry point: errors on purpose are one message and their exit code; everything else is a bug with its traceback."""
    wait_politely()
    try:
        app()
    except BrimfulError as error:
        print(f"brimful: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("brimful: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _console(*, stderr: bool = False, least_width: int = 0) -> Any:
    """A terminal has the width it has; into a file or a pipe go at least `least_width` columns."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal or console.width >= least_width else Console(stderr=stderr, width=least_width)


def _print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2))


def _run_folder(run: str) -> Path:
    from brimful.base.env import runs_folder
    from brimful.generation.load import resolve_run

    return resolve_run(run, runs_folder())


def _write(writer: Any, prompt: str) -> None:
    """The prompt and its only continuation as it comes, or several continuations, numbered."""
    unsaid = [prompt]

    def show(text: str) -> None:
        print((unsaid.pop() if unsaid else "") + text, end="", flush=True)

    samples = writer.write(prompt, show)
    if len(samples) > 1:
        print("\n".join(f"--- {number} ---\n{prompt}{sample.completion}" for number, sample in enumerate(samples, 1)), end="")
    print()


def _ask() -> str:
    try:
        return input("> ")
    except EOFError:
        return ""
