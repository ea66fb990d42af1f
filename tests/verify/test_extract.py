"""Answers as models write them, and what counts of each."""

import random
import textwrap

import pytest

from brimful.verify import extract
from brimful.verify.extract import (
    EXTRACTIONS,
    SyntaxVerdict,
    code_blocks,
    code_of,
    continuation,
    function,
    parses,
    program,
    python_verdict,
)

ROW = {"prompt": 'import math\n\n\ndef double(x):\n    """Twice x."""\n', "entry_point": "double"}
BODY = "    y = x + x\n    return y\n"
WHOLE = f"def double(x):\n{BODY}"
DOCUMENTED = (
    'def double(x):\n    """Twice x.\n\n    ```\n    double(2)\n    ```\n    """\n    return 2'
    " * x\n"
)
"""Code with a fence of its own, as docstrings in Markdown have."""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1\n", "x = 1\n"),
        ("Sure:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nx = 1", "x = 1"),
        ("~~~py\nx = 1\n~~~", "x = 1\n"),
        ("```python\nx = 1\n```\nor\n```python\nx = 2\n```", "x = 1\n"),
        ("````\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("1. First:\n   ```python\n   if x:\n       y = 1\n   ```", "if x:\n    y = 1\n"),
        (DOCUMENTED, DOCUMENTED),
        ("inline ```x``` is no block", "inline ```x``` is no block"),
        ("", ""),
    ],
)
def test_code_is_the_first_fenced_block_or_all_of_the_text(text: str, code: str) -> None:
    assert code_of(text) == code


def test_an_open_fence_goes_to_the_end_and_every_block_is_found() -> None:
    assert code_blocks("```\na\n```\ntext\n```\nb") == ["a\n", "b"]


@pytest.mark.parametrize(
    "code", ["x = 1", "def f():\n    return 1\n", "'a'; x = 1", "pass", "print('\\d')"]
)
def test_programs_parse(code: str) -> None:
    """Also those with odd escapes, which only warn."""
    assert parses(code).parses
    assert parses(code).error == ""


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("", "empty"),
        (" \n\t\n", "empty"),
        ("# a comment\n", "only comments"),
        ('"""A docstring."""\n# and a comment', "only comments"),
        ("def f(", "SyntaxError: '(' was never closed"),
        ("x = 'abc", "SyntaxError: unterminated string literal"),
        ("Here is the code you want:", "SyntaxError: invalid syntax"),
        ("def f():\nreturn 1", "IndentationError"),
        ("if x:\n\ty\n        z\n", "TabError"),
        ("x = \ud800", "not text"),
        ("1" + "+1" * 100_000, "nested too deeply"),
    ],
)
def test_what_does_not_parse_is_named_by_kind(code: str, error: str) -> None:
    assert parses(code).error == error
    assert not parses(code).parses


def test_null_characters_do_not_parse_on_any_version() -> None:
    assert not parses("x = 1\0").parses


def test_kinds_do_not_differ_by_line_or_by_what_the_code_holds() -> None:
    """Else every failure would be of a kind of its own."""
    assert parses("x = “a”").error == parses("y = ‘b’").error
    assert parses("\n\nx = 'abc").error == parses("x = 'other").error
    assert parses("a = 1\n\nx = 'abc").line == 3


def test_a_continuation_follows_the_prompt() -> None:
    whole = ROW["prompt"] + BODY
    assert continuation(BODY, ROW) == whole
    assert continuation(f"\n{BODY}", ROW) == whole


@pytest.mark.parametrize(
    "answer",
    [
        WHOLE,
        f"```python\n{WHOLE}```",
        f"Here it is:\n\n```python\n{ROW['prompt']}{BODY}```\nIt doubles.",
        f"Use pip:\n```sh\npip install x\n```\nthen\n```python\n{WHOLE}```",
        f"The function:\n{WHOLE}\nThat is all there is to it.",
        f"{WHOLE}\nTry it:\n```python\ndouble(2)\n```",
        BODY,
        textwrap.dedent(BODY),
        BODY.strip(),
        f"```python\n{BODY.lstrip()}```",
        f"```python\n{textwrap.dedent(BODY)}",
    ],
)
def test_a_whole_function_and_a_bare_body_both_become_the_same_program(answer: str) -> None:
    space: dict[str, object] = {}
    code = function(answer, ROW)
    assert code.startswith(ROW["prompt"])
    exec(code, space)  # noqa: S102 - our own text
    assert space["double"](4) == 8  # type: ignore[operator]


def test_an_answer_without_code_stays_what_it_is_behind_the_prompt() -> None:
    assert function("I cannot do this.", ROW) == ROW["prompt"] + "I cannot do this."
    assert function("", ROW) == ROW["prompt"]


def test_a_program_is_cut_out_of_the_talk_around_it() -> None:
    assert program(f"Here:\n{WHOLE}\nHope this helps!", {}).strip() == WHOLE.strip()
    assert program(f"```\n{WHOLE}```", {}) == WHOLE
    assert program("no code here", {}) == "no code here"
    assert program("def broken(:\n    pass", {}) == "def broken(:\n    pass"


@pytest.mark.parametrize("name", EXTRACTIONS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "```",
        "```python",
        "\0",
        "def",
        "\ud800",
        "(" * 500,
        "x" * 10_000,
        "def double(x):\n" * 50,
    ],
)
def test_no_extraction_fails_on_anything_a_model_may_write(name: str, text: str) -> None:
    assert isinstance(EXTRACTIONS[name](text, ROW), str)


def test_the_code_of_an_answer_is_judged_in_a_line() -> None:
    assert python_verdict(f"Here:\n```python\n{WHOLE}```") == (WHOLE, "parses as Python")
    assert (
        python_verdict("```python\ndef f(:\n```")[1]
        == "does not parse: SyntaxError, line 1: invalid syntax"
    )
    assert python_verdict("")[1].startswith("is no program")


PIECES = (
    "def f(x):\n",
    "    return x\n",
    "    y = (x +\n",
    "  1)\n",
    "import os\n",
    "\n",
    "    '''doc\n",
    "'''\n",
    "if x:\n",
    "else:\n",
    "    print(i)\n",
    "try:\n",
    "except E:\n",
    "This is talk.\n",
    "x = [1,\n",
    "2]\n",
    "class A:\n",
    "    def g(self):\n",
    "        return 1\n",
    "@dec\n",
    "x = 1 \\\n",
)


def test_the_longest_code_is_what_trying_every_end_finds() -> None:
    draw = random.Random(0)
    for _ in range(300):
        lines = draw.choices(PIECES, k=draw.randint(1, 8))
        text = "import a\n" + "".join(lines)
        whole = text.splitlines(keepends=True)
        runs = ("".join(whole[:end]) for end in range(len(whole), 0, -1))
        assert program(text, {}) == next(run for run in runs if parses(run).parses)


@pytest.mark.parametrize(
    "rest",
    [
        "try:\n" + "    x = 1\n" * 2000,
        "x = (\n" + "1 +\n" * 5000,
        "@a\n" * 6000,
        "talk it is\n" * 1800,
    ],
    ids=["open block", "open bracket", "decorators", "talk"],
)
def test_looking_for_code_takes_few_attempts(rest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the length has digits, not lines: 20,000 characters took a minute."""
    attempts: list[str] = []

    def counted(code: str) -> SyntaxVerdict:
        attempts.append(code)
        return parses(code)

    monkeypatch.setattr(extract, "parses", counted)
    assert program(f"import os\n{rest}", {}) == "import os\n"
    assert len(attempts) < 100
