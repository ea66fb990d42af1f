import os
from pathlib import Path

import pytest

from brimful.verify import zygote


def test_a_folder_is_emptied_however_deep_and_however_locked(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(30):
        deep = deep / ("d" * 40)
        deep.mkdir()
        (deep / "file").write_text("x")
    (tmp_path / "link").symlink_to("/etc")
    deep.chmod(0)

    zygote._empty(tmp_path)

    assert list(tmp_path.iterdir()) == []
    assert Path("/etc").is_dir()


@pytest.mark.parametrize(
    ("files", "size_bytes", "overfull"), [(1, 10, False), (20, 1 << 16, True), (1001, 0, True)]
)
def test_a_folder_is_overfull_by_bytes_and_by_files(
    tmp_path: Path, files: int, size_bytes: int, overfull: bool
) -> None:
    (tmp_path / "inner").mkdir()
    for number in range(files):
        (tmp_path / "inner" / str(number)).write_bytes(bytes(size_bytes))

    assert zygote._is_overfull(tmp_path, 1 << 20) is overfull


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").is_file(),
    reason="this system does not count how long processes wait",
)
def test_waiting_for_a_core_is_counted_and_absent_processes_waited_for_nothing() -> None:
    assert zygote._waited_for_a_core_s(os.getpid()) >= 0.0
    assert zygote._waited_for_a_core_s(2**30) == 0.0
