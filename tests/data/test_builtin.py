"""The corpora made from this Python installation."""

import ast
import hashlib
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.data import builtin
from brimful.data.counts import hub_counts
from brimful.data.sources import open_rows
from brimful.recipe import DataRecipe


@pytest.fixture(scope="module")
def documents() -> dict[str, list[str]]:
    """Both corpora, made while warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return {
            "python-docs": list(builtin.python_docs()),
            "python-code": list(builtin.python_code()),
        }


def test_the_corpora_hold_about_as_much_as_plans_say(documents: dict[str, list[str]]) -> None:
    """Plans were counted for Python 3.11; every Python has enough for the quick start."""
    tasks = [row.columns for row in builtin.python_code_rows()]
    made = {f"builtin:{name}": texts for name, texts in documents.items()}
    made["builtin:python-docs rows"] = documents["python-docs"]
    made["builtin:python-code rows"] = [str(row["prompt"] + row["completion"]) for row in tasks]
    for name, texts in made.items():
        told = hub_counts()[name, None]
        num_bytes = sum(len(text.encode()) for text in texts)
        assert told["rows"]["train"] == pytest.approx(len(texts), rel=0.3), name
        assert told["bytes"]["train"] == pytest.approx(num_bytes, rel=0.3), name


def test_code_documents_are_one_documented_definition_each() -> None:
    """Dedented, so each parses alone, docstring included."""
    for document in list(builtin.python_code())[::40]:
        (definition,) = ast.parse(document).body
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        assert ast.get_docstring(definition)


def test_code_rows_are_functions_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named with arguments and purpose; answered without docstring; methods stand alone; the text
    that holds them is named.
    """
    document = '''class Counter:
    """Counts."""

    def add(self, number: int = 1) -> None:
        """Add a number
        to the sum.

        More words.
        """

        # one step
        self.sum += number

    async def wait(self):
        """Wait for the lock and count."""
        def inner():
            """Functions in functions are part of them."""
            return 1
        return await self.lock, inner()
'''
    monkeypatch.setattr(builtin, "python_code", lambda: iter([document]))
    add, wait = builtin._made_rows.__wrapped__()
    assert (
        add["prompt"]
        == "Write a Python function `add(self, number: int=1)`. Add a number to the sum.\n"
    )
    assert (
        add["completion"]
        == "def add(self, number: int = 1) -> None:\n    # one step\n    self.sum += number\n"
    )
    assert add["document"] == wait["document"] == document
    assert wait["prompt"].startswith("Write an asynchronous Python function `wait(self)`. Wait")
    assert wait["completion"].startswith("async def wait(self):\n    def inner():\n")


