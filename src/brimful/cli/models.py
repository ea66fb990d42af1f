"""The verbs that use a finished run's model: generate, predict, export, evaluate, diagnose. Nothing
heavy is imported before one runs.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from brimful.base.console import width_of
from brimful.base.errors import RequestError
from brimful.base.light_imports import import_transformers
from brimful.base.warning_codes import as_note
from brimful.cli.inputs import run_folder
from brimful.cli.options import DeviceName, Json, RunName, SharedBy
from brimful.cli.output import loading, open_console, print_json, say

if TYPE_CHECKING:
    from brimful.generation.export import Exported

Dtype = Literal["bf16", "fp16", "fp32"]
GgufType = Literal["q4_k_m", "q5_k_m", "q8_0", "bf16", "f16", "f32"]
Server = Literal["brimful", "vllm"]
Ask = Literal["auto", "chat", "plain"]


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
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the text here as it is. Printed, its control characters are written out.",
        ),
    ] = None,
) -> None:
    """Continue a prompt with a finished run's model, or answer it, as the run was trained to;
    without a prompt, talk to it.
    """
    folder = run_folder(run)
    with loading():
        import_transformers()
        from brimful.chains.finished import write
        from brimful.generation.answers import GenerationRequest
        from brimful.generation.sampler import SamplingSettings

    request = GenerationRequest(SamplingSettings(temperature, top_k, top_p), tokens, samples, seed)
    write(
        folder, prompt, request, open_console(), beside_base=beside_base, code=code, output=output
    )


def predict(  # noqa: PLR0913, PLR0917 - each is one option of the verb
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
    text_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column that holds the text, or its number. Default: the recipe's, or the likely.",
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
    device: DeviceName = "auto",
    devices: SharedBy = None,
) -> None:
    """Labels and calibrated probabilities for texts, by a finished run's classifier, beside the
    columns they came with.
    """
    from contextlib import nullcontext

    folder = run_folder(run)
    if _shared(devices, device):
        return
    with loading():
        import_transformers()
        from brimful.chains.ranks import device_to_share, joined
        from brimful.classification.predict import PredictionRequest
        from brimful.classification.predict import predict as predict_texts
        from brimful.report.live.progress import data_progress

    console = open_console(stderr=True)
    # A bar on the same terminal as the predictions would garble both.
    shares_terminal = output is None and sys.stdout.isatty()
    shows_progress = console.is_terminal and not shares_terminal
    reading = list(changes or ())
    if text_column is not None:
        reading.append(f"data.text_column={text_column}")
    request = PredictionRequest(
        source, tuple(reading), output, written_as, threshold, window, device
    )
    with joined() as world:
        shows_progress = shows_progress and world.is_first
        tell = _print_note if world.is_first else _tell_nobody
        where = None if world.is_alone else device_to_share(world, folder, device)
        with data_progress(console) if shows_progress else nullcontext() as progress:
            summary = predict_texts(
                folder, request, tell=tell, progress=progress, device=where, world=world
            )
    if not (summary.is_read_to_the_end and world.is_first):
        return
    lines = summary.lines()
    if output is not None:
        lines.append(f"written: {output}")
    say("\n".join(lines), stderr=True)


def _print_note(text: str) -> None:
    say(as_note(text, "B212"), stderr=True)


def _tell_nobody(note: str) -> None:
    """Say nothing: the first rank does."""


def _shared(devices: str | None, device: str = "auto") -> bool:
    """Run this very command in several processes if `--devices` asks for that; return whether it
    did.
    """
    if devices is None:
        return False
    with loading():
        from brimful.chains import launching

    launching.refuse_second_launch()
    count = launching.number_of(devices, device)
    if count > 1:
        launching.launch(launching.without_devices(sys.argv[1:]), count, None, say)
    return count > 1


def export(
    run: RunName,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=(
                "A new folder, or FILE.gguf. Default: export, merged or NAME-TYPE.gguf in the"
                " run's."
            ),
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
    gguf: Annotated[
        GgufType | None,
        typer.Option(help="One GGUF file, for llama.cpp, with matrices of this type."),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="USER/NAME", help="Upload it to the hub, with a model card of the run's report."
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="With --push: a new repository is private.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="With --push: show files and card, upload nothing; no network."
        ),
    ] = False,
) -> None:
    """Write a finished run's model for use elsewhere: adapters in PEFT layout, the whole model, or
    both merged into one; or one GGUF file. Upload it to the hub.
    """
    folder = run_folder(run)
    if gguf is not None and (merge or dtype is not None):
        raise RequestError("--gguf merges adapters itself: leave --merge and --dtype out.")
    if push is None and (private or dry_run):
        raise RequestError("--private and --dry-run belong to --push USER/NAME.")
    with loading():
        from brimful.chains.hub_push import export_and_push
        from brimful.generation.export import export as export_model
        from brimful.generation.export_gguf import export_gguf

    def written() -> "Exported":
        if gguf is not None:
            return export_gguf(folder, gguf, to)
        return export_model(folder, to, merge=merge, dtype=dtype)

    if push is None:
        say("\n".join(written().lines()))
        return
    export_and_push(folder, written, push, say, private=private, dry_run=dry_run)


def serve(
    run: RunName,
    host: Annotated[
        str, typer.Option(help="Where it listens; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port.")] = 8000,
    server: Annotated[
        Server, typer.Option(help="What writes: brimful's own engine, or vLLM's server.")
    ] = "brimful",
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="BRIMFUL_API_KEY", help="What clients have to send as their key. Default: none."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A further name by which clients may address this machine."
        ),
    ] = None,
    most_tokens: Annotated[
        int, typer.Option(min=1, help="New tokens of one text, as far as the context allows.")
    ] = 8192,
    most_seconds: Annotated[
        float, typer.Option(min=1, help="Time of one answer; it is given up then.")
    ] = 600.0,
    device: DeviceName = "auto",
) -> None:
    """Answer requests of OpenAI's API with a finished run's model, until ctrl-C."""
    folder = run_folder(run)
    with loading():
        from brimful.chains.serving import Endpoint
        from brimful.chains.serving import serve as serve_model

    names = tuple(allow_host or ())
    endpoint = Endpoint(host, port, names, api_key, most_tokens, most_seconds)
    serve_model(folder, server, endpoint, device, say)


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
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Score this text alone: loss, perplexity, bits per byte."
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
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer at most.")
    ] = None,
    shots: Annotated[
        int | None,
        typer.Option(
            min=0, help="Solved examples before a question that is asked as text to continue."
        ),
    ] = None,
    ask: Annotated[
        Ask | None,
        typer.Option(
            help="With --untuned: through the chat template, as text, or auto (evaluation.ask)."
        ),
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
    devices: SharedBy = None,
) -> None:
    """Loss, perplexity and bits per byte on whole held-out splits, then the recipe's tasks; with
    intervals. Named tasks alone where there are some.
    """
    folder = run_folder(run)
    if _shared(devices):
        return
    with loading():
        import_transformers()
        from brimful.chains.ranks import joined
        from brimful.chains.scoring import evaluate as evaluate_run
        from brimful.chains.task_scores import DEFAULT_REQUEST, EvaluationRequest
        from brimful.chains.text_score import score_text
        from brimful.report.text import evaluation_lines

    request = EvaluationRequest(
        tuple(tasks or ()),
        _data_paths(data or []),
        max_examples,
        accept_unsandboxed,
        samples,
        temperature,
        max_new_tokens,
        shots,
        ask,
    )
    console = open_console(stderr=json_output)
    is_of_tasks = bool(split) or request != DEFAULT_REQUEST
    if text is not None and is_of_tasks:
        raise RequestError(
            "--text scores that file alone: leave out tasks, --split and the options of tasks."
        )
    with joined() as world:
        console.quiet = not world.is_first
        if text is not None:
            if not world.is_alone:
                raise RequestError("--text is scored on one device. Leave --devices out.")
            scores = score_text(folder, text, console, stride=stride, untuned=untuned)
        else:
            scores = evaluate_run(
                folder,
                console,
                split=split,
                stride=stride,
                request=request,
                untuned=untuned,
                world=world,
            )
    if not world.is_first:
        return
    if json_output:
        print_json(scores)
    else:
        say("\n".join(evaluation_lines(scores, width_of(console))))


def diagnose(run: RunName, json_output: Json = False) -> None:
    """Is a run sound: tokenizer, checkpoints, parameters, loss against baselines, sample."""
    folder = run_folder(run)
    with loading():
        import_transformers()
        from brimful.chains.finished import diagnose as examine_run
        from brimful.report.text import finding_lines

    findings = examine_run(folder, open_console(stderr=json_output))
    if json_output:
        print_json(findings)
    else:
        say("\n".join(finding_lines(findings)))
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)


def _data_paths(assignments: list[str]) -> dict[str, str]:
    """Return the paths of tasks' data by task.

    Raises:
        RequestError: an assignment is not TASK=PATH.
    """
    paths = {}
    for assignment in assignments:
        task, _, path = assignment.partition("=")
        if not path:
            raise RequestError(
                f"--data {task}: write TASK=PATH, for example --data humaneval=HumanEval.jsonl.gz"
            )
        paths[task] = path
    return paths
