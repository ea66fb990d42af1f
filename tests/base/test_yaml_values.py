"""The YAML that is read and written (more of it in test_dotted.py)."""

import pytest

from brimful.base import yaml_values


def test_what_is_written_is_read_back() -> None:
    value = {"a": [1, 1.5, "1e-3", None], "b": {"c": "1:30", "d": True, "e": "0x10"}}

    assert yaml_values.read(yaml_values.written(value)) == value


def test_texts_beyond_the_limits_are_refused() -> None:
    doubled = "a: &a [0]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    )

    with pytest.raises(ValueError, match="more than 100,000 values"):
        yaml_values.read(doubled)
    with pytest.raises(ValueError, match="nested more than 50 levels deep"):
        yaml_values.read("[" * 60 + "]" * 60)
