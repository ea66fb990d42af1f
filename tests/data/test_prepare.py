"""From recipe to token ids, and from the cache the second time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import MakeRecipe, Refuses
from json_lines import write_rows
from syrupy.assertion import SnapshotAssertion
from tokenizers import processors
from trained_tokenizers import train_tokenizer

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data import prepare as prepare_module
from brimful.data.prepare import PreparedData, prepare
from brimful.model.description import MASK_ID, SEP_ID
from brimful.recipe import Recipe


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Sixty small documents."""
    texts = [
        f"The story of number {number}.\n"
        + "the cat sat on the mat, the dog sat on the log\n" * (1 + number % 3)
        for number in range(60)
    ]
    path = tmp_path / "stories.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def texts_back(prepared: PreparedData, name: str) -> list[str]:
    split = prepared.splits[name]
    bounds = zip(
        split.document_offsets[:-1].tolist(), split.document_offsets[1:].tolist(), strict=True
    )
    return [
        prepared.tokenizer.decode(split.tokens_N[start : end - 1].tolist()) for start, end in bounds
    ]


def forbidden(*args: Any, **options: Any) -> Any:
    raise AssertionError("nothing may be trained or tokenised again")


def test_every_document_comes_back_from_its_ids(
    corpus: Path, tmp_path: Path, recipe: MakeRecipe
) -> None:
    """Training and validation together are the corpus, apart they share nothing."""
    prepared = prepare(recipe({"path": corpus, "validation": 0.2}), tmp_path / "cache")
    train, validation = texts_back(prepared, "train"), texts_back(prepared, "validation")
    assert sorted(train + validation) == sorted(
        json.loads(line)["text"] for line in corpus.read_text().splitlines()
    )
    assert len(train) > len(validation) > 0
    assert not set(train) & set(validation)


def test_documents_stand_between_the_tokens_of_a_published_tokenizer(
    corpus: Path, tmp_path: Path, recipe: MakeRecipe
) -> None:
    """Its end of text follows each, and its begin of text where it writes one before a text. Models
    that differ in these alone do not share what is kept.
    """
    published = train_tokenizer("bpe", 300, 2, ["the cat sat on the mat\n" * 9], fewer="accept")
    published.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    wanted = recipe({"path": corpus, "validation": 0.2}).model_copy(update={"tokenizer": None})

    plain = prepare(wanted, tmp_path / "cache", published=published)
    begin, end = published.convert_tokens_to_ids(["<s>", "</s>"])
    published.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    begun = prepare(wanted, tmp_path / "cache", published=published)
    published.add_special_tokens({"eos_token": "<|endoftext|>"})
    ended = prepare(wanted, tmp_path / "cache", published=published)

    assert len({each.tokenizer_fingerprint for each in (plain, begun, ended)}) == 3
    assert texts_back(plain, "validation") == [
        text.removeprefix("<s>") for text in texts_back(begun, "validation")
    ]
    for prepared, first, last in ((begun, [begin], end), (ended, [begin], published.eos_token_id)):
        split = prepared.splits["train"]
        bounds = split.document_offsets.astype(int).tolist()
        assert {int(split.tokens_N[start]) for start in bounds[:-1]} == {*first}
        assert {int(split.tokens_N[stop - 1]) for stop in bounds[1:]} == {last}
        assert np.count_nonzero(split.tokens_N == begin) == split.num_documents
    assert plain.tokenizer_report.kind == "published"


