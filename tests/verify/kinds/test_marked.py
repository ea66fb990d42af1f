"""The form of an answer; its examples are tested with those of all verifiers."""

from brimful.verify.verifier import load_verifier


def test_the_form_alone_counts_and_marks_that_repeat_do_not_help() -> None:
    verify = load_verifier("marked").verify
    assert verify is not None
    assert verify("<answer>wrong</answer>", "120").is_correct
    assert not verify("<answer>1</answer>" * 50, "1").is_correct
