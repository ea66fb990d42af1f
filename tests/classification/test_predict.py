"""Texts in, labels out: in order, whatever the window, with what a user is told."""

import csv
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError, Interrupted, RequestError
from brimful.base.types import JsonDict
from brimful.classification.answers import partial_of
from brimful.classification.classifier import load_classifier
from brimful.classification.predict import PredictionRequest, PredictionSummary, predict

Predict = Callable[..., tuple[PredictionSummary, list[str]]]


def _texts(count: int) -> list[str]:
    words = ["call", "me", "later", "win", "a", "prize", "the", "meeting", "is", "moved"]
    drawn = np.random.default_rng(2)
    return [" ".join(drawn.choice(words, size=drawn.integers(1, 14))) for _ in range(count)]


def _run_predict(
    run: Path, source: str | Path, **wanted: Any
) -> tuple[PredictionSummary, list[str]]:
    """The summary, and what was told."""
    told: list[str] = []
    standard_input, progress = wanted.pop("standard_input", None), wanted.pop("progress", None)
    wanted = {"device": "cpu", **wanted}
    return predict(
        run,
        PredictionRequest(str(source), **wanted),
        tell=told.append,
        standard_input=standard_input,
        progress=progress,
    ), told


def _rows(path: Path) -> list[JsonDict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_text_gets_the_answer_that_it_gets_alone_in_its_place(
    make_run, tmp_path: Path
) -> None:
    run, texts = make_run("modernbert"), _texts(30)
    (tmp_path / "in.txt").write_text("\n".join(texts))

    summary, told = _run_predict(run, tmp_path / "in.txt", output=tmp_path / "out.jsonl")

    rows = _rows(tmp_path / "out.jsonl")
    classifier = load_classifier(run, torch.device("cpu"))
    alone_EC = classifier.probabilities(
        np.concatenate([classifier.logits([text]) for text in texts])
    )
    assert [row["text"] for row in rows] == texts
    np.testing.assert_allclose([[row["p_ham"], row["p_spam"]] for row in rows], alone_EC, rtol=1e-4)
    threshold = classifier.record.calibration.thresholds[0].value
    assert [row["label"] for row in rows] == [
        "spam" if p >= threshold else "ham" for p in alone_EC[:, 1]
    ]
    assert all(row["probability"] == row[f"p_{row['label']}"] for row in rows)
    assert {row["label"] for row in rows} == {"ham", "spam"}
    assert (summary.texts, sum(summary.given.values()), told) == (30, 30, [])


@pytest.mark.parametrize("window", [1, 7, 8192])
def test_the_window_changes_nothing_but_rounding(window: int, make_run, tmp_path: Path) -> None:
    run = make_run("gpt2")
    (tmp_path / "in.csv").write_text("text\n" + "\n".join(_texts(16)) + "\n")
    _run_predict(run, tmp_path / "in.csv", output=tmp_path / "all.jsonl", window=16)

    _run_predict(run, tmp_path / "in.csv", output=tmp_path / "out.jsonl", window=window)

    expected, found = _rows(tmp_path / "all.jsonl"), _rows(tmp_path / "out.jsonl")
    assert [(row["text"], row["label"]) for row in found] == [
        (row["text"], row["label"]) for row in expected
    ]
    np.testing.assert_allclose(
        [row["p_spam"] for row in found], [row["p_spam"] for row in expected], rtol=1e-4
    )


def test_a_csv_keeps_its_columns_and_quoting_and_its_own_label_column(
    make_run, tmp_path: Path
) -> None:
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ["id", "text", "label"],
                ["1", 'he said "fine, then"', "ham"],
                ["2", "two\nlines", "spam"],
                ["3", " ", "ham"],
            ]
        )

    summary, told = _run_predict(make_run(), tmp_path / "in.csv", output=tmp_path / "out.csv")

    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["text"], row["label"]) for row in rows] == [
        ("1", 'he said "fine, then"', "ham"),
        ("2", "two\nlines", "spam"),
        ("3", " ", "ham"),
    ]
    assert [row["label_predicted"] in {"ham", "spam"} for row in rows] == [True, True, False]
    assert rows[2]["p_spam"] == ""
    assert told == ["the input has a column label; the prediction is in label_predicted"]
    assert summary.not_judged == 1
    assert "1 without a word got no label" in summary.lines()


