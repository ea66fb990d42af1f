"""YAML values and dotted keys."""

import pytest
from fixture_types import Refuses

from brimful.base import yaml_values
from brimful.base.dotted import flatten, format_yaml, override, parse_yaml
from brimful.base.types import JsonDict

RIVALS = {"batch": ("sequences", "tokens")}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("3E4", 3e4),
        ("-2.5e+2", -250.0),
        ("1.e2", 100.0),
        ("1_000e1", 10_000.0),
        ("12", 12),
        ("-0x1F", -31),
        ("1_000", 1000),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("010", "010"),
        ("0.5", 0.5),
        ("null", None),
        ("", None),
        ("true", True),
        ("[a, 1]", ["a", 1]),
        ("e3", "e3"),
        ("1e", "1e"),
        ("v1e-3", "v1e-3"),
        ("'1e-3'", "1e-3"),
        ("{a: 2}", {"a": 2}),
    ],
)
def test_values_are_what_they_look_like(text: str, value: object) -> None:
    read = parse_yaml(text)

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["a: 1\na: 2", "s:\n  b: 1\n  b: 1", "[{a: 1, a: 2}]"])
def test_a_key_given_twice_is_refused_at_any_depth(text: str, refuses: Refuses) -> None:
    with refuses(ValueError):
        parse_yaml(text)


@pytest.mark.parametrize(
    "text",
    ["{a: ", "a: b: c", "\t- x", "2024-13-45", "!!python/object/apply:os.getcwd []", "a: \x00"],
)
def test_what_is_no_plain_yaml_is_a_value_error(text: str, refuses: Refuses) -> None:
    with refuses(ValueError):
        parse_yaml(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000 + "]" * 5000,
        "a: &a [*a]",
        "\n".join(
            f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20 if n else ['x'])}]" for n in range(9)
        ),
        "a: " + "x" * 1_000_001,
        "!!timestamp x",
        "!!bool x",
        "!!int ''",
    ],
    ids=["deep", "cyclic", "exploding", "long", "no time", "no bool", "no int"],
)
def test_what_would_take_minutes_or_crash_is_a_value_error(text: str, refuses: Refuses) -> None:
    with refuses(ValueError):
        parse_yaml(text)


def test_an_anchor_that_is_used_twice_stands_for_its_value() -> None:
    assert parse_yaml("a: &x {b: [1]}\nc: *x\nd: *x") == {key: {"b": [1]} for key in "acd"}


@pytest.mark.parametrize(
    "text",
    [
        "1e-3",
        "1E5",
        "12",
        "0x1f",
        "null",
        "yes",
        "12:30",
        "010",
        "",
        " ",
        "a: b",
        "# c",
        "- d",
        "\n\te",
        "{f",
        "ä\u2028\U0001f600",
        "'",
        "~",
    ],
)
def test_written_texts_read_back_as_texts(text: str) -> None:
    value = {"z": text, "a": [text, 1.5e-7, None, True, 3]}

    assert parse_yaml(format_yaml(value)) == value
    assert list(parse_yaml(format_yaml(value))) == ["z", "a"]


def test_an_override_reaches_into_sections_and_makes_absent_ones() -> None:
    values: JsonDict = {"model": {"layers": 1}, "plan": None}

    for assignment in ("model.layers=2", "plan.threads=4", "run.name=a=b", "seed=7"):
        override(assignment, values, {})

    assert values == {
        "model": {"layers": 2},
        "plan": {"threads": 4},
        "run": {"name": "a=b"},
        "seed": 7,
    }


def test_a_rival_of_the_file_gives_way() -> None:
    values: JsonDict = {"batch": {"sequences": 8, "other": 1}}

    override("batch.tokens=1024", values, RIVALS)

    assert values == {"batch": {"other": 1, "tokens": 1024}}


def test_taking_a_rival_back_leaves_the_other() -> None:
    values: JsonDict = {"batch": {"sequences": 8}}

    override("batch.tokens=null", values, RIVALS)

    assert values == {"batch": {"sequences": 8, "tokens": None}}


def test_only_rivals_of_the_same_section_give_way() -> None:
    values: JsonDict = {"batch": {"sequences": 8}, "training": {}}

    override("training.tokens=1024", values, RIVALS)
    override("batch.size=3", values, RIVALS)

    assert values == {"batch": {"sequences": 8, "size": 3}, "training": {"tokens": 1024}}


@pytest.mark.parametrize(
    "assignment",
    [
        "nonsense",
        "=3",
        "model..layers=3",
        "--fresh=1",
        "name={a",
        "seed.x=1",
    ],
)
def test_a_wrong_assignment_is_told_and_changes_nothing(assignment: str, refuses: Refuses) -> None:
    values: JsonDict = {"seed": 1}

    with refuses(ValueError):
        override(assignment, values, {})

    assert values == {"seed": 1}


def test_flattening_gives_dotted_keys_and_leaves_lists_whole() -> None:
    assert flatten({"a": 1, "b": {"c": [1, {"d": 2}], "e": {"f": None}}}) == {
        "a": 1,
        "b.c": [1, {"d": 2}],
        "b.e.f": None,
    }


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-7",
        "007",
        "1_000",
        "12345678901234567890123",
        "1e3",
        "null",
        "Null",
        "~",
        "true",
        "TRUE",
        "yes",
        "Off",
        "y",
        "n",
        "N",
        "nan",
        "inf",
        ".inf",
        "a",
        "meta-llama/Llama-3.1-8B",
        "nf4",
        "a b",
        "a:",
        "a: b",
        "a#b",
        "a-",
        "-",
        "--",
        "x.y/z_1",
        "2048 ",
        " 2048",
        "\n5",
        "e5",
        "0x1F",
        "0b1",
        "1:30",
        "+5",
        "-0",
    ],
)
def test_short_values_mean_what_the_reader_of_yaml_says(text: str) -> None:
    """Words and whole numbers are read without it."""
    meant = repr(yaml_values.read(text))

    assert repr(parse_yaml(text)) == meant
