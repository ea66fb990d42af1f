"""Folders of the cache are named after what decides their content."""

from pathlib import Path

import pytest
from fixture_types import MakeRecipe

from brimful.data.cache_places import cache_key, tokens_are_kept
from brimful.data.prepare import prepare


def test_keys_differ_when_any_part_does() -> None:
    """And do not depend on the order of the parts."""
    assert cache_key(a=1, b=[2]) == cache_key(b=[2], a=1)
    assert (
        len({cache_key(a=1, b=2), cache_key(a=1, b=3), cache_key(a=1), cache_key(a="1", b=2)}) == 4
    )


@pytest.mark.parametrize("tokenizer", [{"vocabulary": 262}, {"kind": "character"}])
@pytest.mark.parametrize("lost", ["tokens/*/report.json", "tokenizers/*/brimful.json"])
def test_tokens_are_kept_once_they_are_whole(
    tmp_path: Path, recipe: MakeRecipe, tokenizer: dict[str, object], lost: str
) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat, the dog sat on the log\n" * 50)
    wanted, cache = recipe({"path": tmp_path / "a.txt"}, tokenizer), tmp_path / "cache"
    assert not tokens_are_kept(wanted, cache)
    prepare(wanted, cache)
    assert tokens_are_kept(wanted, cache)
    assert not tokens_are_kept(recipe({"path": tmp_path / "a.txt", "validation": 0.3}), cache)

    (path,) = cache.glob(lost)
    path.unlink()
    assert not tokens_are_kept(wanted, cache)
