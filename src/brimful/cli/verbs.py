"""The verbs. Each reads its arguments, calls one pipeline function and prints; nothing heavy is
imported before it runs.
"""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from brimful.base.env import keep_few_kernels, wait_politely
from brimful.base.errors import BrimfulError, RequestError
from brimful.cli.parts import Json, RunName, open_console, print_json, run_folder
from brimful.cli.recipes import recipes_app
from brimful.cli.runs import VERBS

app = typer.Typer(
    name="brimful",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=(
        "Say what to train. brimful works out what the hardware can hold, trains it that way, and"
        " shows what came of it."
    ),
)
app.add_typer(recipes_app, name="recipes")

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a .yaml file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe, as dotted.key=value."),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Start over; unfinished work is moved aside, a finished run is never replaced.",
    ),
]
Accept = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-change", metavar="KEY", help="Continue with a changed value of this key."
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Use this plan as it is; `brimful plan ... --save FILE` wrote it.",
    ),
]
Session = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="This machine is taken away, say, 12h from now: save in time. As run.session=12h.",
    ),
]
Sort = Literal["time", "cost", "name"]
Dtype = Literal["bf16", "fp16", "fp32"]


@app.command()
def doctor(json_output: Json = False) -> None:
    """What this machine is and can do, and what to watch out for."""
    from brimful.base.env import runs_folder
    from brimful.hardware.doctor import examine, render

    diagnosis = examine(runs_folder())
    print_json(diagnosis.to_json()) if json_output else open_console().print(render(diagnosis))


@app.command()
def plan(  # noqa: PLR0913, PLR0917 - each is one option of the verb
    recipe: RecipeName,
    overrides: Overrides = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="DEVICES",
            help="here, all, or exact names separated by commas; `--on all` lists them.",
        ),
    ] = "here",
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
            metavar="FILE", help="Write the plan of the one device, for `train --plan FILE`."
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
    trust_custom_code: Annotated[
        bool,
        typer.Option("--trust-custom-code", help="Run code that comes with a published model."),
    ] = False,
    json_output: Json = False,
) -> None:
    """What a recipe needs on this or any device: memory, time, energy, cost, choices with reasons.
    0 fits, 1 does not or may not.
    """
    from brimful.chains.limits import Limits, answers
    from brimful.chains.plan_options import (
        refuse_to_save,
        refuse_to_verify,
        save_surveyed,
        verified,
    )
    from brimful.chains.plans import survey
    from brimful.planning.budget import parse_budget, parse_prices, session_seconds
    from brimful.report.plan.plans import exit_code, render, tensor_lines, write_timeline
    from brimful.report.plan.table import ordered

    limits = Limits(
        budget=None if budget is None else parse_budget(budget),
        session_s=None if session is None else session_seconds(session),
        prices=parse_prices(price or []),
    )
    resolved = _load(recipe, overrides)
    if save is not None:
        refuse_to_save(resolved, on)
    if verify:
        refuse_to_verify(resolved, on)
    surveyed = survey(resolved, on, trust_custom_code=trust_custom_code, prices=limits.prices)
    answered = answers(resolved, surveyed, limits)
    if timeline is not None:
        write_timeline(surveyed, timeline)
    verification = verified(resolved, surveyed) if verify else None
    if json_output:
        print_json(
            {
                "recipe": resolved.name,
                "devices": [entry.to_json() for entry in ordered(surveyed, sort)],
                **answered.to_json(),
                **_told(verification),
            }
        )
    else:
        console = open_console(least_width=120)
        console.print(
            render(surveyed, console.width, (answered.budget, answered.sessions), sort),
            soft_wrap=True,
        )
        if explain:
            print("\n".join(tensor_lines(surveyed)))
        if verification is not None:
            from brimful.report.plan.verification import verification_lines

            print("\n" + "\n".join(verification_lines(verification)))
    if save is not None:
        save_surveyed(save, resolved, surveyed)
        command = shlex.join(["brimful", "train", recipe, *(overrides or []), "--plan", str(save)])
        print(f"saved: {save}; `{command}` uses it", file=sys.stderr)
    code = exit_code(surveyed, answered.budget if limits.budget else None)
    raise typer.Exit(code if verification is None or verification.passed else max(code, 1))


@app.command()
def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept_change: Accept = None,
    plan_file: PlanFile = None,
    session: Session = None,
) -> None:
    """Train a recipe; of a study every variant, of rft every round, and compare them. The same
    command again continues what is unfinished.
    """
    from brimful.chains import pipeline
    from brimful.mirror.opening import catch_up

    resolved = _load(recipe, _with_session(overrides, session))
    if _is_several(resolved):
        _run_several(resolved, fresh, accept_change, plan_file)
        return
    finished = pipeline.train(
        resolved, open_console(), fresh=fresh, accept=accept_change or [], plan_file=plan_file
    )
    name = finished.folder.name
    if not finished.trained_now:
        catch_up(resolved, finished.folder, print)
        print(f"for another run of this recipe: run.name={name}-2")
    use = ""
    if resolved.kind.gives_labels:
        use = f"brimful predict {name} FILE | "
    elif resolved.kind.writes_text:
        use = f"brimful generate {name} --prompt TEXT | "
    print(f"next: brimful evaluate {name} | {use}brimful report {name}")


