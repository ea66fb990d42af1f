"""A checkpoint of transformers' Trainer says what of it is taken."""

from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from brimful.chains.base_model import what_is_left_out


def test_pickled_files_are_named_and_left_out(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    (folder / "trainer_state.json").write_text('{"global_step": 500}')
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "model.safetensors"):
        (folder / name).write_bytes(b"")
    said = what_is_left_out(folder)
    assert said == snapshot
    assert "model.safetensors" not in said


def test_other_folders_and_damaged_states_are_no_trouble(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert what_is_left_out(tmp_path) == ""
    assert what_is_left_out(tmp_path / "nowhere") == ""
    (tmp_path / "trainer_state.json").write_text("[]")
    assert what_is_left_out(tmp_path) == snapshot


def test_a_state_nested_without_end_says_no_step(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "trainer_state.json").write_text(f'{{"global_step": {deep}}}')
    assert "is a checkpoint of a Trainer. " in what_is_left_out(tmp_path)
