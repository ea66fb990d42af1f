"""The doctor: warnings judge plain values, so every machine can be tested on any machine."""

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DeviceError
from brimful.base.units import GIB
from brimful.hardware import catalog, doctor, host, probe
from brimful.hardware.device import Device, abilities_of
from brimful.hardware.doctor import Diagnosis, consequences_of, examine, render, warnings_of
from brimful.planning import allocator

BUILT_FOR = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CPU = Device(
    name="Test CPU",
    kind="cpu",
    memory_bytes=32 * GIB,
    free_memory_bytes=30 * GIB,
    abilities=abilities_of("cpu", None),
    threads=8,
    source="made for a test",
)


def present(name: str, index: int = 0) -> Device:
    row = catalog.get(name)
    return dataclasses.replace(row, index=index, free_memory_bytes=row.memory_bytes)


def diagnosis_of(*gpus: Device, **changes: object) -> Diagnosis:
    """A healthy machine with these GPUs, the first one selected."""
    healthy = Diagnosis(
        system="Linux",
        devices=(*gpus, CPU),
        selected=gpus[0] if gpus else CPU,
        selection_problem=None,
        cores=8,
        memory_bytes=32 * GIB,
        free_memory_bytes=30 * GIB,
        folder="/data/runs",
        disk_free_bytes=500 * GIB,
        versions={
            "python": "3.11.7",
            "torch": "2.13.0",
            "transformers": "5.23.0",
            "tokenizers": "0.23.3",
            "datasets": "5.2.0",
            "peft": None,
        },
        torch_backend="CUDA 13.0" if gpus else None,
        built_for=BUILT_FOR if gpus else (),
        driver_gpu_count=len(gpus) or None,
        driver_problem=None,
        visible_devices=None,
        compiler="/usr/bin/g++",
        quick_replays=True,
    )
    return dataclasses.replace(healthy, **changes)


def only_warning(diagnosis: Diagnosis) -> str:
    (warning,) = warnings_of(diagnosis)
    return warning