@pytest.mark.parametrize(
    "function",
    [
        "def undocumented(number):\n    return number + 1 + 2 + 3",
        'def f(number):\n    "Short."\n    return number + 1 + 2 + 3',
        (
            'def abstract(number):\n    "Said but not done yet."\n    raise'
            ' NotImplementedError("not done yet")'
        ),
        (
            '@property\ndef decorated(self):\n    "Decorators change what it is."\n    return'
            " self.value"
        ),
        'def one_line(number): "In the line of def."; return number + 1 + 2 + 3',
        'def long(number):\n    "Longer than small models can learn."\n'
        + "    number += 1\n" * 100,
    ],
)
def test_functions_that_teach_nothing_are_left_out_of_the_rows(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Without a docstring that says something or a body that does something, decorated, or too
    long.
    """
    monkeypatch.setattr(builtin, "python_code", lambda: iter([function]))
    assert builtin._made_rows.__wrapped__() == ()


def test_code_rows_are_some_thousand_answers_that_parse() -> None:
    """About 5,500 in Python 3.11; every one is a function of the name its prompt gives, and stands
    in its document.
    """
    rows = [row.columns for row in builtin.python_code_rows()]
    assert len(rows) > 3000
    for row in rows[::50]:
        (function,) = ast.parse(row["completion"]).body
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        assert f"`{function.name}(" in row["prompt"]
        assert f"def {function.name}(" in row["document"]


def test_built_in_corpora_have_rows(data_recipe: Callable[..., DataRecipe]) -> None:
    """Tasks of the code, texts of the documentation."""
    code, docs = (
        open_rows(data_recipe(f"builtin:{name}", max_documents=1)).parts[0]
        for name in ("python-code", "python-docs")
    )
    assert [list(row.columns) for row in code.splits["train"]] == [
        ["prompt", "completion", "document"]
    ]
    assert [(list(row.columns), row.where) for row in docs.splits["train"]] == [
        (["text"], "builtin:python-docs, row 1")
    ]
    assert code.fingerprint != docs.fingerprint


def test_a_corpus_that_is_drawn_from_seeds_does_not_depend_on_this_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rows stand ready for each split; the first training rows are those of the split train."""
    before = builtin.fingerprint("unit-conversion"), builtin.rows_fingerprint("unit-conversion")
    monkeypatch.setattr(sys, "version_info", (9, 9, 9))
    monkeypatch.setattr(builtin, "_source_files", list)
    assert (
        builtin.fingerprint("unit-conversion"),
        builtin.rows_fingerprint("unit-conversion"),
    ) == before
    assert len(set(before)) == 2
    train, test = (
        next(builtin.SPLIT_ROWS["unit-conversion"](split)) for split in ("train", "test")
    )
    assert list(train.columns) == [
        "question",
        "answer",
        "reasoning",
        "kind",
        "quantity",
        "document",
    ]
    assert next(builtin.ROWS["unit-conversion"]()) == train != test


def test_documentation_holds_topics_and_modules() -> None:
    """A topic of the language reference, and a module with its functions' signatures."""
    documents = list(builtin.python_docs())
    assert any(document.startswith('The "assert" statement') for document in documents)
    (module,) = [document for document in documents if document.startswith("module textwrap\n")]
    assert "dedent(text)\n    Remove any common leading whitespace" in module


@pytest.mark.long
def test_nothing_that_is_read_is_imported_and_another_process_reads_the_same(
    documents: dict[str, list[str]],
) -> None:
    """Modules with side effects (`this`, `antigravity`, `idlelib`) stay asleep; warnings as errors
    change nothing.
    """
    program = (
        "import sys, hashlib\nfrom brimful.data import builtin\ntext ="
        " '\\0'.join([*builtin.python_docs(), *builtin.python_code()])\nprint({'turtle',"
        " 'antigravity', 'tkinter', 'idlelib'} & set(sys.modules),"
        " hashlib.sha256(text.encode()).hexdigest())"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    here = "\0".join(each for made in documents.values() for each in made)
    assert told.split() == ["set()", hashlib.sha256(here.encode()).hexdigest()]


def test_the_fingerprint_names_corpus_and_python_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same twice, another for another corpus or Python."""
    first = builtin.fingerprint("python-docs")
    assert first == builtin.fingerprint("python-docs") != builtin.fingerprint("python-code")
    monkeypatch.setattr(sys, "version_info", (4, 0, 0))
    assert builtin.fingerprint("python-docs") != first


def test_a_python_without_its_sources_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refuses: Refuses
) -> None:
    """As embedded distributions are."""
    monkeypatch.setattr(builtin, "_library_root", lambda: tmp_path)
    with refuses(DataError):
        builtin.fingerprint("python-code")


def test_sources_that_warn_are_used_and_those_that_do_not_parse_or_are_tests_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Warnings as errors must not change the corpus."""
    files = {
        "pydoc_data/topics.py": "topics = {'b': 'B  \\n\\n\\n\\nb', 'a': 'A'}",
        "warns.py": 'def f():\n    """Doc."""\n    return "\\d"\n',
        "broken.py": "def f(:\n",
        "test/test_f.py": 'def g():\n    """Doc."""\n',
        "nested/deep.py": (
            'if True:\n    class C:\n        def m(self):\n            """Doc of m."""\n'
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(builtin, "_library_root", lambda: tmp_path)
    docs, code = builtin._made.__wrapped__()
    assert builtin._made.__wrapped__() == (docs, code)  # as it was kept
    assert docs == (
        "A\n",
        "B\n\nb\n",
        "module nested.deep\n\nC.m(self)\n    Doc of m.\n",
        "module warns\n\nf()\n    Doc.\n",
    )
    assert code == (
        'def m(self):\n    """Doc of m."""\n',
        'def f():\n    """Doc."""\n    return "\\d"\n',
    )
