"""A healthy run is found healthy, and each kind of damage is found by its own finding."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fixture_types import MakeRecipe
from syrupy.assertion import SnapshotAssertion
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import CheckpointError
from brimful.data.tokens import TokenSplit, batch_encoder
from brimful.evaluation import diagnose
from brimful.evaluation.alignment import Alignment, SegmentAlignment
from brimful.evaluation.diagnose import Finding, diagnose_model, distinct_share
from brimful.evaluation.kernel_fidelity import AttentionFidelity, AttentionLayer
from brimful.generation.load import LoadedRun
from brimful.model.build import build
from brimful.recipe import Recipe

WORDS = ["red", "green", "blue", "black", "white", "brown", "pink", "grey"]
MakeRun = Callable[..., LoadedRun]


def document(generator: np.random.Generator) -> str:
    """Every other word is red; the colour after it is one or two further than the colour before it,
    which no bigram sees.
    """
    steps = generator.integers(1, 3, 30)
    colours = (generator.integers(0, 7) + steps.cumsum()) % 7
    return " ".join(f"red {WORDS[1 + colour]}" for colour in colours)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """The 256 bytes and one token for every word; nothing is trained, so nothing varies."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<|endoftext|>", *alphabet])}
    merges: list[tuple[str, str]] = []
    for word in ["Ġ" + word for word in WORDS] + WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    bpe = Tokenizer(models.BPE(vocabulary, merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )


def tokenise(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> TokenSplit:
    ids = [[*document_ids, 0] for document_ids in batch_encoder(tokenizer)(texts)]
    offsets = np.cumsum([0, *map(len, ids)]).astype(np.uint64)
    characters = sum(map(len, texts))
    return TokenSplit(
        np.concatenate(ids).astype(np.uint16), offsets, characters, characters, len(texts)
    )


@pytest.fixture(scope="module")
def train(tokenizer: PreTrainedTokenizerFast) -> TokenSplit:
    generator = np.random.default_rng(0)
    return tokenise(tokenizer, [document(generator) for _ in range(200)])


@pytest.fixture(scope="module")
def validation(tokenizer: PreTrainedTokenizerFast) -> TokenSplit:
    generator = np.random.default_rng(1)
    return tokenise(tokenizer, [document(generator) for _ in range(40)])


def recipe_of(kind: str) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "words",
            "sequence_length": 32,
            "batch": {"sequences": 16},
            "training": {"steps": 60},
            "model": {"layers": 2, "heads": 2, "width": 32, "mlp_width": 64},
            "tokenizer": {"kind": kind} | ({"vocabulary": 400} if kind == "bpe" else {}),
            "data": {"path": "words.txt"},
            "optimizer": {"learning_rate": 1e-2},
            "sample": {"tokens": 40, "temperature": 1.0},
        }
    )


@pytest.fixture
def fresh_run(tokenizer: PreTrainedTokenizerFast) -> LoadedRun:
    recipe = recipe_of("bpe")
    model = build(
        recipe,
        vocabulary=len(tokenizer),
        end_of_text_id=0,
        attention="sdpa",
        device=torch.device("cpu"),
    )
    return LoadedRun(model.eval(), tokenizer, recipe, Path("runs/words"))


