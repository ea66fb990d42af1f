"""What hostile code tries, through the public interface. An attack that goes through returns
"done", which would pass.
"""

import os
import socket
import textwrap
import time
from pathlib import Path

import pytest

from brimful.verify.sandbox import Program, ProgramResult, Sandbox

RIGHTS = {
    "forking": "import os\nif os.fork() == 0: os._exit(0)",
    "a fork bomb": "import os\nwhile True: os.fork()",
    "forking by a raw system call": (
        """
        import ctypes
        if ctypes.CDLL(None, use_errno=True).syscall(57) < 0: raise OSError(ctypes.get_errno(), 'fork')
    """
    ),
    "starting a program": "import os\nos.execv('/bin/true', ['true'])",
    "starting a program through subprocess": "import subprocess\nsubprocess.check_output('true')",
    "starting a shell": "import os\nif os.system('true') != 0: raise PermissionError(1, 'refused')",
    "starting a program by a raw system call": (
        """
        import ctypes
        path = ctypes.c_char_p(b'/bin/true')
        if ctypes.CDLL(None, use_errno=True).execve(path, None, None) < 0: raise OSError(ctypes.get_errno(), 'execve')
    """
    ),
    "a thread": (
        "import threading\nthread = threading.Thread(target=print)\nthread.start()\nthread.join()"
    ),
    "an internet socket": "import socket\nsocket.socket(socket.AF_INET)",
    "a unix socket": "import socket\nsocket.socket(socket.AF_UNIX)",
    "a socket pair": "import socket\nsocket.socketpair()",
    "killing its parent": "import os\nos.kill(os.getppid(), 9)",
    "killing everything": "import os\nos.kill(-1, 9)",
    "killing its group": "import os\nos.killpg(os.getppid(), 9)",
    "signals by file ownership": "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())",
    "tracing": (
        """
        import ctypes, os
        if ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), None, None) < 0: raise OSError(ctypes.get_errno(), 'ptrace')
    """
    ),
    "reading another process's memory": (
        """
        import ctypes, os
        if ctypes.CDLL(None, use_errno=True).syscall(310, os.getppid(), None, 0, None, 0, 0) < 0: raise OSError(ctypes.get_errno(), 'readv')
    """
    ),
    "raising its own limits": (
        """
        import resource
        try: resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))
        except ValueError: raise PermissionError(1, 'refused')
    """
    ),
    "leaving its session": "import os\nos.setsid()",
    "becoming another user": "import os\nos.setuid(65534)",
    "a namespace": (
        """
        import ctypes
        if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0: raise OSError(ctypes.get_errno(), 'unshare')
    """
    ),
    "anonymous memory files": "import os\nos.memfd_create('x')",
    "reading the accounts": "open('/etc/passwd').read()",
    "listing the root folder": "import os\nos.listdir('/')",
    "reading its parent's environment": (
        "import os\nopen(f'/proc/{os.getppid()}/environ', 'rb').read()"
    ),
    "reading its own environment from the kernel": "open('/proc/self/environ', 'rb').read()",
    "reading its own memory map": "open('/proc/self/maps').read()",
    "writing through its own memory file": "open('/proc/self/mem', 'r+b')",
}


def attempt(sandbox: Sandbox, attack: str) -> ProgramResult:
    body = textwrap.indent(textwrap.dedent(attack).strip(), "    ")
    return sandbox.run(
        Program(
            code=f"def f():\n{body}\n    return 'done'\n",
            tests="assert f() == 'done'",
            functions=("f",),
        )
    )


def test_code_that_harms_nobody_passes(locked: Sandbox) -> None:
    assert attempt(locked, "import math, re, json, collections").status == "passed"


@pytest.mark.parametrize("attack", RIGHTS.values(), ids=RIGHTS)
def test_the_kernel_refuses(locked: Sandbox, attack: str) -> None:
    assert attempt(locked, attack).status in _refusals(locked)


def _refusals(sandbox: Sandbox) -> set[str]:
    """Where no file can be opened, an attack may fail before the kernel is asked: its module cannot
    be imported.
    """
    return {"blocked"} if "Landlock" in sandbox.level else {"blocked", "error"}


def test_files_outside_are_neither_read_written_nor_removed(
    locked: Sandbox, tmp_path: Path
) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    attacks = [
        f"open({str(precious)!r}).read()",
        f"open({str(precious)!r}, 'w').write('lost')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"import os\nos.remove({str(precious)!r})",
        f"import os\nos.truncate({str(precious)!r}, 0)",
        f"import os\nos.rename({str(precious)!r}, 'mine')",
        f"import os\nos.link({str(precious)!r}, 'mine')",
        f"import os\nos.symlink({str(precious)!r}, 'mine')\nopen('mine', 'w')",
        f"import os\nos.chmod({str(precious)!r}, 0)",
        f"import os\nos.chown({str(precious)!r}, 1, 1)",
        f"import os\nos.utime({str(precious)!r}, (0, 0))",
        f"import os\nos.setxattr({str(precious)!r}, 'user.x', b'x')",
        f"import os\nos.rmdir({str(tmp_path)!r})",
        f"import os\nos.chroot({str(tmp_path)!r})",
        f"open({str(Path.home() / 'x')!r}, 'w')",
        f"open({__file__!r}).read()",
    ]
    before = precious.stat()

    assert {attack: attempt(locked, attack).status for attack in attacks} == dict.fromkeys(
        attacks, "blocked"
    )
    assert precious.read_text() == "kept"
    after = precious.stat()
    assert (after.st_mode, after.st_mtime, after.st_uid, after.st_nlink) == (
        before.st_mode,
        before.st_mtime,
        before.st_uid,
        before.st_nlink,
    )
    assert list(tmp_path.iterdir()) == [precious]