def test_a_table_without_a_header_comes_back_without(
    make_run, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "in").write_bytes(b"ham\tok\r\nspam\twin a prize\r\n")

    _, (told,) = _run_predict(
        make_run(),
        tmp_path / "in",
        changes=["data.text_column=1", "data.file_type=tsv"],
        output=tmp_path / "out",
    )

    lines = [line.split("\t") for line in (tmp_path / "out").read_text().splitlines()]
    assert [line[:2] for line in lines] == [["ham", "ok"], ["spam", "win a prize"]]
    assert told == snapshot


def test_an_empty_file_gives_an_empty_one(make_run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("")

    summary, _ = _run_predict(make_run(), tmp_path / "in.csv", output=tmp_path / "out.csv")

    assert (summary.texts, (tmp_path / "out.csv").read_text()) == (0, "")


def test_several_labels_are_given_as_a_list_each_by_its_threshold(make_run, tmp_path: Path) -> None:
    run = make_run(names=("rude", "threat", "spam"), multiple=True)
    (tmp_path / "in.txt").write_text("\n".join(_texts(20)))

    summary, _ = _run_predict(
        run, tmp_path / "in.txt", output=tmp_path / "out.jsonl", threshold="0.5"
    )

    rows = _rows(tmp_path / "out.jsonl")
    assert all(
        row["labels"] == [name for name in ("rude", "threat", "spam") if row[f"p_{name}"] >= 0.5]
        for row in rows
    )
    assert summary.given["rude"] == sum("rude" in row["labels"] for row in rows)
    assert len({len(row["labels"]) for row in rows}) > 1
    assert "probability" not in rows[0]
    assert len(summary.thresholds) == 3


def test_of_three_labels_the_likeliest_is_given(make_run, tmp_path: Path) -> None:
    run = make_run(names=("a", "b", "c"))
    (tmp_path / "in.txt").write_text("\n".join(_texts(9)))

    summary, _ = _run_predict(run, tmp_path / "in.txt", output=tmp_path / "out.jsonl")

    assert all(
        row["probability"] == max(row["p_a"], row["p_b"], row["p_c"])
        for row in _rows(tmp_path / "out.jsonl")
    )
    assert summary.thresholds == ()


def test_a_threshold_of_the_command_is_chosen_on_validation_and_told(
    make_run, tmp_path: Path
) -> None:
    run = make_run()
    (tmp_path / "in.txt").write_text("\n".join(_texts(30)))

    strict, _ = _run_predict(
        run, tmp_path / "in.txt", output=tmp_path / "strict.jsonl", threshold="precision>=0.95"
    )
    loose, _ = _run_predict(
        run, tmp_path / "in.txt", output=tmp_path / "loose.jsonl", threshold="recall>=0.95"
    )

    assert strict.given["spam"] < loose.given["spam"]
    assert "precision>=0.95; on validation precision " in strict.lines()[1]
    assert [row["p_spam"] for row in _rows(tmp_path / "strict.jsonl")] == [
        row["p_spam"] for row in _rows(tmp_path / "loose.jsonl")
    ]


def test_a_broken_row_ends_it_with_its_line_after_all_before_it_is_written(
    make_run, tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "in.jsonl").write_text(
        '{"text": "a"}\n{"text": "b"}\n{"text": "c"\n{"text": "d"}\n'
    )
    output = tmp_path / "out.jsonl"

    with refuses(DataError, names=["in.jsonl:3", "2 rows", "out.jsonl"]) as raised:
        _run_predict(make_run(), tmp_path / "in.jsonl", output=output)

    assert raised.value.exit_code == 2
    assert not output.exists()
    assert [row["text"] for row in _rows(partial_of(output))] == ["a", "b"]


def test_a_row_that_cannot_be_written_ends_it_after_all_before_it_is_written(
    make_run, tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b\\tb"}\n')

    with refuses(DataError, names=["in.jsonl:2"]):
        _run_predict(make_run(), tmp_path / "in.jsonl", output=tmp_path / "out.tsv")

    assert partial_of(tmp_path / "out.tsv").read_text().splitlines()[1].startswith("a\t")


def test_nothing_stays_of_a_file_that_breaks_at_once(
    make_run, tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": 5}\n')

    with refuses(DataError, names=["'text'"]):
        _run_predict(make_run(), tmp_path / "in.jsonl", output=tmp_path / "out.csv")

    assert not list(tmp_path.glob("out*"))


def test_ctrl_c_tells_what_is_written(make_run, tmp_path: Path, refuses: Refuses) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    with refuses(Interrupted, names=["2 rows"]) as raised:
        _run_predict(
            make_run(),
            tmp_path / "in.txt",
            output=tmp_path / "out.jsonl",
            window=2,
            progress=interrupt,
        )

    assert raised.value.exit_code == 130


def test_the_input_is_not_overwritten(make_run, tmp_path: Path, refuses: Refuses) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text\nhello\n")

    with refuses(RequestError):
        _run_predict(make_run(), path, output=path)
    assert path.read_text() == "text\nhello\n"


def test_progress_is_told_after_every_window(make_run, tmp_path: Path) -> None:
    seen = []
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    _run_predict(
        make_run(),
        tmp_path / "in.txt",
        output=tmp_path / "out.jsonl",
        window=2,
        progress=lambda *values: seen.append(values),
    )

    assert seen == [("predict", 2, None), ("predict", 3, None)]


def test_answers_to_standard_input_come_line_by_line_with_a_window_of_one(
    make_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, ask = os.pipe()
    answer, give = os.pipe()
    with (
        os.fdopen(give, "w") as stdout,
        os.fdopen(answer, "rb") as answers,
        os.fdopen(question, "rb") as questions,
    ):
        monkeypatch.setattr(sys, "stdout", stdout)
        at_work = threading.Thread(
            target=_run_predict,
            args=(make_run(), "-"),
            kwargs={"window": 1, "standard_input": questions},
            daemon=True,
        )
        at_work.start()
        for text in ("win a prize", "ok"):
            os.write(ask, f"{text}\n".encode())
            assert json.loads(answers.readline())["text"] == text
        os.close(ask)
        at_work.join(timeout=300)
        assert not at_work.is_alive()


def test_a_reader_that_goes_away_ends_it_quietly(
    make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, written = os.pipe()
    os.close(reading)
    (tmp_path / "in.txt").write_text("a\nb\n")
    with os.fdopen(written, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        summary, _ = _run_predict(make_run(), tmp_path / "in.txt", window=1)

    assert not summary.is_read_to_the_end
    assert summary.lines()


def test_memory_does_not_grow_with_the_input(make_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an endless input no more is read than the window that is worked on."""

    class Endless(io.RawIOBase):
        lines = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.lines += 1
            buffer[:2] = b"a\n"
            return 2

    endless, seen = Endless(), []

    def watch(what: str, done: int, total: int | None) -> None:
        seen.append((done, endless.lines))
        if len(seen) == 3:
            raise KeyboardInterrupt

    run, endless_input = make_run(), io.BufferedReader(endless)
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        with pytest.raises(Interrupted):
            _run_predict(run, "-", window=16, standard_input=endless_input, progress=watch)

    assert seen == [(16, 16), (32, 32), (48, 48)]


def test_cut_texts_are_counted_and_told(make_run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("win a prize " * 50 + "\nok\n")

    summary, _ = _run_predict(make_run(), tmp_path / "in.txt", output=tmp_path / "out.jsonl")

    assert "1 were cut to 48 tokens, as in training" in summary.lines()


def test_a_policy_that_validation_does_not_reach_is_told(
    make_run, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    run = make_run(names=("rude", "threat"), multiple=True)
    path = run / "classifier.json"
    stored = json.loads(path.read_text())
    del stored["checksum"]
    stored["thresholds"][0] |= {
        "reached": False,
        "note": "precision>=1 is not reached on validation.",
    }
    path.write_text(json.dumps(stored))
    (tmp_path / "in.txt").write_text("ok\n")

    _, told = _run_predict(run, tmp_path / "in.txt", output=tmp_path / "out.jsonl")

    assert told == snapshot
