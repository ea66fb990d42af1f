from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from brimful.planning.trace import KINDS
from brimful.rehearsal.recorder import Recorder


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder that listens on fake tensors, CPU kernels."""
    made = Recorder(cuda=False)
    with FakeTensorMode(), made:
        yield made


def test_a_tensor_is_born_with_the_bytes_asked_for_and_dies_with_its_last_reference(
    recorder: Recorder,
) -> None:
    tensor = torch.empty(10, 3)
    assert tensor.numel() == 30
    del tensor

    trace = recorder.finish()

    assert trace.events_E.tolist() == [1, -1]
    assert trace.sizes_S.tolist() == [120]
    assert trace.live_E().tolist() == [120, 0]


def test_views_share_the_storage_that_they_look_at(recorder: Recorder) -> None:
    tensor = torch.empty(8, 4)
    view = tensor.view(32)[3:].unsqueeze(0)
    del tensor

    trace = recorder.finish()

    assert trace.events_E.tolist() == [1]
    assert view.shape == (1, 29)


def test_what_outlives_its_forward_pass_is_an_activation_and_what_does_not_is_temporary(
    recorder: Recorder,
) -> None:
    recorder.begin("forward")
    kept, passing = torch.empty(2), torch.empty(3)
    del passing
    recorder.begin("backward")
    del kept

    trace = recorder.finish()

    assert [KINDS[kind] for kind in trace.kinds_S] == ["activations", "temporaries"]
    assert dict(trace.marks) == {"forward": 0, "backward": 3}


def test_a_phase_that_comes_again_has_a_number(recorder: Recorder) -> None:
    for phase in ("forward", "backward", "forward"):
        recorder.begin(phase)

    assert list(recorder.finish().marks) == ["forward", "backward", "forward 2"]


def test_a_cast_of_a_weight_is_a_copy_of_it(recorder: Recorder) -> None:
    weight = torch.empty(16)
    recorder.seed(weight, "weights", "head")
    recorder.mark(weight, "weights", "head")
    half = weight.to(torch.bfloat16)

    trace = recorder.finish()

    assert half.dtype == torch.bfloat16
    assert [KINDS[kind] for kind in trace.kinds_S] == ["weights", "16-bit weight copies"]
    assert trace.sizes_S.tolist() == [64, 32]


def test_deaths_that_follow_one_another_stand_in_the_order_of_births(recorder: Recorder) -> None:
    first, second = torch.empty(1), torch.empty(2)
    del second
    del first

    assert recorder.finish().events_E.tolist() == [1, 2, -1, -2]


def test_private_tensors_of_an_operator_live_beside_its_output_and_no_longer(
    recorder: Recorder,
) -> None:
    logits = torch.empty(4, 100)
    lse = torch.logsumexp(logits, -1)

    trace = recorder.finish()

    assert lse.shape == (4,)
    assert int(trace.live_E().max()) == 1600 + 1600 + 16 + 16
    assert int(trace.live_E()[-1]) == 1600 + 16


def test_nothing_is_recorded_after_the_end(recorder: Recorder) -> None:
    tensor = torch.empty(4)
    trace = recorder.finish()
    del tensor

    assert trace.events_E.tolist() == [1]