def test_a_listening_server_is_not_reached(locked: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = attempt(
            locked, f"import socket\nsocket.create_connection({server.getsockname()!r}, 1)"
        )

    assert result.status in _refusals(locked)


def test_the_environment_of_the_parent_does_not_arrive(
    locked: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")

    result = attempt(locked, "import os\nprint(dict(os.environ))")

    assert result.status == "passed"
    # What our own line printed.
    assert set(eval(result.stdout)) <= {  # noqa: S307
        "PYTHONHASHSEED",
        "LC_CTYPE",
    }


def test_descriptors_of_the_parent_do_not_arrive(sandbox: Sandbox, tmp_path: Path) -> None:
    with (tmp_path / "open.txt").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        with Sandbox(sandbox.limits) as later:
            attack = """
                import os
                found = []
                for number in range(3, 1000):
                    try: os.fstat(number)
                    except OSError: continue
                    found.append(number)
                print(len(found))
            """
            assert attempt(later, attack).stdout == "2\n"


def test_endless_output_ends_at_the_cap(locked: Sandbox) -> None:
    result = attempt(locked, "while True: print('x' * 1000)")

    assert (result.status, result.detail) == ("error", "printed more than 1048576 bytes")
    assert len(result.stdout) == 2000


def test_a_memory_bomb_is_an_error(locked: Sandbox) -> None:
    assert (
        attempt(locked, "x = []\nwhile True: x.append(bytearray(1 << 20))").detail == "MemoryError"
    )


def test_a_large_file_is_refused_and_many_files_end_the_program(sandbox: Sandbox) -> None:
    if "Landlock" not in sandbox.level:
        pytest.skip("no files at all at this level")

    assert attempt(sandbox, "open('x', 'wb').write(bytes(100 << 20))").detail.startswith(
        "OSError: [Errno 27]"
    )
    many = (
        "import itertools\nfor i in itertools.count():\n    with open(str(i), 'wb') as file:"
        " file.write(bytes(1 << 20))\n    print(i)"
    )
    assert attempt(sandbox, many).detail.startswith("wrote more than")


def test_a_program_finds_its_folder_empty_whatever_the_one_before_left(sandbox: Sandbox) -> None:
    if "Landlock" not in sandbox.level:
        pytest.skip("no files at all at this level")
    deep = (
        "import os\nfor i in range(120):\n    os.mkdir('d' * 50)\n    os.chdir('d' * 50)\nopen('x',"
        " 'w').write('x')\nos.mkdir('locked', 0)"
    )

    attempt(sandbox, deep)
    assert attempt(sandbox, "import os\nassert os.listdir('.') == []").status == "passed"


@pytest.mark.parametrize(
    "attack",
    [
        "import time\ntime.sleep(60)",
        "try:\n    while True: pass\nfinally:\n    f()",
        "x = 9 ** 9 ** 9",
    ],
)
def test_time_ends_what_does_not_end(sandbox: Sandbox, attack: str) -> None:
    started_s = time.monotonic()

    result = attempt(sandbox, attack)

    assert result.status in {"timeout", "blocked"}
    assert time.monotonic() - started_s < 10


def test_code_that_never_finishes_loading_is_a_timeout(sandbox: Sandbox) -> None:
    assert sandbox.run(Program("while True: pass", "assert f() == 1", ("f",))).status == "timeout"


@pytest.mark.parametrize(
    "attack",
    [
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef g(): return g()\ng()",
        "def g(): return g()\ng()",
        "import ctypes\nctypes.string_at(0)",
        "import os\nos.abort()",
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "import os\nos.closerange(0, 100)",
    ],
)
def test_a_program_that_ruins_itself_is_an_error(sandbox: Sandbox, attack: str) -> None:
    assert attempt(sandbox, attack).status in {"error", "timeout", "blocked"}
    assert attempt(sandbox, "pass").status == "passed"


@pytest.mark.parametrize(
    "where",
    [
        "import atexit\natexit.register(loop)",
        "class Slow:\n    def __del__(self): loop()\nkept = Slow()",
    ],
)
def test_what_waits_for_the_end_does_not_delay_the_verdict(sandbox: Sandbox, where: str) -> None:
    code = f"def loop():\n    while True: print('after the verdict')\n{where}\ndef f(): return 1"

    result = sandbox.run(Program(code, "assert f() == 1", ("f",)))

    assert (result.status, result.stdout) == ("passed", "")