@app.command()
def run(
    recipe: RecipeName,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept_change: Accept = None,
    plan_file: PlanFile = None,
    session: Session = None,
) -> None:
    """The whole chain of a recipe: plan, train, sample, evaluate, report; of a study for every
    variant, of rft for every round, and one table.
    """
    from brimful.chains import pipeline

    resolved = _load(recipe, _with_session(overrides, session))
    if _is_several(resolved):
        _run_several(resolved, fresh, accept_change, plan_file)
        return
    path = pipeline.run(
        resolved, open_console(), fresh=fresh, accept=accept_change or [], plan_file=plan_file
    )
    print(f"report: {path}")


@app.command()
def sample(
    recipe: RecipeName,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept_change: Accept = None,
) -> None:
    """Draw answers to a recipe's questions, verify them, and keep distinct right ones to train on.
    The same command again goes on where it stopped.
    """
    from brimful.chains import rounds

    folder = rounds.sample(
        _load(recipe, overrides), open_console(), fresh=fresh, accept=accept_change or []
    )
    print(
        f"samples: {folder / 'samples.jsonl'}\ntraining set: {folder / 'train.jsonl'}\nnext:"
        f" brimful run {shlex.join([recipe, *(overrides or [])])}"
    )


@app.command()
def generate(  # noqa: PLR0913, PLR0917 - each is one option of the verb
    run: RunName,
    prompt: Annotated[
        str | None,
        typer.Option(help="Text to continue or to answer; without it, an interactive session."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Sample among the likeliest tokens that hold this probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1,
    beside_base: Annotated[
        bool,
        typer.Option(
            "--beside-base", help="Beside the answer of the model from before it was tuned."
        ),
    ] = False,
    code: Annotated[
        bool | None,
        typer.Option(
            "--code/--no-code",
            help=(
                "Say whether answers are Python; by default where a task of the recipe is about"
                " code."
            ),
        ),
    ] = None,
) -> None:
    """Continue a prompt with a finished run's model, or answer it, as the run was trained to;
    without a prompt, talk to it.
    """
    from brimful.chains.finished import write
    from brimful.generation.answers import GenerationRequest
    from brimful.generation.sampler import SamplingSettings

    how = GenerationRequest(SamplingSettings(temperature, top_k, top_p), tokens, samples, seed)
    write(run_folder(run), prompt, how, open_console(), beside_base=beside_base, code=code)


@app.command()
def predict(
    run: RunName,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help=(
                "csv, tsv, jsonl, json, parquet or txt, also .gz; - is standard input, a text a"
                " line."
            ),
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="How FILE is read: data.text_column, data.header, data.encoding, data.file_type.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: standard output."),
    ] = None,
    written_as: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="KIND",
            help="csv, tsv or jsonl. Default: by the output's name, else as FILE.",
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="best_f1, precision>=P, recall>=R or a number. Default: the recipe's.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=1, help="Texts read, sorted and written at once. Default: 8192; 1 from a terminal."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
) -> None:
    """Labels and calibrated probabilities for texts, by a finished run's classifier, beside the
    columns they came with.
    """
    from contextlib import nullcontext

    from brimful.classification.predict import PredictionRequest
    from brimful.classification.predict import predict as predict_texts
    from brimful.report.live.progress import data_progress

    console = open_console(stderr=True)
    shown = console.is_terminal and not (output is None and sys.stdout.isatty())
    with data_progress(console) if shown else nullcontext() as progress:
        wanted = PredictionRequest(
            source, tuple(changes or ()), output, written_as, threshold, window, device
        )
        summary = predict_texts(
            run_folder(run),
            wanted,
            tell=lambda note: print(f"note: {note}", file=sys.stderr),
            progress=progress,
        )
    if summary.is_read_to_the_end:
        print(
            "\n".join([*summary.lines(), *([f"written: {output}"] if output else [])]),
            file=sys.stderr,
        )


@app.command()
def export(
    run: RunName,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="A new folder. Default: export or merged in the run's."
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Merge adapters into their unquantised base, and compare the two."
        ),
    ] = False,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type of the merged weights. Default: bf16.")
    ] = None,
) -> None:
    """Write a finished run's model for use elsewhere: adapters in PEFT layout, the whole model, or
    both merged into one.
    """
    from brimful.generation.export import export as export_model

    print("\n".join(export_model(run_folder(run), to, merge=merge, dtype=dtype).lines()))


