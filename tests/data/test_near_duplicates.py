"""Near duplicates are those that comparing all pairs finds, all of them and no others, in little
time.
"""

import random
import time

import numpy as np
import pytest

from brimful.data.near_duplicates import grams_of, near_duplicates, similarity

ALPHABETS = ["ab", "abcdefg 日本", "".join(chr(0x4E00 + number) for number in range(7000))]
"""Few characters, some, and so many that five of them do not fit into one number."""


def varied(drawn: random.Random, alphabet: str, count: int) -> list[str]:
    """Texts of 1 to 60 characters, most of them others with up to three characters changed."""
    texts: list[str] = []
    for _ in range(count):
        if texts and drawn.random() < 0.6:
            characters = list(drawn.choice(texts))
            for _ in range(drawn.randint(0, 3)):
                characters[drawn.randrange(len(characters))] = drawn.choice(alphabet)
            texts.append("".join(characters))
        else:
            texts.append("".join(drawn.choices(alphabet, k=drawn.randint(1, 60))))
    return texts


@pytest.mark.parametrize("threshold", [0.05, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("alphabet", ALPHABETS, ids=["two", "nine", "thousands"])
def test_exactly_what_comparing_all_pairs_finds(alphabet: str, threshold: float) -> None:
    """For every text, among those it may be compared with: a match where there is one, none where
    there is none.
    """
    drawn = random.Random(f"{alphabet[:2]} {threshold}")
    for _ in range(8):
        texts = varied(drawn, alphabet, 40)
        before_D = np.array([drawn.randint(0, number) for number in range(len(texts))])
        found_D = near_duplicates(texts, before_D, threshold)
        for number, text in enumerate(texts):
            similar = {
                other
                for other in range(before_D[number])
                if similarity(text, texts[other]) >= threshold
            }
            assert found_D[number] in (similar or {-1})


def test_a_similarity_of_just_the_threshold_counts() -> None:
    """Four of five grams, and nine of ten, in spite of rounding."""
    for num_grams, threshold in ((5, 0.8), (10, 0.9), (100, 0.99), (3, 2 / 3)):
        one = "".join(chr(0x100 + number) for number in range(num_grams + 4))
        assert similarity(one, one[:-1]) == threshold
        assert near_duplicates([one, one[:-1]], np.array([0, 1]), threshold).tolist() == [-1, 0]
        assert near_duplicates([one, one[:-1]], np.array([0, 1]), threshold + 1e-6).tolist() == [
            -1,
            -1,
        ]


def test_short_texts_are_one_gram() -> None:
    """Of four characters or fewer, empty ones included; NUL is a character like others."""
    assert (grams_of("abcd"), grams_of(""), grams_of("abcdef")) == (
        {"abcd"},
        {""},
        {"abcde", "bcdef"},
    )
    texts = ["no", "no", "on", "", "", "no\0"]
    assert near_duplicates(texts, np.arange(6), 0.5).tolist() == [-1, 0, -1, -1, 3, -1]


def test_nothing_and_one_text_have_no_duplicates() -> None:
    """No texts, one text, and texts that may be compared with none."""
    assert near_duplicates([], np.zeros(0, dtype=np.int64), 0.8).tolist() == []
    assert near_duplicates(["one"], np.array([0]), 0.8).tolist() == [-1]
    assert near_duplicates(["same"] * 3, np.zeros(3, dtype=np.int64), 0.8).tolist() == [-1] * 3


def test_the_answer_is_the_same_every_time() -> None:
    """Where several would do, too."""
    texts = varied(random.Random(5), ALPHABETS[1], 200)
    first, again = (near_duplicates(texts, np.arange(200), 0.3) for _ in range(2))
    assert np.array_equal(first, again)


def test_thousands_of_texts_from_one_template_are_compared_quickly() -> None:
    """All pairs of 8,000 would be 32 million comparisons; all but a few are found to be alike."""
    drawn = random.Random(1)
    started = time.process_time()
    texts = [
        f"your order {drawn.randrange(10**6)} will be delivered tomorrow between nine and twelve,"
        " please be at home"
        for _ in range(8000)
    ]
    found_D = near_duplicates(texts, np.arange(8000), 0.8)
    assert (found_D >= 0).sum() > 7900
    assert time.process_time() - started < 5


def test_a_huge_text_among_small_ones_is_no_trouble() -> None:
    """A million characters."""
    drawn = random.Random(2)
    words = ["".join(drawn.choices("abcdefgh", k=6)) for _ in range(5000)]
    huge = " ".join(drawn.choices(words, k=150_000))
    texts = [huge, *words, huge[:-1]]
    started = time.process_time()
    assert near_duplicates(texts, np.arange(len(texts)), 0.8)[-1] == 0
    assert time.process_time() - started < 4
