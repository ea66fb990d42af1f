"""What one optimizer step sees, and its pieces."""

import torch

from brimful.data.batches import IGNORED, Batch, MicroBatch


def test_a_batch_is_cut_into_rows_in_order() -> None:
    ids_BT = torch.arange(12).view(6, 2)
    pieces = list(Batch(ids_BT, -ids_BT).micro_batches((4, 2)))

    assert [piece.inputs_BT.tolist() for piece in pieces] == [
        ids_BT[:4].tolist(),
        ids_BT[4:].tolist(),
    ]
    assert all(torch.equal(piece.targets_BT, -piece.inputs_BT) for piece in pieces)


def test_ignored_targets_do_not_count() -> None:
    assert (
        Batch(
            torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[5, IGNORED, 0]])
        ).num_target_tokens
        == 2
    )


def test_positions_begin_anew_with_every_packed_example() -> None:
    ids_BT = torch.arange(5)[None]
    inputs = MicroBatch(ids_BT, ids_BT, lengths_E=torch.tensor([2, 3])).model_inputs()

    assert inputs["position_ids"].tolist() == [[0, 1, 0, 1, 2]]
    assert inputs["packed_lengths"].tolist() == [2, 3]


def test_rows_of_one_sequence_each_say_nothing_about_positions() -> None:
    ids_BT = torch.arange(4)[None]

    assert MicroBatch(ids_BT, ids_BT).model_inputs().keys() == {"input_ids"}


def test_what_is_moved_keeps_its_values() -> None:
    ids_BT, scored_N = torch.arange(4)[None], torch.tensor([1, 3])
    moved = MicroBatch(ids_BT, ids_BT + 1, scored_N, torch.tensor([4])).to(torch.device("cpu"))

    assert torch.equal(moved.targets_BT, ids_BT + 1)
    assert moved.scored_N is not None
    assert torch.equal(moved.scored_N, scored_N)