def test_the_second_time_everything_comes_from_the_cache(
    corpus: Path, tmp_path: Path, recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read for training, trained or tokenised; the values are equal."""
    wanted = recipe({"path": corpus, "validation": 0.2})
    first = prepare(wanted, tmp_path / "cache")
    for name in ("scan", "train_backend", "write_tokens"):
        monkeypatch.setattr(prepare_module, name, forbidden)
    second = prepare(wanted, tmp_path / "cache", forbidden)
    assert second.report == first.report
    assert (second.data_fingerprint, second.tokenizer_fingerprint) == (
        first.data_fingerprint,
        first.tokenizer_fingerprint,
    )
    assert second.tokenizer_report == first.tokenizer_report
    for prepared, name in ((first, "fresh"), (second, "cached")):
        prepared.tokenizer.save_pretrained(tmp_path / name)
    exported = [
        (tmp_path / name / "tokenizer_config.json").read_bytes() for name in ("fresh", "cached")
    ]
    assert exported[0] == exported[1]
    assert np.array_equal(second.splits["train"].tokens_N, first.splits["train"].tokens_N)


def test_a_changed_vocabulary_never_reads_stale_ids(
    corpus: Path, tmp_path: Path, recipe: MakeRecipe
) -> None:
    """Both live side by side, and each decodes with its own tokenizer."""
    prepared = [
        prepare(
            recipe({"path": corpus, "validation": 0.2}, {"vocabulary": size}), tmp_path / "cache"
        )
        for size in (265, 285, 265)
    ]
    assert [len(one.tokenizer) for one in prepared] == [265, 285, 265]
    assert prepared[0].splits["train"].num_tokens > prepared[1].splits["train"].num_tokens
    assert texts_back(prepared[0], "train") == texts_back(prepared[1], "train")
    assert prepared[0].data_fingerprint == prepared[1].data_fingerprint
    assert (
        prepared[0].tokenizer_fingerprint
        == prepared[2].tokenizer_fingerprint
        != prepared[1].tokenizer_fingerprint
    )


@pytest.mark.parametrize(
    "change",
    [{"validation": 0.3}, {"split_by": "position"}, {"max_documents": 50}, {"duplicates": "drop"}],
)
def test_changed_data_options_make_new_ids(
    corpus: Path, tmp_path: Path, recipe: MakeRecipe, change: JsonDict
) -> None:
    """Options that change the documents of a split change the fingerprint of the data."""
    before = prepare(recipe({"path": corpus, "validation": 0.2}), tmp_path / "cache")
    after = prepare(recipe({"path": corpus, "validation": 0.2, **change}), tmp_path / "cache")
    assert before.data_fingerprint != after.data_fingerprint


def test_changed_content_makes_new_ids(corpus: Path, tmp_path: Path, recipe: MakeRecipe) -> None:
    """Under the same name."""
    wanted = recipe({"path": corpus, "validation": 0.2})
    before = prepare(wanted, tmp_path / "cache")
    corpus.write_text(corpus.read_text().replace("number 7.", "number seven."))
    after = prepare(wanted, tmp_path / "cache")
    assert before.data_fingerprint != after.data_fingerprint
    assert any("number seven." in text for name in after.splits for text in texts_back(after, name))


def test_layout_and_seed_do_not_make_new_ids(
    corpus: Path, tmp_path: Path, recipe: MakeRecipe
) -> None:
    """They decide how ids become batches, not what they are."""
    before = prepare(recipe({"path": corpus, "validation": 0.2}), tmp_path / "cache")
    after = prepare(
        recipe(
            {
                "path": corpus,
                "validation": 0.2,
                "layout": "document",
                "long_documents": "truncate",
            }
        ).model_copy(update={"seed": 7}),
        tmp_path / "cache",
    )
    assert before.data_fingerprint == after.data_fingerprint
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        "tokens/*/train.tokens.bin",
        "tokens/*/report.json",
        "tokenizers/*/tokenizer.json",
        "tokenizers/*/brimful.json",
    ],
)
def test_a_damaged_cache_is_made_again(
    corpus: Path, tmp_path: Path, recipe: MakeRecipe, pattern: str
) -> None:
    """With the same result as before."""
    wanted = recipe({"path": corpus, "validation": 0.2})
    first = prepare(wanted, tmp_path / "cache")
    expected, (path,) = texts_back(first, "train"), (tmp_path / "cache").glob(pattern)
    path.write_bytes(path.read_bytes()[:-20])
    second = prepare(wanted, tmp_path / "cache")
    assert texts_back(second, "train") == expected
    assert second.report == first.report


def test_the_tokenizer_sees_training_documents_only(tmp_path: Path, recipe: MakeRecipe) -> None:
    """A character of the validation text alone is unknown, and its share is reported."""
    (tmp_path / "train.txt").write_text("abab" * 20)
    (tmp_path / "valid.txt").write_text("abzb")
    prepared = prepare(recipe({"path": tmp_path}, {"kind": "character"}), tmp_path / "cache")
    assert set(prepared.tokenizer.get_vocab()) == {"<|endoftext|>", "<|unknown|>", "a", "b"}
    report = prepared.tokenizer_report
    assert (
        report.unknown_share,
        report.round_trip,
        report.verdict,
        report.characters_per_token,
    ) == (0.25, False, "exempt", 1.0)


def test_the_report_counts_what_the_tokens_hold(
    corpus: Path, tmp_path: Path, recipe: MakeRecipe
) -> None:
    """Documents, bytes, characters and tokens per split; compression without the end-of-text
    tokens.
    """
    prepared = prepare(recipe({"path": corpus, "validation": 0.2}), tmp_path / "cache")
    split, counts = prepared.splits["validation"], prepared.report["splits"]["validation"]
    texts = {"bytes": split.num_bytes, "characters": split.num_characters, "words": split.num_words}
    assert counts == {"documents": split.num_documents, **texts, "tokens": len(split.tokens_N)}
    assert counts["words"] == sum(len(text.split()) for text in texts_back(prepared, "validation"))
    assert counts["characters"] == sum(map(len, texts_back(prepared, "validation")))
    assert prepared.tokenizer_report.characters_per_token == counts["characters"] / (
        counts["tokens"] - counts["documents"]
    )
    assert prepared.report["tokenizer"]["round_trip"] is True
    assert json.loads(json.dumps(prepared.report)) == prepared.report


def test_leaked_documents_are_reported_and_dropped_on_request(
    tmp_path: Path, recipe: MakeRecipe, refuses: Refuses, snapshot: SnapshotAssertion
) -> None:
    """And where nothing would be left, that is the error."""
    rows = [
        f"the story of {number}, the story of {number}, the end of the story" for number in range(9)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (tmp_path / "valid.jsonl").write_text(
        json.dumps({"text": rows[0].upper()})
        + "\n"
        + json.dumps({"text": "the other story of the end"})
        + "\n"
    )
    small = {"kind": "character"}
    reported = prepare(recipe({"path": tmp_path}, small), tmp_path / "cache")
    assert reported.report["splits"]["validation"]["documents"] == 2
    assert reported.report["notes"] == snapshot
    dropped = prepare(recipe({"path": tmp_path, "duplicates": "drop"}, small), tmp_path / "cache")
    assert texts_back(dropped, "validation") == ["the other story of the end"]
    assert dropped.report["leakage"]["dropped"] == 1
    (tmp_path / "valid.jsonl").write_text(json.dumps({"text": rows[0].upper()}) + "\n")
    with refuses(DataError):
        prepare(recipe({"path": tmp_path, "duplicates": "drop"}, small), tmp_path / "cache")


def test_a_validation_split_that_would_be_empty_is_an_error_before_any_training(
    tmp_path: Path, recipe: MakeRecipe, refuses: Refuses
) -> None:
    """One line whose held-out end is white space."""
    (tmp_path / "a.txt").write_text(f"the cat sat on the mat{' ' * 20}")
    with refuses(DataError, names=["1 document"]):
        prepare(recipe({"path": tmp_path / "a.txt"}), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_one_document_is_split_by_position_with_a_note(
    tmp_path: Path, recipe: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    """The note is there again when all comes from the cache."""
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 50)
    tiny = recipe({"path": tmp_path / "a.txt"}, {"kind": "character"})
    for _ in range(2):
        prepared = prepare(tiny, tmp_path / "cache")
        assert set(prepared.splits) == {"train", "validation"}
        assert prepared.report["notes"] == snapshot


def test_a_tokenizer_that_hardly_compresses_stops_the_run_each_time(
    tmp_path: Path, recipe: MakeRecipe, refuses: Refuses
) -> None:
    """Also when it comes from the cache."""
    draw = np.random.default_rng(1)
    (tmp_path / "a.txt").write_text("".join(map(chr, draw.integers(33, 127, 4000))))
    wanted = recipe({"path": tmp_path / "a.txt", "split_by": "position"}, {"vocabulary": 258})
    for _ in range(2):
        with refuses(DataError):
            prepare(wanted, tmp_path / "cache")


def test_a_document_that_spells_end_of_text_stays_one_document(
    tmp_path: Path, recipe: MakeRecipe
) -> None:
    """The special id stands only where documents end, and that is told, as are other columns."""
    texts = [f"model {number} writes <|endoftext|> and the story goes on\n" for number in range(40)]
    rows = [{"text": text, "url": "x", "none": None} for text in texts]
    write_rows(tmp_path / "a.jsonl", rows)
    prepared = prepare(
        recipe({"path": tmp_path / "a.jsonl", "validation": 0.3}, {"vocabulary": 280}),
        tmp_path / "cache",
    )
    told = [(each["kind"], each["count"], each["names"]) for each in prepared.report["not_learned"]]
    assert told == [("columns", 1, {"url": 1}), ("spelled", 40, {"<|endoftext|>": 40})]
    for split in prepared.splits.values():
        assert np.count_nonzero(split.tokens_N == 0) == split.num_documents
    assert sorted(texts_back(prepared, "train") + texts_back(prepared, "validation")) == sorted(
        texts
    )


def test_words_that_bpe_learns_from_in_parts_are_counted(
    tmp_path: Path, recipe: MakeRecipe
) -> None:
    """Told from the cache, too; not where a tokenizer has no merges to learn."""
    texts = [f"{number} {'ab' * 20_000} short {'x' * 50_000}" for number in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    made = recipe({"path": tmp_path / "a.jsonl", "validation": 0.3}, {"vocabulary": 270})
    for _ in range(2):
        prepared = prepare(made, tmp_path / "cache")
        (told,) = prepared.report["not_learned"]
        assert (told["code"], told["unit"]) == ("B222", "word")
        assert told["count"] == 2 * prepared.splits["train"].num_documents
    of_characters = recipe(
        {"path": tmp_path / "a.jsonl", "validation": 0.3}, {"kind": "character", "vocabulary": None}
    )
    assert prepare(of_characters, tmp_path / "cache").report["not_learned"] == []


def test_progress_tells_every_phase(corpus: Path, tmp_path: Path, recipe: MakeRecipe) -> None:
    """Reading, training the tokenizer, tokenising, each to its end."""
    seen: dict[str, tuple[int, int | None]] = {}
    prepare(
        recipe({"path": corpus, "validation": 0.2}),
        tmp_path / "cache",
        lambda what, done, total: seen.update({what: (done, total)}),
    )
    assert list(seen) == ["reading", "training the tokenizer", "tokenising"]
    assert all(done == total for done, total in seen.values())


def test_real_text_is_prepared_with_good_compression(
    shared_data: Path, tmp_path: Path, recipe: MakeRecipe
) -> None:
    """Sixty training articles of WikiText-2 and its validation file: byte-level BPE of 1024 reaches
    2 characters per token.
    """
    wanted = {"path": shared_data / "wikitext-2", "document_start": "^ = [^=]", "max_documents": 60}
    prepared = prepare(recipe(wanted, {"vocabulary": 1024}), tmp_path / "cache")
    assert prepared.tokenizer_report.round_trip
    assert prepared.tokenizer_report.characters_per_token > 2
    assert prepared.splits["validation"].num_bytes == 1_121_681 - 2


def test_an_encoder_and_a_decoder_of_the_same_text_have_tokenizers_of_their_own(
    recipe: MakeRecipe, corpus: Path, tmp_path: Path
) -> None:
    """Both from one cache, whichever comes first; an encoder's documents end with its own token."""
    decoder = recipe({"path": corpus, "validation": 0.2})
    model = {"architecture": "modernbert", "layers": 1, "heads": 1, "width": 8}
    encoder = Recipe.model_validate({**decoder.model_dump(), "method": "mlm", "model": model})
    one, other, again = (prepare(each, tmp_path / "cache") for each in (decoder, encoder, encoder))

    assert one.tokenizer.mask_token is None
    assert other.tokenizer.mask_token_id == MASK_ID
    assert other.tokenizer_fingerprint == again.tokenizer_fingerprint != one.tokenizer_fingerprint
    assert other.splits["train"].end_of_text == SEP_ID
    assert other.data_fingerprint == one.data_fingerprint


PREPARING = """
import sys
from pathlib import Path
from brimful.data.prepare import prepare_tokens
from brimful.hardware.process_memory import PeakOfProcess
from brimful.recipe import Recipe

for recipe in map(Recipe.model_validate_json, sys.argv[2:]):
    peak = PeakOfProcess()
    before_bytes = peak.look()
    prepare_tokens(recipe, Path(sys.argv[1]))
print(peak.look() - before_bytes)
"""


@pytest.mark.long
def test_memory_of_preparing_one_long_document_is_bounded(
    tmp_path: Path, recipe: MakeRecipe
) -> None:
    """Whatever it is made of: lines that end in a space, one line without end, no white space. Held
    at once by the tokenizer, each of these took some 120 bytes for each of its characters.
    """
    lines = "".join(f"the cat sees {number} trees \n" for number in range(60_000))
    one_line, no_space = lines.replace("\n", ""), "我们看见树木，下雨了。" * 60_000
    texts = {"short": "a few words \n" * 2000, "long": lines + one_line + no_space}
    recipes = []
    for name, text in texts.items():
        path = tmp_path / f"{name}.txt"
        path.write_text(text)
        tokenizer = {"vocabulary": 280, "fewer": "accept"}
        recipes.append(recipe({"path": path}, tokenizer).model_dump_json())
    done = subprocess.run(
        [sys.executable, "-c", PREPARING, str(tmp_path), *recipes],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "long.txt").stat().st_size > 4_000_000
    assert int(done.stdout) < 400 << 20