@pytest.fixture(scope="module")
def snapshots(
    tokenizer: PreTrainedTokenizerFast, train: TokenSplit
) -> dict[int, dict[str, torch.Tensor]]:
    """Weights after 110 steps, when frequencies are known and pairs are not yet, and after 240,
    when the rule is.
    """
    torch.set_num_threads(1)
    model = build(
        recipe_of("bpe"),
        vocabulary=len(tokenizer),
        end_of_text_id=0,
        attention="sdpa",
        device=torch.device("cpu"),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = np.random.default_rng(2)
    kept = {}
    for step in range(1, 241):
        starts_B = generator.integers(0, len(train.tokens_N) - 33, 16)
        ids_BT = torch.from_numpy(
            np.stack([train.tokens_N[start : start + 33] for start in starts_B]).astype(np.int64)
        )
        loss = functional.cross_entropy(
            model(ids_BT[:, :-1]).logits.flatten(0, 1), ids_BT[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in {110, 240}:
            kept[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return kept


@pytest.fixture
def trained_run(fresh_run: LoadedRun, snapshots: dict[int, dict[str, torch.Tensor]]) -> LoadedRun:
    fresh_run.model.load_state_dict(snapshots[240])
    return fresh_run


def finding(findings: list[Finding], name: str) -> Finding:
    return next(found for found in findings if found.name == name)


def test_a_healthy_run_gets_ok_everywhere(
    trained_run: LoadedRun, train: TokenSplit, validation: TokenSplit
) -> None:
    findings = diagnose_model(
        trained_run,
        train,
        validation,
        verify_checkpoint=lambda folder: None,
        checkpoint_folders=[Path("checkpoints/a")],
    )
    assert [(found.name, found.verdict, found.advice) for found in findings] == [
        (name, "ok", "")
        for name in (
            "tokenizer compression",
            "tokenizer round trip",
            "odd texts round trip",
            "parameters",
            "weights",
            "validation loss",
            "samples",
            "checkpoints",
        )
    ], findings


def test_the_loss_stands_beside_the_baselines_of_the_same_tokens(
    trained_run: LoadedRun, train: TokenSplit, validation: TokenSplit
) -> None:
    value = finding(diagnose_model(trained_run, train, validation), "validation loss").value
    assert value.split(" (")[0].endswith("bits per byte")
    assert all(word in value for word in ("bigram", "unigram", "uniform"))


def test_an_untrained_model_is_no_better_than_frequencies(
    fresh_run: LoadedRun, train: TokenSplit, validation: TokenSplit
) -> None:
    found = finding(diagnose_model(fresh_run, train, validation), "validation loss")
    assert found.verdict == "bad"
    assert "training failed" in found.advice


def test_a_model_between_unigram_and_bigram_gets_a_warning(
    fresh_run: LoadedRun,
    train: TokenSplit,
    validation: TokenSplit,
    snapshots: dict[int, dict[str, torch.Tensor]],
) -> None:
    fresh_run.model.load_state_dict(snapshots[110])
    found = finding(diagnose_model(fresh_run, train, validation), "validation loss")
    assert found.verdict == "warn", found
    assert "bigram" in found.advice


def test_weights_that_are_not_finite_are_named_and_nothing_is_measured_with_them(
    trained_run: LoadedRun, train: TokenSplit, validation: TokenSplit
) -> None:
    with torch.no_grad():
        trained_run.model.model.norm.weight[3] = float("inf")
    findings = diagnose_model(trained_run, train, validation)
    assert finding(findings, "weights").verdict == "bad"
    assert "model.norm.weight" in finding(findings, "weights").value
    assert not {"validation loss", "samples"} & {found.name for found in findings}


def test_parameters_are_counted_without_buffers_and_both_are_shown(fresh_run: LoadedRun) -> None:
    parameters = sum({id(p): p.numel() for p in fresh_run.model.parameters()}.values())
    fresh_run.model.register_buffer("mask", torch.zeros(1000))
    buffers = sum(buffer.numel() for buffer in fresh_run.model.buffers())
    found = diagnose.parameters(fresh_run)
    assert found.verdict == "ok"
    assert found.value.startswith(f"{parameters:,} ")
    assert f"{buffers:,} buffer elements" in found.value


def test_a_model_of_another_size_than_the_recipe_describes_is_bad(fresh_run: LoadedRun) -> None:
    other = fresh_run.recipe.model_copy(
        update={"model": fresh_run.recipe.model.model_copy(update={"layers": 3})}
    )
    assert diagnose.parameters(dataclasses.replace(fresh_run, recipe=other)).verdict == "bad"


def test_tokens_of_another_tokenizer_do_not_come_back(
    fresh_run: LoadedRun, validation: TokenSplit
) -> None:
    letters = fresh_run.tokenizer.convert_tokens_to_ids([*"red", "Ġ", *"pink"])
    spelt = TokenSplit(
        np.array([*letters, 0], np.uint16), np.array([0, len(letters) + 1], np.uint64), 8, 8, 1
    )
    found = diagnose.round_trip(fresh_run, spelt)
    assert found.verdict == "bad"
    assert "another tokenizer" in found.advice
    unknown = dataclasses.replace(validation, tokens_N=np.full_like(validation.tokens_N, 60_000))
    assert diagnose.round_trip(fresh_run, unknown).verdict == "bad"


def test_a_long_document_is_cut_for_the_round_trip(
    fresh_run: LoadedRun, tokenizer: PreTrainedTokenizerFast
) -> None:
    long = tokenise(tokenizer, ["red green blue " * 3000])
    assert len(long.tokens_N) > 2 * diagnose.ROUND_TRIP_TOKENS
    assert diagnose.round_trip(fresh_run, long).verdict == "ok"
    spelt_N = long.tokens_N.copy()
    spelt_N[2000:2003] = fresh_run.tokenizer.convert_tokens_to_ids([*"red"])
    assert (
        diagnose.round_trip(fresh_run, dataclasses.replace(long, tokens_N=spelt_N)).verdict == "bad"
    )


@pytest.mark.parametrize(
    ("characters_per_token", "bytes_per_token", "judged", "word"),
    [
        (1.4, 1.4, "bad", "fail"),
        (1.4, 4.0, "warn", "fail"),
        (2.2, 2.2, "warn", "low"),
        (3.0, 3.0, "ok", "good"),
        (3.5, 3.6, "ok", "excellent"),
    ],
)
def test_compression_is_judged_by_the_guides_gates(
    fresh_run: LoadedRun,
    characters_per_token: float,
    bytes_per_token: float,
    judged: str,
    word: str,
    snapshot: SnapshotAssertion,
) -> None:
    """1,000 tokens of text and ten end-of-text tokens, which do not count. Characters of several
    bytes are no fault of the tokenizer.
    """
    offsets = np.arange(11, dtype=np.uint64) * 101
    split = TokenSplit(
        np.zeros(1010, np.uint16),
        offsets,
        round(bytes_per_token * 1000),
        round(characters_per_token * 1000),
        10,
    )
    found = diagnose.compression(fresh_run, split)
    assert (found.verdict, found.value.rsplit(": ", 1)[1]) == (judged, word)
    assert found.value == snapshot
    assert (found.advice == "") == (judged == "ok")


def test_a_character_tokenizer_is_not_judged_by_compression(fresh_run: LoadedRun) -> None:
    split = TokenSplit(np.zeros(1001, np.uint16), np.array([0, 1001], np.uint64), 1000, 1000, 1)
    found = diagnose.compression(
        dataclasses.replace(fresh_run, recipe=recipe_of("character")), split
    )
    assert (found.verdict, found.value.rsplit(": ", 1)[1]) == ("ok", "exempt")


def test_a_tokenizer_that_changes_odd_texts_is_bad_unless_it_knows_characters_only(
    fresh_run: LoadedRun,
) -> None:
    known = {
        character: number
        for number, character in enumerate(
            ["<|endoftext|>", "<|unknown|>", *"abcdefghijklmnopqrstuvwxyz "]
        )
    }
    words = Tokenizer(models.WordLevel(known, unk_token="<|unknown|>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    lossy = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|endoftext|>", unk_token="<|unknown|>"
    )
    assert diagnose.odd_texts(dataclasses.replace(fresh_run, tokenizer=lossy)).verdict == "bad"
    assert (
        diagnose.odd_texts(
            dataclasses.replace(fresh_run, tokenizer=lossy, recipe=recipe_of("character"))
        ).verdict
        == "ok"
    )


def head_that_says(run: LoadedRun, token: int) -> LoadedRun:
    """The run with a head that always draws this token."""
    bias_V = torch.zeros(run.model.config.vocab_size)
    bias_V[token] = 1000.0
    run.model.lm_head.register_forward_hook(lambda _, __, logits: logits + bias_V)
    return run


def test_a_model_that_ends_every_text_at_once_is_bad(fresh_run: LoadedRun) -> None:
    found = diagnose.samples(head_that_says(fresh_run, 0))
    assert found.verdict == "bad"
    assert "empty" in found.value


def test_a_model_in_a_loop_is_bad(fresh_run: LoadedRun) -> None:
    found = diagnose.samples(head_that_says(fresh_run, 40))
    assert found.verdict == "bad"
    assert "repeats" in found.advice


def test_layers_are_looked_at_where_there_is_something_to_see(
    okadfa_recipe: MakeRecipe,
    tokenizer: PreTrainedTokenizerFast,
    train: TokenSplit,
    validation: TokenSplit,
) -> None:
    recipe = okadfa_recipe(features=256)
    recipe = recipe.model_copy(update={"sample": recipe.sample.model_copy(update={"tokens": 8})})
    model = build(
        recipe,
        vocabulary=len(tokenizer),
        end_of_text_id=0,
        attention="sdpa",
        device=torch.device("cpu"),
    )
    findings = diagnose_model(
        LoadedRun(model.eval(), tokenizer, recipe, Path("runs/fed-back")), train, validation
    )

    names = [
        "feedback gradient",
        "attention output",
        "orthogonality of queries and keys",
        "kernel attention",
    ]
    assert [found.name for found in findings][6:10] == names
    assert [[row["layer"] for row in finding(findings, name).layers] for name in names] == [
        ["embedding", "block 1", "block 2", "above the blocks"],
        *[["block 1", "block 2"]] * 3,
    ]
    assert [finding(findings, name).verdict for name in names[1:]] == ["ok"] * 3


def segment(name: str, cosine: float | None) -> SegmentAlignment:
    return SegmentAlignment(name, name.startswith("block"), cosine, 1.0, 1.0)


@pytest.mark.parametrize(
    ("cosines", "points", "verdict", "said"),
    [
        ((0.4, 0.2), "block", "ok", ""),
        ((0.4, 0.01), "block", "warn", "in block 2: these layers do not follow the loss"),
        ((-0.1, 0.06), "block", "bad", "in block 1:"),
        ((None, None), "block", "bad", "does not reach them"),
        ((None, None), "none", "ok", ""),
    ],
)
def test_a_feedback_gradient_is_judged_below_the_top(
    cosines: tuple[float | None, ...], points: str, verdict: str, said: str
) -> None:
    segments = [segment(f"block {place}", cosine) for place, cosine in enumerate(cosines, start=1)]
    found = diagnose.feedback_gradient(
        Alignment((segment("embedding", -1.0), *segments, segment("top", -1.0))),
        "here",
        points=points,
    )
    assert (found.verdict, said in found.advice, bool(found.advice)) == (verdict, True, bool(said))


def fidelity(
    *cosines: float | None, output: float = 0.5, violation: float = 0.0
) -> AttentionFidelity:
    return AttentionFidelity(
        tuple(
            AttentionLayer(f"block {place}", output, cosine, 1.0, violation, violation, (1.0,))
            for place, cosine in enumerate(cosines, start=1)
        )
    )


@pytest.mark.parametrize(
    ("worst", "verdict", "said"),
    [
        (0.97, "ok", ""),
        (0.9, "warn", "the estimate is rough"),
        (0.5, "warn", "not an estimate of softmax attention"),
    ],
)
def test_kernel_attention_is_judged_by_its_worst_layer(
    worst: float, verdict: str, said: str
) -> None:
    found = diagnose.kernel_attention(fidelity(0.99, worst), "here")
    assert (found.verdict, said in found.advice, "model.features" in found.advice) == (
        verdict,
        True,
        bool(said),
    )


def test_a_layer_without_output_is_called_dead() -> None:
    assert diagnose.attention_output(fidelity(None), "here").verdict == "ok"
    found = diagnose.attention_output(fidelity(None, output=1e-11), "here")
    assert (found.verdict, found.value.endswith("dead: block 1")) == ("bad", True)


def test_violated_orthogonality_is_a_fault_only_where_it_is_asked_for() -> None:
    assert diagnose.orthogonality(fidelity(None, violation=0.5), penalised=False).verdict == "ok"
    assert diagnose.orthogonality(fidelity(None, violation=0.5), penalised=True).verdict == "warn"
    assert diagnose.orthogonality(fidelity(None, violation=0.05), penalised=True).verdict == "ok"


def test_damaged_checkpoints_are_named_with_what_is_wrong(snapshot: SnapshotAssertion) -> None:
    def verify(folder: Path) -> None:
        if folder.name == "b":
            raise CheckpointError("model.safetensors does not match its checksum")

    found = diagnose.checkpoints(verify, [Path("a"), Path("b")])
    assert found.verdict == "bad"
    assert found.value == snapshot
    assert diagnose.checkpoints(verify, []).verdict == "warn"


def test_distinct_n_grams() -> None:
    assert distinct_share([1, 2, 3, 1, 2, 3], 3) == 3 / 4
    assert distinct_share([1], 4) == 1.0
