"""The command line: a closed set of verbs, errors in one message with exit code 2, and the whole
way from recipe to report.
"""

import html
import inspect
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import typer
from command_line import Brimful, Said
from finished_runs import records_of
from syrupy.assertion import SnapshotAssertion

from brimful import cli
from brimful.base.env import cache_folder
from brimful.base.errors import BrimfulError, Interrupted
from brimful.base.rundir import Lease, read_json, write_json_atomically
from brimful.hardware.calibration import Calibration, current_versions
from brimful.hardware.device import Device
from brimful.hardware.rates import Rates
from brimful.recipe import Recipe, load, shipped_names, shipped_text
from brimful.report.time_spent import time_spent
from brimful.runs.deciding import read_recipe_text, write_recipe
from brimful.runs.folder import read_run
from brimful.runs.measurements import measured, total_time_s
from brimful.training import endings

SNAPSHOT = Path(__file__).parent.parent / "snapshots" / "cli.txt"


# --- verbs and flags


def verbs_and_flags() -> str:
    """Every verb with its arguments, options, types and defaults, from the commands themselves."""

    def described(command: Any, path: str) -> Iterator[str]:
        if command.callback is not None:
            description = " ".join((inspect.getdoc(command.callback) or "").split())
            yield f"{path}: {description}"
            types = inspect.signature(command.callback).parameters
            yield from (
                f"    {_parameter(parameter, types[parameter.name].annotation)}"
                if parameter.name in types
                else f"    {' '.join(parameter.opts)}: typer's own"
                for parameter in command.params
            )
        for name, inner in getattr(command, "commands", {}).items():
            yield from described(inner, f"{path} {name}")

    return "\n".join(described(typer.main.get_command(cli.app), "brimful")) + "\n"


def _parameter(parameter: Any, annotation: Any) -> str:
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    names = " ".join([*parameter.opts, *parameter.secondary_opts])
    needed = "required" if parameter.required else f"default {parameter.default!r}"
    return (
        f"{names}: {getattr(kind, '__name__', kind) if get_origin(kind) is None else kind},"
        f" {needed}"
    )


def test_verbs_and_flags_are_the_published_ones() -> None:
    assert verbs_and_flags() == SNAPSHOT.read_text(), (
        "verbs or flags changed. The set is closed: a change is deliberate and documented; then"
        " store what verbs_and_flags() returns in tests/snapshots/cli.txt"
    )


def test_every_option_says_what_it_does() -> None:
    def parameters(command: Any) -> Iterator[Any]:
        yield from command.params
        for inner in getattr(command, "commands", {}).values():
            yield from parameters(inner)

    assert [
        parameter.name
        for parameter in parameters(typer.main.get_command(cli.app))
        if not parameter.help
    ] == []


# --- calling it


@pytest.fixture
def brimful(brimful: Brimful, monkeypatch: pytest.MonkeyPatch) -> Brimful:
    """The command line on a machine that is not measured anew."""
    monkeypatch.setattr(
        "brimful.hardware.calibrate.measure_matrix_rates", lambda *_: {"fp32": 1e11, "bf16": 2e11}
    )
    return brimful


def _refused(said: Said, *parts: str) -> str:
    """The one message of a refused command; exit code 2, no traceback."""
    assert said.code == 2, said
    assert said.err.startswith("brimful: ")
    assert said.err.count("brimful: ") == 1
    assert "Traceback" not in said.err + said.out
    for part in parts:
        assert part in said.err
    return said.err


def test_devices_that_cannot_be_are_refused_before_anything_starts(
    brimful: Brimful, recipe_file: Path
) -> None:
    _refused(brimful("train", recipe_file, "--devices", "9"), "Use at most 8", "batch.sequences=9")
    _refused(brimful("run", recipe_file, "--restarts", "2"), "--restarts goes with --devices N")
    assert not Path(os.environ["BRIMFUL_RUNS"]).exists()


def test_the_script_of_a_study_runs_all_its_variants(brimful: Brimful, recipe_file: Path) -> None:
    for changes, verb in ((["study.variants={one: [seed=1]}"], "run"), ([], "train")):
        said = brimful("launch", recipe_file, *changes, "--devices", "2")
        assert said.code == 0
        assert f"-m brimful {verb} {recipe_file}" in said.out


def test_ranks_started_by_a_launcher_start_no_others(
    brimful: Brimful, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for wait in ("REFUSAL_S", "OTHERS_WORD_S"):
        monkeypatch.setattr(endings, wait, 0.1)  # nobody comes to learn it
    _refused(brimful("train", recipe_file, "--devices", "2"), "started by a launcher already")


# --- what is refused before anything is written


def test_an_unknown_recipe_is_told_with_the_nearest(brimful: Brimful) -> None:
    for verb in ("plan", "train", "run"):
        _refused(
            brimful(verb, "quickstrt"),
            "no recipe 'quickstrt' - did you mean 'quickstart'?",
            "or give a .yaml file",
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sequence_length=long", ["sequence_length: must be a valid integer, got 'long'"]),
        (
            "model={layers: 1, heads: 64, width: 262144}",
            ["needs about", "to use", "`brimful plan` shows"],
        ),
        ("data.path=corpse.txt", ["no such file", "did you mean 'corpus.txt'?"]),
    ],
)
def test_what_is_wrong_is_told_before_there_is_a_run_folder(
    brimful: Brimful, recipe_file: Path, tmp_path: Path, change: str, said: list[str]
) -> None:
    _refused(
        brimful("train", recipe_file, change.replace("corpse", str(recipe_file.parent / "corpse"))),
        *said,
    )
    assert not (tmp_path / "runs").exists()


def test_all_wrong_keys_are_told_at_once(brimful: Brimful, recipe_file: Path) -> None:
    message = _refused(
        brimful("train", recipe_file, "seed=x", "model.layers=0", "oops"), "has 3 problems:"
    )

    assert [key for key in ("seed:", "model.layers:", "'oops':") if key in message] == [
        "seed:",
        "model.layers:",
        "'oops':",
    ]