@pytest.mark.parametrize(
    "name", ["NVIDIA H200", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 5090"]
)
def test_a_healthy_gpu_machine_gets_no_warning(name: str) -> None:
    assert warnings_of(diagnosis_of(present(name))) == ()


def test_a_healthy_cpu_machine_gets_no_warning() -> None:
    assert warnings_of(diagnosis_of()) == ()


def test_libraries_that_do_not_fit_or_were_not_tried_are_warned_of() -> None:
    diagnosis = diagnosis_of(misfits=("peft is too old",), untried=("torch is new",))
    assert warnings_of(diagnosis) == ("B410: peft is too old", "B411: torch is new")
    assert examine(Path(), True).misfits == ()


def test_a_v100_is_told_that_its_wheels_end_and_that_it_has_no_bf16(
    snapshot: SnapshotAssertion,
) -> None:
    end, precision = warnings_of(
        diagnosis_of(
            present("Tesla V100-SXM2-16GB"), built_for=("sm_70", "sm_80"), torch_backend="CUDA 12.6"
        )
    )
    assert end == snapshot
    assert precision == snapshot


def test_a_v100_under_a_build_without_it_is_told_what_to_install(
    snapshot: SnapshotAssertion,
) -> None:
    warning = warnings_of(diagnosis_of(present("Tesla V100-SXM2-16GB")))[0]
    assert warning == snapshot
    assert "whl/cu126" in warning


def test_a_gpu_newer_than_the_build_is_told_to_get_a_newer_one() -> None:
    warning = only_warning(
        diagnosis_of(present("NVIDIA GeForce RTX 5090"), built_for=("sm_80", "sm_90"))
    )
    assert "sm_120" in warning
    assert "newer CUDA" in warning


def test_a_t4_keeps_its_wheels_but_has_no_bf16(snapshot: SnapshotAssertion) -> None:
    assert only_warning(diagnosis_of(present("Tesla T4"))) == snapshot


def test_a_gpu_without_any_half_precision_trains_in_fp32() -> None:
    warnings = warnings_of(
        diagnosis_of(present("NVIDIA GeForce GTX 1080 Ti"), built_for=("sm_60", "sm_70"))
    )
    assert any("training runs in fp32" in warning for warning in warnings)


def test_a_cpu_build_on_a_gpu_machine_is_pointed_out(snapshot: SnapshotAssertion) -> None:
    assert only_warning(diagnosis_of(driver_gpu_count=1)) == snapshot


def test_a_driver_that_torch_cannot_use_is_reported_in_torchs_words(
    snapshot: SnapshotAssertion,
) -> None:
    warning = only_warning(
        diagnosis_of(
            driver_gpu_count=1,
            torch_backend="CUDA 13.0",
            driver_problem="The NVIDIA driver on your system is too old.",
        )
    )
    assert warning == snapshot


def test_hidden_gpus_are_counted(snapshot: SnapshotAssertion) -> None:
    a100 = present("NVIDIA A100-SXM4-40GB")
    assert only_warning(diagnosis_of(a100, driver_gpu_count=4, visible_devices="1")) == snapshot
    assert warnings_of(diagnosis_of(a100, visible_devices="0")) == ()
    all_hidden = diagnosis_of(
        driver_gpu_count=0,
        visible_devices="",
        torch_backend="CUDA 13.0",
        driver_problem="No CUDA GPUs are available",
    )
    assert only_warning(all_hidden) == snapshot


def test_hiding_gpus_on_a_machine_without_any_is_no_warning() -> None:
    assert (
        warnings_of(
            diagnosis_of(
                visible_devices="",
                torch_backend="CUDA 13.0",
                driver_problem="Found no NVIDIA driver",
            )
        )
        == ()
    )


def test_selecting_the_larger_of_two_gpus_for_a_newer_one_is_pointed_out(
    snapshot: SnapshotAssertion,
) -> None:
    old, new = present("Quadro RTX 6000", 0), present("NVIDIA GeForce RTX 4080", 1)
    assert warnings_of(diagnosis_of(old, new))[0] == snapshot
    assert warnings_of(diagnosis_of(old, new, selected=new)) == ()


def test_a_newer_gpu_that_torch_cannot_use_is_no_better_choice() -> None:
    t4, new = present("Tesla T4", 0), present("NVIDIA GeForce RTX 5070", 1)
    diagnosis = diagnosis_of(t4, new, built_for=("sm_75", "sm_80"))
    assert not any("is selected, not" in warning for warning in warnings_of(diagnosis))


def test_a_gpu_full_of_other_programs_is_pointed_out(snapshot: SnapshotAssertion) -> None:
    h200 = present("NVIDIA H200")
    busy = dataclasses.replace(h200, free_memory_bytes=h200.memory_bytes // 2)
    assert only_warning(diagnosis_of(busy)) == snapshot
    with_a_desktop = dataclasses.replace(h200, free_memory_bytes=round(0.9 * h200.memory_bytes))
    assert warnings_of(diagnosis_of(with_a_desktop)) == ()


def test_little_disk_is_too_little_for_checkpoints(snapshot: SnapshotAssertion) -> None:
    warning = only_warning(diagnosis_of(disk_free_bytes=5 * GIB - 1))
    assert warning == snapshot
    assert warnings_of(diagnosis_of(disk_free_bytes=5 * GIB)) == ()


def test_little_memory_is_pointed_out(snapshot: SnapshotAssertion) -> None:
    assert only_warning(diagnosis_of(free_memory_bytes=GIB)) == snapshot


def test_a_missing_compiler_matters_on_the_cpu_only(snapshot: SnapshotAssertion) -> None:
    assert only_warning(diagnosis_of(compiler=None)) == snapshot
    assert warnings_of(diagnosis_of(present("NVIDIA H200"), compiler=None)) == ()


def test_replays_that_were_not_built_are_pointed_out(
    said: Callable[..., tuple[int, str, str]],
    snapshot: SnapshotAssertion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warning = only_warning(diagnosis_of(quick_replays=False))
    assert warning == snapshot
    assert warning not in json.loads(said("doctor", "--json")[1])["warnings"]
    monkeypatch.setattr(allocator, "extension", None)
    assert warning in json.loads(said("doctor", "--json")[1])["warnings"]


def test_missing_needed_packages_are_named_and_optional_ones_are_not(
    snapshot: SnapshotAssertion,
) -> None:
    versions = {
        "torch": "2.13.0",
        "transformers": None,
        "tokenizers": "0.23.3",
        "datasets": None,
        "peft": None,
    }
    assert only_warning(diagnosis_of(versions=versions)) == snapshot


def test_a_device_that_cannot_be_selected_is_the_first_warning(snapshot: SnapshotAssertion) -> None:
    diagnosis = diagnosis_of(selected=None, selection_problem="cuda:0 cannot be used: busy")
    assert warnings_of(diagnosis)[0] == snapshot
    assert diagnosis.consequences == ()


def meaning(device: Device, ability: str) -> str:
    return next(
        consequence.meaning
        for consequence in consequences_of(device)
        if consequence.ability == ability
    )


@pytest.mark.parametrize("name", catalog.names())
def test_every_ability_of_every_device_has_a_consequence_in_words(name: str) -> None:
    device = catalog.get(name)
    assert {
        consequence.ability: consequence.has for consequence in consequences_of(device)
    } == dataclasses.asdict(device.abilities)
    assert all(consequence.meaning for consequence in consequences_of(device))


def test_consequences_say_what_to_do_instead(snapshot: SnapshotAssertion) -> None:
    t4, h200, m1 = catalog.get("Tesla T4"), catalog.get("NVIDIA H200"), catalog.get("Apple M1")
    assert meaning(t4, "bf16") == snapshot
    assert "loss scaling" in meaning(t4, "fp16")
    assert "memory-efficient" in meaning(t4, "flash_attention")
    assert "flash kernel" in meaning(h200, "flash_attention")
    assert meaning(h200, "fp16") == snapshot
    assert meaning(m1, "flash_attention") == snapshot
    assert meaning(CPU, "compile") == snapshot


def text_of(diagnosis: Diagnosis) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(render(diagnosis))
    return str(console.file.getvalue())


def test_the_rendering_marks_the_selected_device_and_ends_with_the_warnings(
    snapshot: SnapshotAssertion,
) -> None:
    text = text_of(diagnosis_of(present("Tesla T4")))
    assert "→  Tesla T4 (cuda:0)" in text
    assert "fp16 65.00T" in text
    assert "peft          not installed" in text
    assert text.rstrip().splitlines()[-1] == snapshot


def test_the_rendering_says_when_there_is_nothing_to_warn_about(
    snapshot: SnapshotAssertion,
) -> None:
    assert text_of(diagnosis_of()).rstrip().splitlines()[-1] == snapshot


def test_a_diagnosis_becomes_json_with_its_judgements() -> None:
    value = json.loads(json.dumps(diagnosis_of(present("Tesla T4")).to_json(), allow_nan=False))
    assert value["selected"]["name"] == "Tesla T4"
    assert value["versions"]["peft"] is None
    assert {consequence["ability"] for consequence in value["consequences"]} >= {"bf16", "compile"}
    assert len(value["warnings"]) == 1


def test_this_machine_is_examined_without_being_changed(tmp_path: Path) -> None:
    diagnosis = examine(tmp_path / "runs", True)
    assert diagnosis.selected is not None
    assert diagnosis.devices[-1].kind == "cpu"
    assert diagnosis.versions["torch"]
    assert 0 < diagnosis.free_memory_bytes <= diagnosis.memory_bytes
    assert diagnosis.disk_free_bytes > 0
    assert not (tmp_path / "runs").exists()
    assert "torch" in text_of(diagnosis)


def test_a_device_that_cannot_be_used_is_a_warning_of_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Device:
        raise DeviceError("cuda:0 (Tesla T4) cannot be used: busy")

    monkeypatch.setattr(probe, "probe", refuse)
    diagnosis = examine(tmp_path, True)
    assert diagnosis.selected is None
    assert "cuda:0 (Tesla T4) cannot be used" in diagnosis.warnings[0]


def test_a_machine_with_gpus_is_examined(
    tmp_path: Path, fake_cuda: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cuda(("Tesla T4", 14.74, (7, 5)), ("Tesla V100-SXM2-16GB", 15.77, (7, 0)))
    monkeypatch.setattr(host, "nvidia_gpu_count", lambda: 2)
    monkeypatch.setattr(doctor.torch.version, "cuda", "13.0")
    diagnosis = examine(tmp_path, True)
    assert diagnosis.selected is not None
    assert diagnosis.selected.name == "Tesla T4"
    assert diagnosis.torch_backend == "CUDA 13.0"
    assert any(
        "no code for Tesla V100-SXM2-16GB (cuda:1) (sm_70)" in warning
        for warning in diagnosis.warnings
    )
