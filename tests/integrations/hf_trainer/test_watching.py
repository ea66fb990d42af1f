"""A loop of one's own is measured, and its first batch's shapes say what to expect."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Make, Refuses
from torch import nn

import brimful
from brimful.base.errors import RequestError


def _loop(
    model: Any,
    optimizer: torch.optim.Optimizer,
    steps: int = 3,
    passes: int = 2,
    *,
    keeps: bool = False,
) -> None:
    ids_BT = torch.randint(3, 64, (2, 16), generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        for _ in range(passes):
            if keeps:
                outputs = model(input_ids=ids_BT, labels=ids_BT)
                outputs.loss.backward()
            else:
                model(input_ids=ids_BT, labels=ids_BT).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_steps_and_micro_batches_are_counted_and_the_page_is_written(
    small_model: Make, tmp_path: Path
) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with brimful.watching(model, optimizer, report=tmp_path / "report.html") as watch:
        _loop(model, optimizer)

    assert (watch.rows, watch.passes, watch.note) == (2, 2, "")
    assert watch.measured is not None
    assert len(watch.measured.step_times_s) == 3
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "2 micro-batches of 2" in page
    assert "1 prediction: error" in page


@pytest.mark.parametrize("keeps", [False, True])
def test_the_prediction_is_that_of_plan_model(small_model: Make, *, keeps: bool) -> None:
    """Of a loop that holds what the model returned, and of one that does not."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with brimful.watching(model, optimizer, report=None) as watch:
        _loop(model, optimizer, keeps=keeps)
    ids_BT = torch.zeros((2, 16), dtype=torch.int64)
    memory = brimful.plan_model(
        model,
        {"input_ids": ids_BT, "labels": ids_BT},
        "foreach",
        accumulates=True,
        keeps_outputs=keeps,
    )

    assert watch.keeps_outputs == keeps
    assert watch.predicted is not None
    assert watch.predicted.footprint.allocated == memory.at(2).allocated


def test_the_loop_is_not_changed(small_model: Make) -> None:
    ended = []
    for watches in (False, True):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if watches:
            with brimful.watching(model, optimizer, report=None):
                _loop(model, optimizer)
        else:
            _loop(model, optimizer)
        ended.append((model.state_dict(), optimizer.state_dict()["state"]))

    assert all(torch.equal(value, ended[1][0][name]) for name, value in ended[0][0].items())
    assert all(
        torch.equal(state["momentum_buffer"], ended[1][1][number]["momentum_buffer"])
        for number, state in ended[0][1].items()
    )
    assert not model._forward_pre_hooks


def test_a_loss_of_ones_own_and_arguments_by_position() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with brimful.watching(
        model, optimizer, report=None, loss_of=lambda net, batch: net(batch["input"]).mean()
    ) as watch:
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()

    assert watch.predicted is not None
    terms = watch.predicted.footprint.terms
    assert terms["weights"] == terms["optimizer states"] == 4 * (8 * 8 + 8 + 8 + 1)


def test_what_cannot_be_predicted_is_measured_all_the_same(tmp_path: Path, snapshot: Any) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "report.html"
    notes = []
    with brimful.watching(model, optimizer, report=path) as watch:
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()
    notes.append(watch.note)
    with brimful.watching(model, optimizer, report=None) as watch:
        pass
    notes.append(watch.note)

    assert watch.measured is not None
    assert notes == snapshot
    assert "give loss_of=" in path.read_text(encoding="utf-8")


def test_a_loop_that_raises_leaves_no_page_and_no_hooks(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(ZeroDivisionError),
        brimful.watching(model, optimizer, report=tmp_path / "report.html"),
    ):
        _ = 1 // 0

    assert not (tmp_path / "report.html").exists()
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_model_without_parameters_is_refused(refuses: Refuses) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    with refuses(RequestError), brimful.watching(nn.ReLU(), optimizer):
        pass
