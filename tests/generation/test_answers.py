"""Below an answer stands what a reader needs to know of it; a conversation keeps what fits."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fixture_types import MakeRun, Refuses
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.text import printable
from brimful.data.chat import Template
from brimful.data.formats import Message
from brimful.generation.answers import (
    Conversation,
    GenerationRequest,
    converse,
    manner_of_asking,
    show_before_and_after,
    show_beside,
    write,
)
from brimful.generation.load import LoadedRun, load_run, load_untuned
from brimful.generation.sampler import GREEDY, SamplingSettings
from brimful.generation.samples import TextSample, draw_samples
from brimful.recipe import AdapterRecipe

SAMPLE = TextSample(
    "a task",
    "x = 1\n",
    "end_of_text",
    seed=0,
    temperature=0.0,
    top_k=None,
    top_p=1.0,
    tokens=7,
    seconds=0.1,
)
CPU = torch.device("cpu")
GREEDILY = GenerationRequest(GREEDY, tokens=6)
LINES = ("before [b]" + " word" * 3, "after\nsecond line")


@pytest.fixture
def loaded(make_tuned: MakeRun) -> LoadedRun:
    """A run on messages."""
    return load_run(make_tuned(), CPU, torch.float32)


@pytest.fixture
def on_text(make_tuned: MakeRun) -> LoadedRun:
    """A tuned run on text."""
    return load_run(make_tuned(name="text", prompts="text"), CPU, torch.float32)


@pytest.fixture
def fresh(make_run: MakeRun) -> LoadedRun:
    """A run that was trained from nothing."""
    return load_run(make_run(), CPU, torch.float32)


def shown(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_beside(console, [("base", LINES[0]), ("tuned", LINES[1])])
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def asking(*lines: str) -> Callable[[], str]:
    remaining = iter([*lines, ""])
    return lambda: next(remaining)


def judging(code: str | None = None, verdict: str = "parses as Python") -> GenerationRequest:
    return GenerationRequest(GREEDY, judge=lambda text: (text if code is None else code, verdict))


# --- remarks


def test_an_answer_that_is_code_alone_gets_one_line(
    loaded: LoadedRun, snapshot: SnapshotAssertion
) -> None:
    assert judging().remarks(loaded, SAMPLE) == snapshot


def test_code_with_text_around_it_is_shown_alone(loaded: LoadedRun) -> None:
    sample = replace(SAMPLE, completion="Here:\n```python\nx = 1\n```\nDone.")
    assert judging("x = 1\n").remarks(loaded, sample) == [
        "--- its code:",
        "x = 1",
        "--- parses as Python",
    ]


def test_an_empty_answer_shows_no_code(loaded: LoadedRun, snapshot: SnapshotAssertion) -> None:
    assert (
        judging("", "is no program: empty").remarks(loaded, replace(SAMPLE, completion="```\n```"))
        == snapshot
    )


def test_an_answer_that_was_cut_says_so_whether_or_not_it_is_code(
    loaded: LoadedRun, snapshot: SnapshotAssertion
) -> None:
    cut = replace(SAMPLE, finish="length", tokens=200)
    assert GREEDILY.remarks(loaded, cut) == snapshot
    assert len(judging().remarks(loaded, cut)) == 2
    assert GREEDILY.remarks(loaded, SAMPLE) == []


def test_a_text_that_goes_on_has_no_end_and_is_judged_as_a_whole(
    fresh: LoadedRun, snapshot: SnapshotAssertion
) -> None:
    cut = replace(SAMPLE, finish="length")
    seen: list[str] = []
    judge = GenerationRequest(
        GREEDY, judge=lambda text: (text, seen.append(text) or "parses as Python")
    )
    assert judge.remarks(fresh, cut) == snapshot
    assert seen == ["a taskx = 1\n"]


# --- writing


def test_an_answer_to_a_message_stands_alone_and_other_texts_behind_their_prompt(
    loaded: LoadedRun, on_text: LoadedRun, fresh: LoadedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, opening in ((loaded, ""), (on_text, "the cat"), (fresh, "the cat")):
        (sample,) = write(run, "the cat", GREEDILY)
        text, *rest = capsys.readouterr().out.split("\n---")
        assert text.removesuffix("\n") == printable(opening + sample.completion)
        assert rest == (
            []
            if run is fresh or sample.finish == "end_of_text"
            else [" stopped after 6 tokens, without its end\n"]
        )


def test_several_answers_are_numbered(
    loaded: LoadedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = write(
        loaded, "the cat", GenerationRequest(SamplingSettings(1.0, None, 1.0), tokens=4, count=2)
    )
    out = capsys.readouterr().out
    assert len(samples) == 2
    assert out.startswith(f"--- 1 ---\n{printable(samples[0].completion)}\n")
    assert f"--- 2 ---\n{printable(samples[1].completion)}\n" in out


TITLE = "\x1b]0;owned\x07 and \x1b[2J\x9b31m\r\tgone\n"
"""Sets the title of a terminal, clears its screen, writes in red, returns to the line's start."""


