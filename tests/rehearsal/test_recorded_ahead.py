"""What another process recorded meanwhile is what this one records, to the byte."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.planning.step import Lora, StepSpec
from brimful.rehearsal import recorded_ahead
from brimful.rehearsal.family_store import StoredFamilies
from brimful.rehearsal.recorded_ahead import RecordedAhead

Step = Callable[..., StepSpec]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing can be forked here")


def _spec(step: Step, *, recompute: bool = False) -> StepSpec:
    return step(
        "llama",
        cuda=True,
        autocast="bf16",
        weights="bf16",
        adapter=Lora(4),
        sequence_length=256,
        recompute=recompute,
    )


def _key(step: Step, *, recompute: bool = False) -> TraceFamilyKey:
    return family_keys_of(_spec(step, recompute=recompute))[0]


def _nothing_is_there(key: TraceFamilyKey) -> bool:
    return False


def test_recomputation_is_recorded_meanwhile_and_equal_to_the_byte(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_ahead, "_further_cores", lambda: 1)
    one_after_the_other = StoredFamilies(tmp_path / "one", None, None)
    together = StoredFamilies(tmp_path / "together", None, None, ahead=True)
    plain, again = _spec(step), _spec(step, recompute=True)
    for spec in (plain, again):
        assert one_after_the_other.member(spec) is not None

    assert together.member(plain) is not None
    assert together._ahead is not None
    together._ahead.wait_for(_key(step, recompute=True))
    recorded = together.path(_key(step, recompute=True))
    assert recorded is not None
    assert recorded.exists(), "before anybody asked for it"
    assert together.member(again) is not None
    for key in (_key(step), _key(step, recompute=True)):
        paths = one_after_the_other.path(key), together.path(key)
        one, other = (path.read_bytes() for path in paths if path is not None)
        assert one == other


def test_what_fails_in_the_other_process_is_recorded_here(step: Step, tmp_path: Path) -> None:
    def record(key: TraceFamilyKey) -> None:
        (tmp_path / "tried").touch()
        raise RuntimeError

    ahead = RecordedAhead(record, most=1)
    ahead.start_after(_key(step), _nothing_is_there)
    ahead.wait_for(_key(step, recompute=True))
    ahead.wait_for(_key(step, recompute=True))
    assert (tmp_path / "tried").exists()


def test_what_nobody_waits_for_is_ended(step: Step) -> None:
    ahead = RecordedAhead(lambda key: time.sleep(600), most=1)
    ahead.start_after(_key(step), _nothing_is_there)
    (process,) = ahead._started.values()
    ahead.end()
    with pytest.raises(ProcessLookupError):
        os.kill(process, signal.SIGTERM)


@pytest.mark.parametrize(("most", "is_there"), [(0, False), (1, True)])
def test_nothing_is_started_in_vain(step: Step, most: int, *, is_there: bool) -> None:
    ahead = RecordedAhead(lambda key: None, most)
    ahead.start_after(_key(step), lambda key: is_there)
    ahead.start_after(_key(step, recompute=True), _nothing_is_there)
    assert ahead._started == {}