@pytest.mark.parametrize("device", ["cuda:99", "tpu"])
def test_a_device_that_is_not_there_is_told(
    brimful: Brimful, recipe_file: Path, device: str
) -> None:
    _refused(brimful("plan", recipe_file, f"plan.device={device}"), device, "Here: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian", "quickstart"], "'trian' is no verb - did you mean 'train'?"),
        (["finetune", "lora"], "'finetune' is no verb - did you mean 'train'?"),
        (["lora", "data.path=my file"], "`brimful run lora 'data.path=my file'`"),
        (["train"], "Missing argument 'RECIPE'"),
        (["train", "quickstart", "--fresk"], "No such option: --fresk"),
        (["generate", "x", "--samples", "0"], "--samples"),
        (["generate", "x", "--tokens", "0"], "--tokens"),
        (["generate", "x", "--seed", "one"], "--seed"),
        ([], "Usage"),
    ],
)
def test_a_wrong_command_line_is_told_with_the_usage(
    brimful: Brimful, arguments: list[str], said: str
) -> None:
    result = brimful(*arguments)

    assert result.code == 2
    assert said in result.err + result.out
    assert "Traceback" not in result.err + result.out


def test_the_list_of_verbs_cuts_nothing(brimful: Brimful, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = brimful("--help")
    assert "..." not in said.out.partition("Options:")[2]
    assert max(map(len, said.out.splitlines())) <= 80


def test_the_list_of_verbs_is_in_groups_what_is_begun_with_first(brimful: Brimful) -> None:
    groups = brimful("--help").out.partition("Start here:")[2]
    first, *others = re.split(r"^(Runs|Catalogs|Further):$", groups, flags=re.MULTILINE)
    named = [re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE) for text in [first, *others[1::2]]]

    assert named[0] == ["plan", "data", "run", "generate", "report", "export", "serve"]
    assert others[::2] == ["Runs", "Catalogs", "Further"]
    assert named[2] == ["recipes", "models", "devices"]
    every = [name for group in named for name in group]
    assert sorted(every) == sorted(typer.main.get_command(cli.app).commands)


# --- what is refused once the data are read


def test_missing_data_are_told_before_a_mirror_is_opened(
    brimful: Brimful, recipe_file: Path, tmp_path: Path
) -> None:
    mirror = tmp_path / "drive"
    run = ("train", recipe_file, f"run.mirror={mirror}")

    _refused(brimful(*run, f"data.path={tmp_path / 'corpse.txt'}"), "no such file")
    assert not mirror.exists()


@pytest.mark.parametrize("content", [b"", b" \n\n\t\n"])
def test_an_empty_data_file_is_told(
    brimful: Brimful, recipe_file: Path, corpus: Path, content: bytes
) -> None:
    corpus.write_bytes(content)

    _refused(brimful("train", recipe_file), str(corpus), "holds no text")


