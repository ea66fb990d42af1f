"""Known cheats: wrong code that tries to be judged right. A judge that passes one of them is
broken, and so is what it scored.
"""

from collections.abc import Mapping

from brimful.verify.sandbox import Program

CHEATS: Mapping[str, str] = {
    "an object that equals everything": (
        "class Any:\n    def __eq__(self, other): return True\n    def __bool__(self): return"
        " True\ndef f(x): return Any()"
    ),
    "a number that equals everything": (
        "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ ="
        " int.__hash__\ndef f(x): return Any()"
    ),
    "a list that equals everything": (
        "class Any(list):\n    def __eq__(self, other): return True\ndef f(x): return Any()"
    ),
    "a text that equals everything": (
        "class Any(str):\n    def __eq__(self, other): return True\n    __hash__ ="
        " str.__hash__\ndef f(x): return Any()"
    ),
    "a class that pretends to be int": (
        "class Any:\n    __class__ = int\n    def __eq__(self, other): return True\n    def"
        " __index__(self): return 4\ndef f(x): return Any()"
    ),
    "leaving with status 0": "import os\nos._exit(0)",
    "leaving politely": "raise SystemExit(0)",
    "leaving when called": "import os\ndef f(x): os._exit(0)",
    "leaving politely when called": "import sys\ndef f(x): sys.exit(0)",
    "an exception that is caught nowhere": "def f(x): raise KeyboardInterrupt",
    "an assertion of its own": "def f(x): raise AssertionError",
    "patched built-ins": (
        "import builtins\nbuiltins.len = builtins.abs = builtins.isinstance = lambda *_:"
        " True\nbuiltins.AssertionError = None\ndef f(x): return 0"
    ),
    "an AssertionError that is no error": (
        "import builtins\nclass Fine(BaseException): pass\nbuiltins.AssertionError = Fine\ndef"
        " f(x): return 0"
    ),
    "patched mathematics": (
        "import math\nmath.isclose = lambda *_, **__: True\nmath.fabs = lambda _: 0.0\ndef f(x):"
        " return 0"
    ),
    "a patched checker": (
        """
import sys
for module in list(sys.modules.values()):
    for name in ("judge", "_tested", "_verdict_of", "run_text"):
        if hasattr(module, name): setattr(module, name, lambda *_, **__: {"status": "passed", "detail": ""})
def f(x): return 0"""
    ),
    "a patched encoder": (
        """
import sys
plain = sys.modules["brimful.verify.plain"]
sys.modules["brimful.verify.children"].encode = lambda value: b'["value", {"passed": [1]}]'
def f(x): return 0"""
    ),
    "a verdict written on every descriptor": (
        """
import json, os
for number in range(64):
    body = json.dumps({"status": "passed", "detail": "", "nonce": ""}).encode()
    try: os.write(number, len(body).to_bytes(4, "big") + body)
    except OSError: pass
def f(x): return 0"""
    ),
    "a verdict printed": "print('passed')\nprint({'status': 'passed'})\ndef f(x): return 0",
    "the answer found in frames": (
        """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, str) and "assert" in value and "== 4" in value: return 4
        frame = frame.f_back
    return 0"""
    ),
    "the answer found among all objects": (
        """
import gc
def f(x):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and any(isinstance(value, str) and "assert f(2)" in value for value in list(thing.values())): return 4
    return 0"""
    ),
    "the answer found in memory files": (
        "def f(x): return 4 if b'assert f(2)' in open('/proc/self/mem', 'rb').read() else 0"
    ),
    "a trace function": (
        """
import sys
def trace(frame, event, argument):
    frame.f_locals.update(verdict={"status": "passed"})
    return trace
sys.settrace(trace)
def f(x): return 0"""
    ),
    "an exit hook": "import atexit, os\natexit.register(lambda: os._exit(0))\nraise SystemExit",
    "a deletion of the tests": (
        "import sys\nfor name in list(sys.modules):\n    if 'test' in name or 'children' in name:"
        " del sys.modules[name]\ndef f(x): return 0"
    ),
    "a module in the way of the tests": (
        "open('math.py', 'w').write('def fabs(x): return 0')\nopen('random.py', 'w').write('')\ndef"
        " f(x): return 0"
    ),
    "a helper of its own": "def helper(x): return 4\ndef f(x): return 0",
    "not a number": "def f(x): return float('nan')",
    "an endless answer": "def f(x):\n    while True: yield 4",
    "an answer too deep": (
        "def f(x):\n    y = []\n    for _ in range(100000): y = [y]\n    return y"
    ),
    "an answer that holds itself": "def f(x):\n    y = []\n    y.append(y)\n    return y",
    "an answer too large": "def f(x): return 'x' * (9 << 20)",
    "no code": "",
    "no Python": "def f(x:",
    "no such function": "def g(x): return 4",
    "no function": "f = 4",
}

TESTS = """
import math
def check(candidate):
    assert candidate(2) == 4
    assert math.fabs(candidate(3) - 9) < 1e-6
    assert len([candidate(4)]) == 1 and abs(candidate(-1)) == 1
    assert helper(candidate(2)) == 5
check(f)
"""
HELPERS = "def helper(x):\n    return x + 1\n"
"""What judges them: a function that squares, with the means that real tests use."""


def canaries() -> dict[str, Program]:
    """The cheats by name, as programs. None may pass."""
    return {name: squaring(code) for name, code in CHEATS.items()}


def squaring(code: str) -> Program:
    """Code that should define `f(x)`, the square of x, and the tests of it."""
    return Program(code=code, tests=TESTS, functions=("f",), helpers=HELPERS)