def test_no_control_characters_of_a_text_reach_a_terminal(
    fresh: LoadedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    escaped = r"\x1b]0;owned\x07 and \x1b[2J\x9b31m\r" + "\tgone\n"
    console, raw = Console(file=io.StringIO(), width=200, force_terminal=True), io.StringIO()

    for count in (1, 2):
        how = replace(GREEDILY, count=count)
        write(fresh, f"the cat{TITLE}", how)
        assert f"the cat{escaped}" in (out := capsys.readouterr().out)
        assert not set(out) & set("\x1b\x07\x9b\r")
    show_beside(console, [("before", TITLE), ("after", TITLE)])
    beside = console.file.getvalue()  # type: ignore[attr-defined]
    assert r"\x1b]0;owned\x07" in beside
    assert "\x1b]0" not in beside

    (sample,) = write(fresh, f"the cat{TITLE}", GREEDILY, raw, shown=str)
    assert raw.getvalue().startswith(f"the cat{TITLE}{sample.completion}")


# --- before and after


@pytest.mark.parametrize("adapter", [AdapterRecipe(rank=4), None])
def test_the_model_from_before_is_asked_with_the_same_tokens(
    make_tuned: MakeRun, adapter: AdapterRecipe | None
) -> None:
    run = make_tuned(adapter)
    console = Console(file=io.StringIO(), width=80)
    show_before_and_after(console, run, CPU, "the cat", GREEDILY)

    before, after = (
        load(run).model
        for load in (
            lambda run: load_untuned(run, CPU),
            lambda run: load_run(run, CPU, torch.float32),
        )
    )
    texts = [
        draw_samples(
            replace(load_untuned(run, CPU), model=model),
            "the cat",
            GREEDY,
            max_new_tokens=6,
            count=1,
            seed=0,
        )[0].completion
        for model in (before, after)
    ]
    out = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert texts[0] != texts[1]
    assert out.startswith(f"=== before tuning ===\n{printable(texts[0])}\n")
    assert f"=== after tuning ===\n{printable(texts[1])}\n" in out
    number = len(load_untuned(run, CPU).prompt_ids("the cat"))
    assert out.count(f"--- given the prompt under headings of plain text, {number} tokens") == 2


def test_a_run_that_tuned_nothing_has_no_before(make_run: MakeRun, refuses: Refuses) -> None:
    run = make_run()
    (run / "data.json").write_text('{"fingerprints": {}}')
    with refuses(RunFolderError):
        show_before_and_after(Console(file=io.StringIO()), run, CPU, "the cat", GREEDILY)


def test_it_is_said_how_a_model_is_asked(
    loaded: LoadedRun, on_text: LoadedRun, fresh: LoadedRun, snapshot: SnapshotAssertion
) -> None:
    assert [manner_of_asking(run) for run in (loaded, on_text, fresh)] == snapshot
    loaded.tokenizer.chat_template = (
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    assert manner_of_asking(replace(loaded, template=Template.of(loaded.tokenizer))) == snapshot


def test_two_answers_stand_side_by_side_in_a_wide_terminal() -> None:
    lines = shown(120).splitlines()
    assert next(line for line in lines if "base" in line).split() == ["base", "tuned"]
    assert next(line for line in lines if "before" in line).split() == [
        "before",
        "[b]",
        "word",
        "word",
        "word",
        "after",
    ]


def test_two_answers_stand_one_above_the_other_in_a_narrow_terminal() -> None:
    assert shown(80).splitlines() == [
        "=== base ===",
        "before [b] word word word",
        "",
        "=== tuned ===",
        "after",
        "second line",
        "",
    ]


# --- conversations


def test_a_conversation_goes_on_from_all_that_was_said_until_it_begins_anew(
    loaded: LoadedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    converse(loaded, GREEDILY, asking("the cat", "on", "/new", "on"))
    _, first, later, alone = (
        part.split("\n---")[0].strip()
        for part in capsys.readouterr().out.replace("ends.\n", "ends.\n---end\n").split("end\n")[:4]
    )

    def answer(*messages: Message) -> str:
        return draw_samples(loaded, messages, GREEDY, max_new_tokens=6, count=1, seed=0)[
            0
        ].completion

    said = answer(Message("user", "the cat"))
    assert first == printable(said).strip()
    assert (
        later
        == printable(
            answer(Message("user", "the cat"), Message("assistant", said), Message("user", "on"))
        ).strip()
    )
    assert alone == printable(answer(Message("user", "on"))).strip()
    assert later != alone


def test_a_session_of_another_run_asks_for_prompts_that_know_nothing_of_each_other(
    fresh: LoadedRun, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    converse(fresh, GREEDILY, asking("the cat", "the cat"))
    asked, *texts = capsys.readouterr().out.splitlines()
    assert asked == snapshot
    assert texts[: len(texts) // 2] == texts[len(texts) // 2 :]


def test_the_oldest_turns_are_left_out_where_the_answer_would_not_fit(
    loaded: LoadedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(loaded, max_new_tokens=100)
    for number in range(6):
        asked, dropped = conversation.asking(f"the mat {number}")
        assert len(loaded.prompt_ids(asked)) + 100 <= loaded.context
        assert asked[0].role == "user"
        conversation.go_on(f"the mat {number}", GREEDILY)
        told = (
            "--- the conversation is longer than 256 tokens: its oldest turns (1) are forgotten"
            in capsys.readouterr().out
        )
        assert told == (dropped == 1)
    assert dropped == 1


def test_a_question_that_does_not_fit_is_told_and_ends_nothing(
    loaded: LoadedRun, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    converse(loaded, GREEDILY, asking("q" * 400, "the cat"))
    said = capsys.readouterr()
    assert said.err == snapshot
    assert said.out.count("without its end") == 1


def test_a_conversation_has_one_answer_at_a_time(loaded: LoadedRun, refuses: Refuses) -> None:
    with refuses(RequestError, names=["--samples", "--prompt"]):
        converse(loaded, replace(GREEDILY, count=2), asking())
