"""The corpora made from this Python installation."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.base.errors import DataError
from brimful.data import builtin


def test_the_corpora_are_some_megabytes_of_many_documents() -> None:
    """Enough for the quick start: about 2 MB of documentation and 6 MB of code in Python 3.11."""
    sizes = {name: (len(documents := list(make())), sum(map(len, documents))) for name, make in builtin.CORPORA.items()}
    assert sizes["python-docs"][0] > 300
    assert sizes["python-docs"][1] > 1e6
    assert sizes["python-code"][0] > 2000
    assert sizes["python-code"][1] > 3e6


def test_code_documents_are_one_documented_definition_each() -> None:
    """Dedented, so each parses alone, docstring included."""
    for document in list(builtin.python_code())[::40]:
        (definition,) = ast.parse(document).body
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        assert ast.get_docstring(definition)


def test_documentation_holds_topics_and_modules() -> None:
    """A topic of the language reference, and a module with its functions' signatures."""
    documents = list(builtin.python_docs())
    assert any(document.startswith('The "assert" statement') for document in documents)
    (module,) = [document for document in documents if document.startswith("module textwrap\n")]
    assert "dedent(text)\n    Remove any common leading whitespace" in module


def test_nothing_that_is_read_is_imported_and_another_process_reads_the_same() -> None:
    """Modules with side effects (`this`, `antigravity`, `idlelib`) stay asleep; warnings as errors change nothing."""
    program = (
        "import sys, hashlib\nfrom brimful.data import builtin\n"
        "text = '\\0'.join([*builtin.python_docs(), *builtin.python_code()])\n"
        "print({'turtle', 'antigravity', 'tkinter', 'idlelib'} & set(sys.modules), hashlib.sha256(text.encode()).hexdigest())"
    )
    outputs = {
        subprocess.run([sys.executable, *flags, "-c", program], capture_output=True, text=True, check=True).stdout for flags in ([], ["-W", "error"])
    }
    assert len(outputs) == 1
    assert outputs.pop().startswith("set() ")


def test_the_fingerprint_names_corpus_and_python_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same twice, another for another corpus or Python."""
    first = builtin.fingerprint("python-docs")
    assert first == builtin.fingerprint("python-docs") != builtin.fingerprint("python-code")
    monkeypatch.setattr(sys, "version_info", (4, 0, 0))
    assert builtin.fingerprint("python-docs") != first


def test_a_python_without_its_sources_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As embedded distributions are."""
    monkeypatch.setattr(builtin, "_library_root", lambda: tmp_path)
    with pytest.raises(DataError, match=r"comes without .*topics\.py"):
        builtin.fingerprint("python-code")


def test_sources_that_warn_are_used_and_those_that_do_not_parse_or_are_tests_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Warnings as errors must not change the corpus."""
    files = {
        "pydoc_data/topics.py": "topics = {'b': 'B  \\n\\n\\n\\nb', 'a': 'A'}",
        "warns.py": 'def f():\n    """Doc."""\n    return "\\d"\n',
        "broken.py": "def f(:\n",
        "test/test_f.py": 'def g():\n    """Doc."""\n',
        "nested/deep.py": 'if True:\n    class C:\n        def m(self):\n            """Doc of m."""\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(builtin, "_library_root", lambda: tmp_path)
    docs, code = builtin._made.__wrapped__()
    assert docs == ("A\n", "B\n\nb\n", "module nested.deep\n\nC.m(self)\n    Doc of m.\n", "module warns\n\nf()\n    Doc.\n")
    assert code == ('def m(self):\n    """Doc of m."""\n', 'def f():\n    """Doc."""\n    return "\\d"\n')
