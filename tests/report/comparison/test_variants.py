"""Runs that differ by their seed are one variant, and every run has a name of its own."""

import math
from pathlib import Path

import pytest
from fixture_types import MakeRun

from brimful.report.comparison.compare import compare
from brimful.report.comparison.variants import distinct_names

SYNTAX = "code-syntax syntax"


@pytest.mark.parametrize(
    "names",
    [
        ("lora-16-seed1", "lora-16-seed2"),
        ("lora-16-1", "lora-16-2"),
        ("lora-16.seed_1", "lora-16.seed_2"),
    ],
)
def test_repetitions_are_called_by_what_their_names_share(
    scored_run: MakeRun, names: tuple[str, str]
) -> None:
    runs = [scored_run(name, seed=seed) for seed, name in enumerate(names, 1)]

    assert [variant.name for variant in compare(runs).variants] == ["lora-16"]


def test_repetitions_of_other_names_are_called_by_all_of_them(
    scored_run: MakeRun,
) -> None:
    assert (
        compare([scored_run("first", seed=1), scored_run("second", seed=2)]).variants[0].name
        == "first + second"
    )


def test_the_spread_of_a_share_ends_at_all_and_none(scored_run: MakeRun) -> None:
    comparison = compare(
        [scored_run("a-1", seed=1, share=0.99), scored_run("a-2", seed=2, share=0.6)]
    )

    figure = comparison.variants[0].figure(SYNTAX)

    assert figure is not None
    assert figure.interval == (0.0, 1.0)


def test_perplexities_are_averaged_as_losses_and_intervals_end_where_values_do(
    fresh_text_run: MakeRun,
) -> None:
    runs = [
        fresh_text_run(f"a-seed{seed}", seed=seed, loss=loss, step_time_s=time)
        for seed, loss, time in ((1, 2.0, 0.1), (2, 8.0, 2.0))
    ]

    (variant,) = compare(runs).variants

    perplexity, speed = variant.figure("perplexity per token"), variant.figure("tokens_per_s")
    assert perplexity is not None
    assert speed is not None
    assert perplexity.interval is not None
    assert speed.interval is not None
    assert perplexity.value == pytest.approx(math.exp(5.0))
    assert 0 < perplexity.interval[0] < perplexity.value < perplexity.interval[1]
    assert speed.interval[0] == 0


def test_the_same_seed_twice_is_no_repetition(scored_run: MakeRun) -> None:
    assert [variant.name for variant in compare([scored_run("a"), scored_run("b")]).variants] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (("/runs/a", "/mirror/b"), ["x (runs/a)", "x (mirror/b)"]),
        (("/runs/x", "/runs/old/x"), ["x (runs)", "x (runs/old)"]),
        (
            ("/a/one/runs/x", "/a/two/runs/x", "/a/two/copies/x"),
            ["x (one/runs)", "x (two/runs)", "x (two/copies)"],
        ),
        (("/x", "/runs/x"), ["x (/)", "x (/runs)"]),
    ],
)
def test_a_name_that_repeats_is_followed_by_what_differs_in_the_path(
    folders: tuple[str, ...], names: list[str]
) -> None:
    assert distinct_names(["x"] * len(folders), [Path(folder) for folder in folders]) == names
    assert distinct_names(["y", *["x"] * len(folders)], [Path("/y"), *map(Path, folders)]) == [
        "y",
        *names,
    ]