@app.command()
def evaluate(  # noqa: PLR0913, PLR0917 - each is one option of the verb
    run: RunName,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TASK]...",
            help="humaneval, mbpp, code-syntax, bleu, ... or lm-eval:NAME, and nothing else.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="validation, test or train. Default: validation, and test where there is one."
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="New tokens per window; below the context every token is scored with more context."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK=PATH", help="Where a task's data lie: a file, or a folder of its splits."
        ),
    ] = None,
    max_examples: Annotated[
        int | None, typer.Option(min=1, help="Examples per task at most, evenly spread.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Answers per example, for pass@k and majority@k; needs a temperature."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="Of sampled answers. Default: the task's, mostly 0 (greedy)."),
    ] = None,
    untuned: Annotated[
        bool,
        typer.Option("--untuned", help="Score the model that the run tuned, as it was before."),
    ] = False,
    accept_unsandboxed: Annotated[
        bool,
        typer.Option(
            "--accept-unsandboxed",
            help="Run generated programs where nothing isolates them: they can do what you can.",
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """Loss, perplexity and bits per byte on whole held-out splits, then the recipe's tasks; with
    intervals. Named tasks alone where there are some.
    """
    from brimful.chains import scoring
    from brimful.report.text import evaluation_lines

    asked = scoring.EvaluationRequest(
        tuple(tasks or ()),
        _paths(data or []),
        max_examples,
        accept_unsandboxed,
        samples,
        temperature,
    )
    console = open_console(stderr=json_output)
    scores = scoring.evaluate(
        run_folder(run), console, split=split, stride=stride, request=asked, untuned=untuned
    )
    print_json(scores) if json_output else print("\n".join(evaluation_lines(scores)))


@app.command()
def diagnose(run: RunName, json_output: Json = False) -> None:
    """Is a run sound: tokenizer, checkpoints, parameters, loss against baselines, sample."""
    from dataclasses import asdict

    from brimful.chains.finished import diagnose as examine_run
    from brimful.report.text import finding_lines

    findings = examine_run(run_folder(run), open_console(stderr=json_output))
    (
        print_json([asdict(finding) for finding in findings])
        if json_output
        else print("\n".join(finding_lines(findings)))
    )
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)


@app.command()
def calibrate(
    show: Annotated[
        bool,
        typer.Option("--show", help="Show what is remembered of this machine; measure nothing."),
    ] = False,
    reset: Annotated[
        bool,
        typer.Option("--reset", help="Forget its rates and how runs compared with predictions."),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
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
    from brimful.base.env import runs_folder
    from brimful.hardware import calibration
    from brimful.hardware.calibrate import calibrate as measure
    from brimful.hardware.probe import probe
    from brimful.report.plan.calibration import measuring, render, to_json

    here = probe(device)
    if reset:
        print(
            f"forgot all about {here.name}"
            if calibration.reset(here.name)
            else f"nothing was remembered of {here.name}"
        )
        return
    if not show:
        with measuring(open_console(stderr=True)) as progress:
            calibration.save(measure(here, runs_folder(), threads=threads, progress=progress))
    (
        print_json(to_json(here, threads))
        if json_output
        else open_console(least_width=120).print(render(here, threads), highlight=False)
    )


for verb in VERBS:
    app.command()(verb)


def main() -> None:
    """Entry point: errors on purpose are one message and their exit code; everything else is a bug
    with its traceback.
    """
    wait_politely()
    keep_few_kernels()
    try:
        app()
    except BrimfulError as error:
        print(f"brimful: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("brimful: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _load(name: str, overrides: list[str] | None) -> Any:
    """The recipe with its changes. What a changed effective batch asks of other values is told
    beside the output, never done.
    """
    from brimful.planning.scaling import notes
    from brimful.recipe import load
    from brimful.recipe.presets import choosing

    recipe = load(name, overrides or [])
    try:
        original = load(name, choosing(overrides or []))
    except BrimfulError:  # only the changes make it whole
        return recipe
    print("".join(f"{line}\n" for line in notes(original, recipe)), end="", file=sys.stderr)
    return recipe


def _with_session(overrides: list[str] | None, session: str | None) -> list[str]:
    return [*(overrides or []), *([f"run.session={session}"] if session else [])]


def _is_several(recipe: Any) -> bool:
    """Whether a recipe is a chain of several runs: a study, or rounds of sampling and training."""
    return recipe.study is not None or recipe.rft is not None


def _run_several(
    recipe: Any, fresh: bool, accept: list[str] | None, plan_file: Path | None
) -> None:
    from brimful.chains import rounds, study

    if plan_file is not None:
        raise RequestError(
            f"--plan is the plan of one run, but {recipe.name} makes several. Leave it out."
        )
    run_all = study.run_study if recipe.rft is None else rounds.run_rounds
    print(
        "report:"
        f" {run_all(recipe, open_console(least_width=120), fresh=fresh, accept=accept or [])}"
    )


def _paths(assignments: list[str]) -> dict[str, str]:
    pairs = [assignment.partition("=") for assignment in assignments]
    if wrong := next((task for task, equals, path in pairs if not (equals and path)), None):
        raise RequestError(
            f"--data {wrong}: write TASK=PATH, for example --data humaneval=HumanEval.jsonl.gz"
        )
    return {task: path for task, _, path in pairs}


def _told(verification: Any) -> dict[str, Any]:
    return {} if verification is None else {"verification": verification.to_json()}
