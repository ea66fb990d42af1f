"""The host: container limits are respected, whatever version of control groups tells them."""

import subprocess
import sys
from pathlib import Path

import pytest

from brimful.base.units import GIB, MIB
from brimful.hardware import host
from brimful.hardware.host import ControlGroupLimits


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({}, ControlGroupLimits()),
        (
            {
                "cgroup": "0::/outer/inner",
                "fs/outer/cpu.max": "150000 100000",
                "fs/outer/inner/cpu.max": "max 100000",
                "fs/outer/memory.max": "4000",
                "fs/outer/memory.current": "1000",
                "fs/outer/memory.stat": "anon 700\ninactive_file 150\nactive_file 50",
                "fs/outer/inner/memory.max": "max",
                "fs/outer/inner/memory.current": "900",
            },
            ControlGroupLimits(1.5, 4000, 3200),
        ),
        (
            {
                "cgroup": "4:memory:/job\n1:cpu,cpuacct:/job\n0::/",
                "fs/cpu/job/cpu.cfs_quota_us": "300000",
                "fs/cpu/job/cpu.cfs_period_us": "100000",
                "fs/memory/job/memory.limit_in_bytes": "5000",
                "fs/memory/job/memory.usage_in_bytes": "4000",
                "fs/memory/job/memory.stat": "inactive_file 7\ntotal_inactive_file 500",
            },
            ControlGroupLimits(3.0, 5000, 1500),
        ),
        (
            {
                "cgroup": "0::/docker/abc",
                "fs/memory.max": "7000",
                "fs/memory.current": "7100",
            },
            ControlGroupLimits(None, 7000, 0),
        ),
        (
            {
                "cgroup": "1:cpu:/\n0::/",
                "fs/cpu.max": "max 100000",
                "fs/cpu/cpu.cfs_quota_us": "-1",
                "fs/cpu/cpu.cfs_period_us": "100000",
            },
            ControlGroupLimits(),
        ),
    ],
    ids=[
        "no groups",
        "version 2: the tightest on the way to the root",
        "version 1: each controller tells its own",
        "a container that is told the host's path reads its own root",
        "no limit",
    ],
)
def test_limits_of_control_groups(
    files: dict[str, str], limits: ControlGroupLimits, tmp_path: Path
) -> None:
    for name, text in files.items():
        write(tmp_path / name, text + "\n")
    assert host.control_group_limits(tmp_path / "cgroup", tmp_path / "fs") == limits


def test_a_quota_below_one_core_still_leaves_one() -> None:
    assert host.usable_cores(ControlGroupLimits(cores=0.5)) == 1
    assert host.usable_cores(ControlGroupLimits()) >= 1


def test_a_memory_limit_counts_only_when_it_is_the_lower_one() -> None:
    assert host.memory_total_bytes(ControlGroupLimits(memory_bytes=10**6)) == 10**6
    assert host.memory_total_bytes(
        ControlGroupLimits(memory_bytes=2**63)
    ) == host.memory_total_bytes(ControlGroupLimits())
    assert (
        host.memory_free_bytes(ControlGroupLimits(memory_bytes=10**6, memory_left_bytes=10**5))
        == 10**5
    )


@pytest.mark.parametrize(
    ("total_bytes", "kept_bytes"), [(GIB, 32 * MIB), (50 * GIB, GIB), (1000 * GIB, 2 * GIB)]
)
def test_a_run_keeps_a_share_of_memory_free(total_bytes: int, kept_bytes: int) -> None:
    assert host.brim_bytes(total_bytes) == kept_bytes


@pytest.mark.parametrize(
    ("text", "name", "has_bf16"),
    [
        (
            "processor : 0\nmodel name\t: Big CPU\nflags\t\t: fpu avx512f avx512_bf16\n",
            "Big CPU",
            True,
        ),
        ("model name : Old CPU\nflags : fpu avx2\n", "Old CPU", False),
        ("model name : Arm CPU\nFeatures : fp asimd bf16\n", "Arm CPU", True),
    ],
)
def test_the_cpu_is_read_from_what_the_system_says(
    tmp_path: Path, text: str, name: str, has_bf16: bool
) -> None:
    write(tmp_path / "cpuinfo", text)
    assert host.cpu_name(tmp_path / "cpuinfo") == name
    assert host.cpu_has_bf16(tmp_path / "cpuinfo") == has_bf16


def test_without_cpuinfo_there_is_still_a_name_but_no_bf16(tmp_path: Path) -> None:
    assert host.cpu_name(tmp_path / "absent")
    assert not host.cpu_has_bf16(tmp_path / "absent")


def test_free_disk_is_asked_where_the_folder_will_be(tmp_path: Path) -> None:
    assert host.disk_free_bytes(tmp_path / "not" / "yet") == pytest.approx(
        host.disk_free_bytes(tmp_path), rel=0.1
    )


@pytest.mark.parametrize(
    ("variable", "cores", "threads"),
    [("1", 4, 1), ("2,1", 4, 2), ("8", 4, 4), ("", 4, 4), ("x", 4, 4)],
)
def test_openmps_number_of_threads_is_honoured(
    variable: str, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(host, "usable_cores", lambda limits: cores)

    assert host.compute_threads(host.ControlGroupLimits()) == threads


def test_the_drivers_gpus_are_counted_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.shutil, "which", lambda name: None)
    assert host.nvidia_gpu_count(tmp_path) is None
    write(tmp_path / "dev/nvidiactl", "")
    write(tmp_path / "dev/nvidia-uvm", "")
    write(tmp_path / "proc/driver/nvidia/version", "")
    assert host.nvidia_gpu_count(tmp_path) == 0
    write(tmp_path / "dev/nvidia0", "")
    assert host.nvidia_gpu_count(tmp_path) == 1
    write(tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information", "")
    write(tmp_path / "proc/driver/nvidia/gpus/0000:02:00.0/information", "")
    assert host.nvidia_gpu_count(tmp_path) == 2


def test_nvidia_smi_alone_is_a_sign_of_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.shutil, "which", lambda name: "/usr/lib/wsl/lib/nvidia-smi")
    assert host.nvidia_gpu_count(tmp_path) == 0


def test_freed_memory_stays_in_the_process_after_asking_for_it() -> None:
    """In a process of its own: 64 MiB that were touched, freed and touched again fault in only
    once.
    """
    script = (
        "import resource\n"
        "from brimful.hardware.host import keep_freed_memory\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    bytearray(64 << 20)[::4096]\n"
        "    data = bytearray(b'x') * (64 << 20)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "faults(); returned = faults(); keep_freed_memory(); faults(); kept = faults()\n"
        "print(returned, kept)\n"
    )
    returned, kept = map(
        int,
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split(),
    )
    if returned < 1000:
        pytest.skip("this C library or kernel keeps freed memory anyway")
    assert kept < returned / 10