def test_what_no_plan_can_mend_is_told_before_planning(
    brimful: Brimful,
    tuning: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plan(*_: object) -> None:
        raise AssertionError("planned")

    monkeypatch.setattr("brimful.chains.run_plan.derive", plan)
    recipe = tmp_path / "tuning.yaml"
    recipe.write_text(tuning().to_yaml())
    (tmp_path / "file").write_text("")
    run = ("train", recipe)
    with pytest.raises(AssertionError, match="planned"):
        brimful(*run)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    known, unknown = "meta-llama/Llama-3.1-8B", "nobody/nothing"
    said = _refused(brimful(*run, f"model={known}"), known, "could not be reached", "model=FOLDER")
    assert "catalog" not in said
    _refused(brimful(*run, f"model={unknown}"), unknown, "not in the catalog", "model=FOLDER")
    for place in (tmp_path / "file" / "runs", Path("/proc/runs")):
        _refused(brimful(*run, f"run.folder={place}"), str(place), "cannot be written")


def test_a_run_of_years_is_refused_until_it_is_meant(
    brimful: Brimful, recipe_file: Path, tmp_path: Path
) -> None:
    long = "training.steps=1000000000000"
    message = _refused(brimful("train", recipe_file, long), " years", "1,000,000,000,000 steps")
    assert "--yes" in message
    assert not (tmp_path / "runs" / "tiny").exists()  # before data are read
    assert load(str(recipe_file), [long, "run.long=true"]).run.long


def test_examples_are_not_read_for_a_run_of_years(
    brimful: Brimful, tuning: Callable[..., Recipe], tmp_path: Path
) -> None:
    """However short they are: each holds a token at least."""
    recipe = tmp_path / "tuning.yaml"
    recipe.write_text(tuning("training.steps=1000000000000000").to_yaml())
    _refused(brimful("train", recipe), " years", "1,000,000,000,000,000 steps", "--yes")
    assert not (tmp_path / "runs").exists()


def test_a_run_that_cannot_be_written_is_read(
    brimful: Brimful, rhyme: Path, permissions_hold: None
) -> None:
    """Only a report is to be written, and says where it cannot be."""
    folders = [rhyme, *(path for path in rhyme.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        for verb in (
            ("runs",),
            ("watch", "rhyme", "--once"),
            ("generate", "rhyme", "--prompt", "the", "--tokens", "2"),
        ):
            assert brimful(*verb).code == 0, verb
        _refused(brimful("report", "rhyme"), "report.html cannot be written", "Permission denied")
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_a_run_that_cannot_be_written_is_not_scored(
    brimful: Brimful, rhyme: Path, permissions_hold: None
) -> None:
    rhyme.chmod(0o500)
    try:
        _refused(brimful("evaluate", "rhyme"), str(rhyme), "cannot be written", "copy")
    finally:
        rhyme.chmod(0o700)


def test_a_file_that_the_system_refuses_is_no_traceback(
    brimful: Brimful, rhyme: Path, permissions_hold: None
) -> None:
    (rhyme / "model").chmod(0)
    try:
        _refused(brimful("diagnose", "rhyme"), str(rhyme / "model"), "Permission denied")
    finally:
        (rhyme / "model").chmod(0o700)


def test_a_text_that_is_one_document_trains(brimful: Brimful, recipe_file: Path) -> None:
    changes = ("data.document_start=null", "training.steps=1", "tokenizer.vocabulary=280")
    result = brimful("train", recipe_file, *changes)

    assert result.code == 0, result.err
    assert "the text is one document, so it is split by position" in " ".join(result.out.split())


def test_a_run_that_its_data_stopped_does_not_stand_in_the_way_of_the_corrected_one(
    brimful: Brimful, recipe_file: Path, corpus: Path
) -> None:
    _refused(brimful("train", recipe_file, f"data.path={corpus.with_name('absent.txt')}"))

    assert brimful("train", recipe_file, "training.steps=1").code == 0


# --- run folders


@pytest.mark.parametrize("place", ["file", "below a file", "proc"])
def test_a_run_folder_that_cannot_be_written_is_told(
    brimful: Brimful, recipe_file: Path, corpus: Path, place: str
) -> None:
    folder = {"file": corpus, "below a file": corpus / "x", "proc": Path("/proc/1")}[place]
    if not folder.exists() and place == "proc":
        pytest.skip("this system has no /proc")

    _refused(
        brimful("train", recipe_file, f"run.folder={folder}"),
        str(folder / "tiny"),
        "choose another place with run.folder=PATH",
    )


def test_a_folder_that_is_not_a_run_is_not_written_into(
    brimful: Brimful, recipe_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")

    _refused(brimful("train", recipe_file), f"{folder} is not empty and not a run folder")
    _refused(
        brimful("train", recipe_file, "--fresh"), f"{folder} is not empty and not a run folder"
    )
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_a_file_in_the_place_of_the_run_is_left_alone(
    brimful: Brimful, recipe_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tiny").write_text("a note")

    _refused(brimful("train", recipe_file), "run.name=NAME")
    assert (tmp_path / "runs" / "tiny").read_text() == "a note"


def test_a_run_that_another_process_writes_is_refused_with_its_number(
    brimful: Brimful, recipe_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    hold = (
        "import sys, pathlib; from brimful.base.rundir import Lease;"
        f" Lease.acquire(pathlib.Path({str(folder)!r})); print(flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()

        _refused(
            brimful("train", recipe_file),
            f"{folder} is being written by process {holder.pid}",
            "wait for it, stop it, or choose another name",
        )
        assert {path.name for path in folder.iterdir()} == {Lease.FILE_NAME}
    finally:
        holder.kill()
        holder.communicate()

    assert brimful("train", recipe_file, "training.steps=1").code == 0


@pytest.mark.parametrize("verb", ["generate", "evaluate", "diagnose", "report"])
def test_a_run_that_is_not_there_is_told(brimful: Brimful, tmp_path: Path, verb: str) -> None:
    _refused(brimful(verb, "nothing"), "no run 'nothing'", "brimful train")

    (tmp_path / "other").mkdir()
    _refused(brimful(verb, tmp_path / "other"), "is not a run folder")


# --- from recipe to report

GRAMMAR = """
name: rhyme
description: Learns a rhyme in a second.
sequence_length: 32
batch: {sequences: 16}
training: {steps: 100}
model: {architecture: llama, layers: 1, heads: 2, width: 32}
tokenizer: {kind: bpe, vocabulary: 280}
data: {path: CORPUS, document_start: "^# ", validation: 0.1, test: 0.1}
optimizer: {learning_rate: 2e-2, warmup: 5}
evaluation: {every: 50}
sample: {prompt: "one two", tokens: 8}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
"""


@pytest.fixture(scope="module")
def rhyme_cache(new_cache: Callable[[], str]) -> str:
    """What the run's data and the runs that go on with it keep."""
    return new_cache()


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory, rhyme_cache: str) -> Iterator[Path]:
    """A folder with corpus, recipe and, under `runs`, its finished run."""
    place = tmp_path_factory.mktemp("rhyme")
    draw, words = random.Random(0), ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    documents = []
    for number in range(120):
        at = draw.randrange(8)
        at_each = [
            at := (draw.randrange(8) if draw.random() < 0.1 else at + 1) % 8 for _ in range(60)
        ]
        documents.append(f"# verse {number}\n{' '.join(words[at] for at in at_each)}\n")
    (place / "corpus.txt").write_text("".join(documents))
    (place / "rhyme.yaml").write_text(GRAMMAR.replace("CORPUS", str(place / "corpus.txt")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", rhyme_cache)
        patch.setenv("BRIMFUL_RUNS", str(place / "runs"))
        patch.setattr("brimful.hardware.calibrate.measure_matrix_rates", lambda *_: {"fp32": 1e11})
        patch.setattr(sys, "argv", ["brimful", "train", str(place / "rhyme.yaml")])
        with pytest.raises(SystemExit) as ending:
            cli.main()
        assert not ending.value.code
        yield place


@pytest.fixture
def rhyme(
    trained_once: Path, rhyme_cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """An own copy of the finished run, among the runs of this test."""
    shutil.copytree(trained_once / "runs" / "rhyme", tmp_path / "runs" / "rhyme")
    monkeypatch.setenv("BRIMFUL_CACHE", rhyme_cache)
    return tmp_path / "runs" / "rhyme"


@pytest.fixture
def rhyme_file(trained_once: Path) -> Path:
    """The recipe of that run."""
    return trained_once / "rhyme.yaml"


def test_a_finished_run_is_told_as_finished_without_its_data(
    brimful: Brimful, rhyme: Path, rhyme_file: Path, tmp_path: Path
) -> None:
    """Here, and then in its mirror alone."""
    data = rhyme_file.with_name("corpus.txt")
    run = ("train", rhyme_file, f"run.mirror={tmp_path / 'drive'}")
    data.rename(data.with_suffix(".away"))
    try:
        here = brimful(*run)
        shutil.rmtree(rhyme)
        back = brimful(*run)
    finally:
        data.with_suffix(".away").rename(data)
    assert (here.code, back.code) == (0, 0)
    assert "is finished; nothing to train" in here.out
    assert "brought back from the mirror" in back.out
    assert "is finished; nothing to train" in back.out


def test_a_finished_run_holds_what_the_documents_promise(rhyme: Path) -> None:
    names = {path.name for path in rhyme.iterdir()}

    assert {
        "recipe.yaml",
        "plan.json",
        "environment.json",
        "data.json",
        "metrics.jsonl",
        "monitor.jsonl",
        "checkpoints",
        "model",
        "samples.jsonl",
        "run.json",
    } <= names
    assert Lease.FILE_NAME not in names
    assert json.loads((rhyme / "run.json").read_text())["status"] == "finished"
    (sample,) = map(json.loads, (rhyme / "samples.jsonl").read_text().splitlines())
    assert sample["prompt"] == "one two"
    assert sample["tokens"] <= 8


def test_a_finished_run_tells_where_every_second_went(rhyme: Path) -> None:
    run = read_run(rhyme)
    spent, latest = time_spent(run), run.monitored.samples[-1]

    assert spent is not None
    assert spent.total_s == pytest.approx(total_time_s(run))
    assert spent.loader_s is not None
    assert latest.readings["rss_bytes"] > 0.5 * measured(run)["peak_memory_bytes"]


def test_training_again_says_that_it_is_finished_and_trains_nothing(
    brimful: Brimful, rhyme: Path, rhyme_file: Path, snapshot: SnapshotAssertion
) -> None:
    before = {path: path.stat().st_mtime_ns for path in rhyme.rglob("*") if path.is_file()}

    said = brimful("train", rhyme_file)

    assert said.code == 0
    assert f"{rhyme} is finished; nothing to train" in said.out
    assert said.out == snapshot
    assert {path: path.stat().st_mtime_ns for path in rhyme.rglob("*") if path.is_file()} == before


def test_another_recipe_does_not_continue_the_run_and_is_told_what_differs(
    brimful: Brimful, rhyme: Path, rhyme_file: Path
) -> None:
    message = _refused(
        brimful("train", rhyme_file, "model.layers=2", "tokenizer.vocabulary=290"),
        "made by another recipe",
    )

    assert "  - model.layers: 1 -> 2\n  - tokenizer.vocabulary: 280 -> 290\n" in message


def test_a_change_of_the_training_is_applied_only_where_it_is_declared(
    brimful: Brimful, rhyme: Path, rhyme_file: Path
) -> None:
    _refused(
        brimful("train", rhyme_file, "training.steps=102"),
        "training.steps: 100 -> 102",
        "--accept-change training.steps",
    )

    longer = brimful("train", rhyme_file, "training.steps=102", "--accept-change", "training.steps")

    assert longer.code == 0
    assert "changed since the last session: training.steps: 100 -> 102" in longer.out
    assert [record["step"] for record in records_of(rhyme, "step")][-1] == 102


def test_generating_continues_the_prompt_and_the_same_seed_gives_the_same_text(
    brimful: Brimful, rhyme: Path
) -> None:
    first, same, other = (
        brimful(
            "generate",
            "rhyme",
            "--prompt",
            "one two",
            "--tokens",
            20,
            "--temperature",
            1.5,
            "--seed",
            seed,
        )
        for seed in (7, 7, 8)
    )

    assert first.code == 0
    assert first.err == ""
    assert first.out.startswith("one two")
    assert len(first.out) > len("one two\n")
    assert first.out == same.out
    assert first.out != other.out


def test_a_greedy_continuation_has_learned_the_rhyme(brimful: Brimful, rhyme: Path) -> None:
    said = brimful(
        "generate", "rhyme", "--prompt", "one two three", "--tokens", 8, "--temperature", 0
    )

    assert said.out.startswith("one two three four five six")


def test_several_samples_are_numbered_and_differ(brimful: Brimful, rhyme: Path) -> None:
    said = brimful(
        "generate", "rhyme", "--prompt", "one", "--tokens", 12, "--samples", 3, "--temperature", 1.5
    )

    head, *texts = [part.split(" ---\n")[-1] for part in said.out.split("--- ")]
    assert head == ""
    assert len(texts) == 3
    assert len(set(texts)) == 3
    assert all(text.startswith("one") for text in texts)
    assert [f"--- {number} ---" in said.out for number in (1, 2, 3)] == [True] * 3


def test_a_prompt_longer_than_the_context_is_told_and_nothing_is_shown(
    brimful: Brimful, rhyme: Path
) -> None:
    said = brimful("generate", "rhyme", "--prompt", "one two three " * 30)

    _refused(said, "the model reads at most 32", "Shorten the prompt")
    assert said.out == ""


@pytest.mark.parametrize("ending", ["", EOFError()])
def test_without_a_prompt_it_asks_until_an_empty_line_or_the_end_of_input(
    brimful: Brimful, rhyme: Path, monkeypatch: pytest.MonkeyPatch, ending: object
) -> None:
    lines = iter(["one two", "five", ending, "never read"])

    def answer(_prompt: str) -> str:
        line = next(lines)
        if isinstance(line, EOFError):
            raise line
        return str(line)

    monkeypatch.setattr("builtins.input", answer)
    said = brimful("generate", "rhyme", "--tokens", 5, "--temperature", 0)

    assert said.code == 0
    assert "Type a prompt" in said.out
    assert "\none two three four" in said.out
    assert "\nfive six" in said.out
    assert next(lines) == "never read"


def test_whether_a_text_is_python_is_said_where_it_is_asked_for(
    brimful: Brimful, rhyme: Path
) -> None:
    said = brimful(
        "generate",
        "rhyme",
        "--prompt",
        "one two three",
        "--tokens",
        8,
        "--temperature",
        0,
        "--code",
    )

    assert said.out.splitlines()[-1] == "--- does not parse: SyntaxError, line 1: invalid syntax"
    _refused(
        brimful("generate", "rhyme", "--prompt", "one", "--beside-base"),
        "trained a fresh model; there is nothing from before",
    )
    _refused(brimful("generate", "rhyme", "--beside-base"), "Add --prompt TEXT")


def test_a_run_is_exported_once_and_never_over_anything(
    brimful: Brimful, rhyme: Path, tmp_path: Path
) -> None:
    said = brimful("export", "rhyme", "--to", tmp_path / "elsewhere")

    assert said.out.startswith(f"wrote {tmp_path / 'elsewhere'} (")
    assert {
        path.name: path.read_bytes()
        for path in (tmp_path / "elsewhere").iterdir()
        if path.name != "MANIFEST.json"
    } == {
        path.name: path.read_bytes()
        for path in (rhyme / "model").iterdir()
        if path.name != "MANIFEST.json"
    }
    again = brimful("export", "rhyme", "--to", tmp_path / "elsewhere")
    assert "is there already, a whole export of this run" in again.out
    (tmp_path / "elsewhere" / "note.txt").write_text("mine")
    _refused(
        brimful("export", "rhyme", "--to", tmp_path / "elsewhere"),
        "never replaces anything",
        "--to FOLDER",
    )
    _refused(
        brimful("export", "rhyme", "--merge"), "no adapters to merge: its model is whole already"
    )
    _refused(brimful("export", "rhyme", "--dtype", "fp16"), "--dtype belongs to --merge")


def test_a_run_is_one_gguf_file_or_shown_as_it_would_be_pushed(
    brimful: Brimful, rhyme: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rhyme.gguf"
    assert brimful("export", "rhyme", "--gguf", "q8_0", "--to", file).out.startswith("wrote")
    assert "nothing to do" in brimful("export", "rhyme", "--gguf", "q8_0", "--to", file).out
    shown = brimful("export", "rhyme", "--to", tmp_path / "out", "--push", "ada/x", "--dry-run")
    assert "model.safetensors" in shown.out
    assert "# x" in shown.out
    _refused(brimful("export", "rhyme", "--gguf", "f16", "--merge"), "leave --merge")
    _refused(brimful("export", "rhyme", "--dry-run"), "belong to --push USER/NAME")
    _refused(brimful("export", "rhyme", "--push", "x", "--dry-run"), "write USER/NAME")


@pytest.mark.filterwarnings("ignore")  # peft warns about itself
def test_a_tuned_run_answers_beside_its_base_and_is_exported_merged(
    brimful: Brimful, tuning: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code.yaml").write_text(
        tuning("training.steps=2", "evaluation.tasks=[code-syntax]").to_yaml()
    )
    trained = brimful("train", tmp_path / "code.yaml")
    assert "sample after 'Say red twice.':" in trained.out

    answered = brimful(
        "generate", "tuned", "--prompt", "Say red twice.", "--tokens", 8, "--temperature", 0
    )
    assert not answered.out.startswith("Say")
    assert answered.out.splitlines()[-1].startswith("--- ")
    assert "---" not in brimful(
        "generate", "tuned", "--prompt", "Say red twice.", "--tokens", 8, "--no-code"
    ).out.replace("--- stopped", "")

    beside = brimful(
        "generate",
        "tuned",
        "--prompt",
        "Say red twice.",
        "--tokens",
        8,
        "--temperature",
        0,
        "--beside-base",
    ).out
    assert beside.startswith("=== before tuning ===")
    assert beside.count("--- given the prompt under headings of plain text, ") == 2
    assert f"=== after tuning ===\n{answered.out.rstrip()}" in beside

    lines = iter(["Say red.", "/new", ""])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(lines))
    assert "/new forgets what was said" in brimful("generate", "tuned", "--tokens", 4).out

    assert "rounding allows" in brimful("export", "tuned", "--merge", "--dtype", "fp16").out
    assert (tmp_path / "runs" / "tuned" / "merged" / "model.safetensors").exists()


def test_evaluating_prints_json_alone_and_keeps_it(brimful: Brimful, rhyme: Path) -> None:
    said = brimful("evaluate", "rhyme", "--json")

    scores = json.loads(said.out)
    assert said.code == 0
    assert list(scores) == ["validation", "test"]
    assert read_json(rhyme / "scores.json") == scores
    for score in scores.values():
        low, high = score["bits_per_byte_interval"]
        assert low < score["bits_per_byte"] < high
        assert score["bits_per_byte"] < score["baselines"]["unigram"]["bits_per_byte"]


def test_evaluating_for_people_names_the_split_and_the_baselines(
    brimful: Brimful, rhyme: Path
) -> None:
    said = brimful("evaluate", "rhyme", "--split", "test")

    assert said.code == 0
    for word in ("\ntest ", "Bits per byte", "\nBigram "):
        assert word in said.out
    assert "validation" not in said.out


def test_a_sliding_window_scores_every_token_with_more_context(
    brimful: Brimful, rhyme: Path
) -> None:
    def score(stride: int) -> dict[str, Any]:
        (only,) = json.loads(
            brimful("evaluate", "rhyme", "--split", "test", "--json", "--stride", stride).out
        ).values()
        return dict(only)

    plain, sliding = score(32), score(8)

    assert plain["tokens"] == sliding["tokens"]
    assert sliding["windows"] > plain["windows"]
    assert sliding["loss"] < plain["loss"]


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--split", "dev", "no split 'dev'"),
        ("--stride", "0", "stride 0"),
        ("--stride", "33", "stride 33"),
    ],
)
def test_an_evaluation_that_cannot_be_done_is_told(
    brimful: Brimful, rhyme: Path, option: str, value: str, told: str
) -> None:
    _refused(brimful("evaluate", "rhyme", option, value), told)


def test_scores_of_changed_data_are_refused(
    brimful: Brimful, rhyme: Path, rhyme_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text((rhyme_file.with_name("corpus.txt")).read_text() + "# verse 999\none more\n")
    recipe = read_recipe_text(rhyme / "recipe.yaml")
    write_recipe(rhyme, recipe.replace(str(rhyme_file.with_name("corpus.txt")), str(corpus)))

    _refused(brimful("evaluate", "rhyme"), "changed since it was trained on")


def test_a_sound_run_is_diagnosed_as_sound(brimful: Brimful, rhyme: Path) -> None:
    said = brimful("diagnose", "rhyme")
    findings = json.loads(brimful("diagnose", "rhyme", "--json").out)

    assert said.code == 0, said.out
    assert {finding["verdict"] for finding in findings} <= {"ok", "warn"}
    assert all(f"{finding['name']}: " in said.out for finding in findings)


def test_generate_writes_one_text_into_a_file(
    brimful: Brimful, rhyme: Path, tmp_path: Path
) -> None:
    """The text that it prints otherwise."""
    asked = ("generate", "rhyme", "--prompt", "one", "--tokens", "8", "--seed", "3")
    printed, file = brimful(*asked), tmp_path / "text.txt"
    said = brimful(*asked, "--output", str(file))

    assert (said.code, said.out) == (0, "")
    assert file.read_text().startswith("one")
    assert file.read_text() == printed.out
    refused = brimful("generate", "rhyme", "--output", str(file))
    assert (refused.code, "--prompt" in refused.err) == (2, True)


def test_a_damaged_checkpoint_is_diagnosed_with_exit_code_1(brimful: Brimful, rhyme: Path) -> None:
    newest = max((rhyme / "checkpoints").glob("step-*"))
    with open(newest / "optimizer.safetensors", "r+b") as file:
        file.seek(-4, 2)
        file.write(b"\xff\xff\xff\xff")

    said = brimful("diagnose", "rhyme")

    assert said.code == 1
    assert "BAD  checkpoints" in said.out
    assert newest.name in said.out


def test_the_report_is_one_file_that_names_the_run_and_its_scores(
    brimful: Brimful, rhyme: Path
) -> None:
    assert brimful("evaluate", "rhyme").code == 0
    said = brimful("report", "rhyme")

    assert said.code == 0
    assert said.out.endswith(f"report: {rhyme / 'report.html'}\n")
    assert "Time per optimizer step" in said.out
    page = (rhyme / "report.html").read_text()
    assert "rhyme" in page
    assert "bits per byte" in page.lower()
    told = brimful("report", "rhyme", "--files").out.splitlines()[-1]
    assert told == f"files: {len(list((rhyme / 'files').iterdir()))} in {rhyme / 'files'}"
    assert {"README.txt", "loss.png", "loss.svg", "predictions.csv"} <= {
        path.name for path in (rhyme / "files").iterdir()
    }


def test_the_report_as_json_is_all_that_the_page_shows(brimful: Brimful, rhyme: Path) -> None:
    said = brimful("report", "rhyme", "--json", "--files")

    assert said.code == 0
    view = json.loads(said.out)
    chapters = {each["key"]: each for each in view["sections"]}
    page = (rhyme / "report.html").read_text()
    assert all(each["heading"] in html.unescape(page) for each in chapters.values())
    tables = [each for each in chapters["predictions"]["blocks"] if each["block"] == "Table"]
    measured = {row[0]: row[2]["value"] for table in tables for row in table["rows"] if row[2]}
    assert measured["Parameters"] == read_run(rhyme).predicted("parameters")


def test_runs_stand_side_by_side_with_what_they_reached_and_cost(
    brimful: Brimful, rhyme: Path
) -> None:
    shutil.copytree(rhyme, rhyme.with_name("again"))

    lines = brimful("compare", "rhyme", "again").out.splitlines()
    values = json.loads(brimful("compare", "rhyme", "again", "--json").out)

    assert lines[0].split()[:2] == ["Validation", "loss"]
    assert [line.split()[0] for line in lines[1:3]] == ["rhyme", "again"]
    assert (
        values["variants"][0]["figures"]["trainable_parameters"]
        == values["variants"][1]["figures"]["trainable_parameters"]
    )
    assert brimful("compare", "rhyme", "again", "--markdown").out.startswith(
        "|  | Validation loss (nats/token) |"
    )
    _refused(brimful("compare", "rhyme", "rhyme"), "give different runs")
    page = rhyme.with_name("both.html")
    assert brimful("compare", "rhyme", "again", "--page", page).out.endswith(f"page: {page}\n")
    assert "rhyme and again - brimful comparison" in page.read_text()


def test_run_is_the_whole_chain(
    brimful: Brimful, recipe_file: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    said = brimful("run", recipe_file)

    assert said.code == 0, said.err
    folder = tmp_path / "runs" / "tiny"
    ending = f"report: {folder / 'report.html'}\nnext: brimful generate tiny --prompt TEXT\n"
    assert said.out.endswith(ending)
    for name in ("model", "samples.jsonl", "scores.json", "report.html"):
        assert (folder / name).exists()
    again = brimful("run", recipe_file)
    assert again.code == 0
    assert again.out == snapshot


def test_training_says_nothing_on_standard_error(brimful: Brimful, recipe_file: Path) -> None:
    said = brimful("train", recipe_file)

    assert (said.code, said.err) == (0, "")
    assert said.out.endswith(
        "next: brimful evaluate tiny\n"
        "      brimful generate tiny --prompt TEXT\n"
        "      brimful report tiny\n"
    )


def test_a_run_tells_what_was_predicted_beside_what_was_measured_and_remembers_it(
    brimful: Brimful, recipe_file: Path
) -> None:
    said = brimful("train", recipe_file)

    assert said.code == 0, said.err
    assert "Peak memory" in said.out[said.out.index("Quantity ") :]
    assert "(planned " in said.out
    [path] = (cache_folder() / "calibration").glob("*.json")
    [noted] = json.loads(path.read_text())["runs"]
    assert noted["key"] == "tiny"
    assert noted["measured"].keys() == noted["predicted"].keys() >= {"peak_memory_bytes"}


def test_a_stopped_and_continued_run_is_remembered_once_with_what_its_plan_was_corrected_by(
    brimful: Brimful, recipe_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from brimful.training import loop

    def store() -> tuple[Path, dict[str, Any]]:
        [path] = (cache_folder() / "calibration").glob("*.json")
        return path, json.loads(path.read_text())

    def stop(*_: object, **__: object) -> None:
        raise Interrupted("stopped", 2)

    monkeypatch.setattr("brimful.training.meter.FLUSH_AFTER_S", 0.0)
    # As on a machine at rest, whose runs alone correct later times.
    monkeypatch.setattr(
        "brimful.training.meter.own_s", lambda began, now: now.passed - began.passed
    )
    assert brimful("train", recipe_file, "run.name=earlier").code == 0
    path, before = store()
    assert brimful("train", recipe_file, "run.name=earlier").code == 0
    assert store()[1] == before
    with monkeypatch.context() as patch:
        patch.setattr(loop, "guarded_update", stop)
        assert brimful("train", recipe_file).code == 130
    assert store()[1] == before
    changed = before | {"runs": [*before["runs"] * 3]}
    write_json_atomically(path, changed, with_checksum=True)  # what is known changes in between

    assert brimful("train", recipe_file).code == 0

    noted, plan = (
        store()[1]["runs"][3:],
        json.loads((tmp_path / "runs" / "tiny" / "plan.json").read_text()),
    )
    assert len(noted) == 1
    assert noted[0]["basis"] == plan["rates_basis"] != ""
    assert plan["correction"] != 1
    assert noted[0]["predicted"]["step_time_s"] == pytest.approx(
        plan["predicted"]["step_time_s"] / plan["correction"]
    )


def test_a_store_that_cannot_be_written_costs_no_run(brimful: Brimful, recipe_file: Path) -> None:
    (cache_folder() / "calibration").write_text("in the way")
    said = brimful("train", recipe_file)

    assert said.code == 0, said.err
    assert "not remembered for later plans" in said.out
    assert "next: brimful evaluate tiny" in said.out


# --- questions


def test_a_plan_is_explained_or_printed_as_json_alone(
    brimful: Brimful, recipe_file: Path, tmp_path: Path
) -> None:
    told, values = (
        brimful("plan", recipe_file),
        json.loads(brimful("plan", recipe_file, "batch.sequences=5", "--json").out),
    )

    assert told.code == 0
    assert "precision" in told.out
    assert "Memory at the peak" in told.out
    assert "Time and cost" in told.out
    (device,) = values["devices"]
    assert device["plan"]["effective_batch"] == 5
    assert device["verdict"] == "fits"
    assert not (tmp_path / "runs").exists()


def test_a_plan_for_devices_that_are_not_here(brimful: Brimful, recipe_file: Path) -> None:
    told = brimful("plan", recipe_file, "--on", "Tesla T4,NVIDIA H200", "--explain")

    assert told.code == 0
    assert "Tesla T4" in told.out
    assert "Largest at the peak on NVIDIA H200" in told.out


def test_a_plan_that_does_not_fit_has_exit_code_1_and_is_not_saved(
    brimful: Brimful, recipe_file: Path, tmp_path: Path
) -> None:
    as_in_the_tests_of_reports = (
        "model={layers: 1, heads: 64, width: 65536}",
        "sequence_length=2048",
        "batch.sequences=6",
        "plan={}",
    )
    asked = ("plan", recipe_file, *as_in_the_tests_of_reports, "--on", "Tesla T4")
    told = brimful(*asked)

    assert told.code == 1
    assert "does not fit" in told.out
    assert "would take less" in told.out
    _refused(brimful(*asked, "--save", tmp_path / "plan.json"), "needs about", "to use")
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--on", "Tesla T5"), "unknown device 'Tesla T5' - did you mean 'Tesla T4'?"),
        (("--on", ","), "--on names no device"),
        (
            ("model=nobody/nothing", "tokenizer=null", "--on", "Tesla T4"),
            "A local config.json is enough",
        ),
        (
            (
                "model=google/gemma-2-2b",
                "tokenizer=null",
                "adapter.targets=[nothing]",
                "--on",
                "Tesla T4",
            ),
            "no linear layer is named nothing",
        ),
        (
            (
                "model=openai-community/gpt2",
                "tokenizer=null",
                "sequence_length=2048",
                "--on",
                "Tesla T4",
            ),
            "above the 1024 positions",
        ),
    ],
)
def test_what_cannot_be_planned_is_told_with_exit_code_2(
    brimful: Brimful, recipe_file: Path, arguments: tuple[str, ...], said: str
) -> None:
    told = brimful("plan", recipe_file, *arguments)

    assert told.code == 2
    assert said in told.err


def test_devices_are_compared_by_time_and_cost(brimful: Brimful, recipe_file: Path) -> None:
    asked = ("plan", recipe_file, "--on", "Tesla T4,NVIDIA H200,NVIDIA L4")

    told, cheapest = (
        brimful(*asked, "--sort", "time"),
        brimful(*asked, "--sort", "cost", "--price", "NVIDIA L4=0.0001", "--json"),
    )

    assert told.code == cheapest.code == 0
    assert told.out.startswith("3 of 3 devices fit; cheapest ")
    assert max(map(len, told.out.splitlines())) <= 120
    first = json.loads(cheapest.out)["devices"][0]
    assert first["device"] == "NVIDIA L4"
    assert "given by --price" in first["plan"]["basis"]["cost_usd"]
    assert brimful(*asked, "--sort", "speed").code == 2


@pytest.mark.parametrize(
    ("budget", "code", "said"),
    [
        ("10d", 0, "is kept: "),
        ("0.1s", 1, "is not kept: "),
        ("500usd", 0, "is kept: "),
        ("$0.000001", 1, "is not kept: "),
    ],
)
def test_a_budget_is_answered_and_is_the_exit_code(
    brimful: Brimful, recipe_file: Path, budget: str, code: int, said: str
) -> None:
    told = brimful("plan", recipe_file, "--on", "Tesla T4", "--budget", budget)

    assert told.code == code
    assert said in told.out
    assert ("surely keep" in told.out) is (code == 1)


def test_a_list_of_devices_answers_a_budget_in_a_column(
    brimful: Brimful, recipe_file: Path
) -> None:
    told = brimful("plan", recipe_file, "--on", "Tesla T4,Tesla P4", "--budget", "5usd")

    assert told.code == 0
    assert "for $5.00" in told.out
    assert "Budget $5.00: 1 of 1 device that can hold it surely keeps to it" in told.out


def test_sessions_are_counted_and_stand_in_json(brimful: Brimful, recipe_file: Path) -> None:
    asked = ("plan", recipe_file, "--on", "Tesla T4", "--session", "12h")

    assert "Sessions: 1 session of 12h 00m" in brimful(*asked).out
    assert json.loads(brimful(*asked, "--json").out)["sessions"]["Tesla T4"]["count"][0] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--budget", "soon"), "--budget 'soon' is neither a time nor money above zero"),
        (("--budget", ""), "Within double quotes a shell replaces $5"),
        (("--session", "12"), "--session '12' is not a time above zero"),
        (("--session", "1s"), "--session 1.0 s is too short: start"),
        (("--price", "cheap"), "--price 'cheap' is not a price"),
        (("--price", "L41=1"), "unknown device 'L41'"),
        (
            ("--budget", "$5", "--on", "Tesla P4"),
            "no price is known for Tesla P4. Say what an hour costs in US dollars: --price 2.5",
        ),
        (
            ("--budget", "3h", "training.epochs=2", "data.path=some/unread"),
            "Say how long it is with training.steps=N or training.tokens=N",
        ),
        (("--save", "x.json", "--on", "all"), "--save writes the plan of one device"),
        (
            ("--save", "x.json", "--on", "Tesla T4,NVIDIA L4"),
            "--save writes the plan of one device",
        ),
    ],
)
def test_a_wrong_limit_is_refused_with_the_way_out(
    brimful: Brimful, recipe_file: Path, arguments: tuple[str, ...], said: str
) -> None:
    _refused(brimful("plan", recipe_file, "--on", "Tesla T4", *arguments), said)


# --- plans in files


@pytest.fixture
def plan_file(brimful: Brimful, recipe_file: Path, tmp_path: Path) -> Path:
    """A plan for this machine with micro-batch 3."""
    assert (
        brimful("plan", recipe_file, "plan.micro_batch=3", "--save", tmp_path / "plan.json").code
        == 0
    )
    return tmp_path / "plan.json"


def test_a_saved_plan_is_trained_with(
    brimful: Brimful, recipe_file: Path, plan_file: Path, tmp_path: Path
) -> None:
    said = brimful("train", recipe_file, "training.steps=12", "--plan", plan_file)

    assert said.code == 0
    used = read_json(tmp_path / "runs" / "tiny" / "plan.json")
    saved = json.loads(plan_file.read_text())["plan"]
    # Known when the run's steps are.
    assert used == saved | {"evaluate_every": 6}
    assert used["micro_batches"] == [3, 3, 2]
    [remembered] = (cache_folder() / "calibration").glob("*.json")
    assert len(json.loads(remembered.read_text())["runs"]) == 1


def test_a_saved_plan_of_another_recipe_or_device_is_refused_before_there_is_a_run(
    brimful: Brimful, recipe_file: Path, plan_file: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "t4.json"
    assert brimful("plan", recipe_file, "--on", "Tesla T4", "--save", foreign).code == 0

    _refused(
        brimful("train", recipe_file, "model.layers=1", "--plan", plan_file),
        "made for another recipe:",
        "model.layers: 2 -> 1",
    )
    _refused(brimful("run", recipe_file, "--plan", foreign), "was made for Tesla T4, but this is ")
    _refused(brimful("train", recipe_file, "--plan", tmp_path / "absent.json"), "cannot be read")
    _refused(
        brimful("train", recipe_file, "plan.micro_batch=4", "--plan", plan_file),
        "plan.micro_batch=4",
        "says 3",
    )
    assert not (tmp_path / "runs").exists()


def test_a_saved_micro_batch_that_does_not_fit_here_is_refused_before_there_is_a_run(
    brimful: Brimful,
    recipe_file: Path,
    plan_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from brimful.chains import ranks

    smaller = replace(ranks.here(load(str(recipe_file))), free_memory_bytes=1024**2)
    monkeypatch.setattr(ranks, "here", lambda _: smaller)

    _refused(
        brimful("train", recipe_file, "--plan", plan_file),
        "needs about",
        "for 3 sequences of 32 tokens",
        "to use",
    )
    assert not (tmp_path / "runs").exists()


def test_a_published_model_is_planned_without_its_weights_and_trained_with_them_alone(
    brimful: Brimful, recipe_file: Path
) -> None:
    arguments = (
        recipe_file,
        "model=HuggingFaceTB/SmolLM2-135M",
        "tokenizer=null",
        "adapter.rank=4",
        "sequence_length=2048",  # its recordings come with brimful
        "plan={}",
    )

    planned, trained = brimful("plan", *arguments, "--on", "Tesla T4"), brimful("train", *arguments)

    assert planned.code == 0
    assert "\n135.7M parameters, of which 1.22M train." in planned.out
    assert trained.code == 2
    assert "model=FOLDER" in trained.err


def test_a_plan_is_verified_by_a_real_step(brimful: Brimful, recipe_file: Path) -> None:
    told = brimful("plan", recipe_file, "--verify")
    assert told.code == 0
    assert "The plan keeps exactly" in told.out
    assert told.out.rstrip().endswith(
        "verified: every difference is within what rounding in fp32 explains."
    )
    values = json.loads(
        brimful(
            "plan", recipe_file, "--verify", "--json", "--on", "Tesla T4", "plan.precision=bf16"
        ).out
    )
    assert values["verification"]["passed"] is True
    assert values["verification"]["untested"]


def test_a_plan_that_is_not_verified_has_exit_code_1(
    brimful: Brimful, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.rehearsal.verify.ERROR_IN_UNITS", {"fp32": 0.0})
    told = brimful("plan", recipe_file, "--verify")
    assert told.code == 1
    assert "NOT VERIFIED: " in told.out


def test_what_cannot_be_verified_is_told_before_anything_is_planned(
    brimful: Brimful, recipe_file: Path
) -> None:
    _refused(
        brimful("plan", recipe_file, "--verify", "--on", "all"),
        "--verify runs the plan of one device",
    )
    _refused(
        brimful("plan", recipe_file, "--verify", "--on", "here,Tesla T4"),
        "--verify runs the plan of one device",
    )
    _refused(
        brimful("plan", recipe_file, "--verify", "model=openai-community/gpt2", "tokenizer=null"),
        "--verify runs a step",
        "fresh models only",
    )


def test_a_changed_effective_batch_is_told_what_it_asks_of_the_learning_rate(
    brimful: Brimful, recipe_file: Path
) -> None:
    told = brimful("plan", recipe_file, "batch.sequences=32", "--json")
    assert "optimizer.learning_rate=0.02" in told.err
    assert json.loads(told.out)["devices"][0]["plan"]["effective_batch"] == 32
    assert not brimful("plan", recipe_file, "batch.sequences=8", "--json").err


def test_the_machine_is_described_or_printed_as_json_alone(brimful: Brimful) -> None:
    assert brimful("doctor").code == 0
    assert json.loads(brimful("doctor", "--json").out)


def test_a_machine_is_measured_shown_and_forgotten(
    brimful: Brimful, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(device: Device, _: Path, *, threads: int | None, **__: object) -> Calibration:
        rates = Rates({"matrix": {"fp32": 1.23e11}}, {"matrix": 1e10})
        return Calibration(
            device.name, rates, threads or device.threads, {}, current_versions(), 0.0, 1
        )

    monkeypatch.setattr("brimful.hardware.calibrate.calibrate", measure)
    assert "never calibrated" in brimful("calibrate", "--show", "--device", "cpu").out

    measured, shown = (
        brimful("calibrate", "--device", "cpu"),
        brimful("calibrate", "--show", "--device", "cpu"),
    )

    assert measured.code == 0
    assert "123" in measured.out
    assert shown.out == measured.out
    assert (
        json.loads(brimful("calibrate", "--show", "--device", "cpu", "--json").out)["unused"]
        is None
    )
    assert "forgot all about" in brimful("calibrate", "--reset", "--device", "cpu").out
    assert "nothing was remembered" in brimful("calibrate", "--reset", "--device", "cpu").out


def test_one_device_alone_has_no_link_to_measure(
    brimful: Brimful, snapshot: SnapshotAssertion
) -> None:
    said = brimful("calibrate", "--devices", "1", "--device", "cpu")

    assert said.code == 2
    assert said.err == snapshot


def test_a_device_that_is_not_there_cannot_be_calibrated(brimful: Brimful) -> None:
    _refused(brimful("calibrate", "--device", "gpu"), "unknown device 'gpu'")


def test_recipes_are_listed_one_a_line_shown_as_written_and_described(brimful: Brimful) -> None:
    lines = brimful("recipes").out.splitlines()

    assert [line.split()[0] for line in lines] == shipped_names()
    assert all(load(line.split()[0]).description in line for line in lines)
    assert brimful("recipes", "show", "quickstart").out == shipped_text("quickstart")
    assert json.loads(brimful("recipes", "schema").out) == Recipe.model_json_schema()


def test_showing_what_is_not_shipped_is_refused(brimful: Brimful, recipe_file: Path) -> None:
    _refused(brimful("recipes", "show", "quickstrt"), "did you mean 'quickstart'?")
    _refused(brimful("recipes", "show", recipe_file), "no shipped recipe")


# --- exits


@pytest.mark.parametrize(
    ("error", "code"), [(BrimfulError("x y"), 2), (Interrupted("x y", 15), 143)]
)
def test_an_error_on_purpose_is_its_message_and_its_exit_code(
    brimful: Brimful, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail() -> list[str]:
        raise error

    monkeypatch.setattr("brimful.recipe.shipped_names", fail)

    assert brimful("recipes") == Said(code, "", "brimful: x y\n")


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr("brimful.recipe.shipped_names", fail)
    monkeypatch.setattr(sys, "argv", ["brimful", "recipes"])

    with pytest.raises(ZeroDivisionError):
        cli.main()


if __name__ == "__main__":
    print(verbs_and_flags(), end="")


def test_the_package_runs_as_a_module() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "brimful", "--help"], capture_output=True, text=True, check=True
    )

    assert "calibrate" in told.stdout
