"""Checks of a trained run: tokenizer, weights, loss against counting models, samples,
checkpoints.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from brimful.base.errors import BrimfulError, CheckpointError
from brimful.base.text import shortened
from brimful.base.types import Json, Progress
from brimful.base.units import format_count
from brimful.data.tokenizer import FAIL_BELOW, verdict
from brimful.data.tokens import TokenSplit, batch_encoder
from brimful.evaluation.alignment import Alignment
from brimful.evaluation.baselines import ngram_baselines
from brimful.evaluation.kernel_fidelity import DEAD_BELOW, AttentionFidelity
from brimful.evaluation.layers import has_layers_to_look_at, measure_layers
from brimful.evaluation.likelihood import Scoring, score_split
from brimful.generation.engine import generate
from brimful.generation.load import LoadedRun
from brimful.generation.sampler import SamplingSettings, sample_seeds
from brimful.model.build import num_buffer_elements, num_parameters
from brimful.model.description import count_parameters
from brimful.model.published import tensors_not_finite

Verdict = Literal["ok", "warn", "bad"]

BATCH_SIZE = 8
"""Windows per forward pass."""
ROUND_TRIP_DOCUMENTS, ROUND_TRIP_TOKENS = 50, 4000
CUT_TOKENS = 64
"""Where a document is cut for the check, the cut may fall into a word: this many last tokens are
not compared.
"""
ODD_TEXTS = (
    " leading and trailing ",
    "\ttabs\t\tand\r\nline ends\n\n",
    "naïve café, 東京, ελληνικά",
    "\U0001f600 \U0001f469‍\U0001f52c",
    "<|endoftext|>",
    "\x00\x7f",
)
NUM_SAMPLES = 4
REPEATING_BELOW, STUCK_BELOW = 0.5, 0.2
"""Share of distinct n-grams in a sample: running text lies above 0.9, a loop of one sentence below
0.2.
"""
ALIGNED_ABOVE = 0.05
"""Cosine of two gradients. Of unrelated ones it is within a few hundredths of 0: a segment has
thousands of parameters, but few directions matter.
"""
CLOSE_ABOVE, ROUGH_BELOW = 0.95, 0.8
"""Cosine of kernel with softmax attention: the target of the original's ablation plan, and where
another attention is computed than was asked for.
"""
ORTHOGONAL_BELOW = 0.1
"""|W W^T - I|^2 over the head size: the target of the same plan."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: Name of the check.
        value: The measured value, to print.
        verdict: ok; warn: works, worth a look; bad: do not use the run as it is.
        advice: The next step; "" when ok.
        layers: A row of values for each layer, where layers were measured.
    """

    name: str
    value: str
    verdict: Verdict
    advice: str = ""
    layers: tuple[Json, ...] = ()


def diagnose_model(
    loaded: LoadedRun,
    train: TokenSplit,
    validation: TokenSplit,
    *,
    chunk_tokens: int = 1024,
    verify_checkpoint: Callable[[Path], object] | None = None,
    checkpoint_folders: Sequence[Path] = (),
    progress: Progress | None = None,
) -> list[Finding]:
    """Run all checks, in the order of the pipeline.

    Args:
        loaded: The run; its model is used on the device and in the dtype it has.
        train: Tokens the run was trained on; the baselines count them.
        validation: Held-out tokens, made by the same tokenizer.
        chunk_tokens: Positions per chunk of logits.
        verify_checkpoint: Raises CheckpointError for a damaged checkpoint folder.
        checkpoint_folders: What to pass to it.
        progress: see `likelihood.Scoring`.

    Returns:
        The findings; a failed check is a finding, not an error.
    """
    findings = [
        compression(loaded, validation),
        round_trip(loaded, validation),
        odd_texts(loaded),
        parameters(loaded),
        weights(loaded),
    ]
    if findings[-1].verdict == "ok":
        findings.append(loss_against_counting(loaded, train, validation, chunk_tokens, progress))
        findings += inside(loaded, validation, loss_chunk=chunk_tokens)
        findings.append(samples(loaded))
    if verify_checkpoint is not None:
        findings.append(checkpoints(verify_checkpoint, checkpoint_folders))
    return findings


def compression(loaded: LoadedRun, validation: TokenSplit) -> Finding:
    """Characters and bytes of held-out text per token, end-of-text tokens left out."""
    name = "tokenizer compression"
    tokens = len(validation.tokens_N) - validation.num_documents
    if tokens < 1:
        return Finding(name, "the validation split holds no text", "bad", "Raise data.validation.")
    characters, size = validation.num_characters / tokens, validation.num_bytes / tokens
    value = (
        f"{characters:.2f} characters and {size:.2f} bytes per token, {len(loaded.tokenizer)}"
        " tokens in the vocabulary"
    )
    rating = verdict(loaded.recipe.own_tokenizer.kind, characters)
    value = f"{value}: {rating}"
    if rating not in {"fail", "low"}:
        return Finding(name, value, "ok")
    advice = "Raise tokenizer.vocabulary, or train the tokenizer on text like the validation text."
    if max(characters, size) < FAIL_BELOW:
        return Finding(name, value, "bad", advice)
    return Finding(name, value, "warn", advice)


def round_trip(loaded: LoadedRun, validation: TokenSplit) -> Finding:
    """Whether held-out documents, decoded and encoded again, give the same ids: the run's tokenizer
    made these tokens and loses nothing.
    """
    name, encode = "tokenizer round trip", batch_encoder(loaded.tokenizer)
    wrong, seen = [], 0
    for number, ids, is_cut in _documents(validation):
        seen += 1
        again: list[int] = []
        if max(ids) < len(loaded.tokenizer):
            again = encode([_decoded(loaded, ids)])[0]
        if is_cut:
            ids, again = ids[:-CUT_TOKENS], again[: len(ids) - CUT_TOKENS]  # noqa: PLW2901 - the same document
        if again != ids:
            wrong.append(number)
    if not wrong:
        return Finding(name, f"{seen} validation documents come back exactly", "ok")
    value = (
        f"{len(wrong)} of {seen} validation documents do not come back exactly, the first is"
        f" document {wrong[0]}"
    )
    if loaded.recipe.own_tokenizer.kind == "character":
        advice = (
            "They hold characters that training text lacks; tokenizer.kind=bpe knows every"
            " character."
        )
        return Finding(name, value, "warn", advice)
    advice = (
        "The tokens were made by another tokenizer: run the same `brimful train` command again to"
        " rebuild them."
    )
    return Finding(name, value, "bad", advice)


def _decoded(loaded: LoadedRun, ids: Sequence[int], *, with_special: bool = True) -> str:
    return str(
        loaded.tokenizer.decode(
            ids, skip_special_tokens=not with_special, clean_up_tokenization_spaces=False
        )
    )


def odd_texts(loaded: LoadedRun) -> Finding:
    """Whether texts that trip tokenizers come back exactly: spaces, line ends, other scripts,
    emoji, a written-out special token.
    """
    name = "odd texts round trip"
    lost = [text for text in ODD_TEXTS if _decoded(loaded, loaded.encode(text)) != text]
    if not lost:
        return Finding(name, f"{len(ODD_TEXTS)} of {len(ODD_TEXTS)} exact", "ok")
    value = f"{len(lost)} of {len(ODD_TEXTS)} not exact, such as {lost[0]!r}"
    if loaded.recipe.own_tokenizer.kind == "character":
        return Finding(
            name, f"{value} (a character tokenizer knows the training text's characters only)", "ok"
        )
    return Finding(
        name,
        value,
        "bad",
        "The tokenizer changes text: look at normalizer, pre_tokenizer and decoder in"
        " model/tokenizer.json.",
    )


def parameters(loaded: LoadedRun) -> Finding:
    """Parameters, tied ones once, held against the recipe's count; buffers beside them, never among
    them.
    """
    real, buffers = num_parameters(loaded.model), num_buffer_elements(loaded.model)
    counted = count_parameters(
        loaded.recipe.fresh_model, int(loaded.model.config.vocab_size), loaded.recipe.context
    ).total
    value = f"{real:,} ({format_count(real)}); {buffers:,} buffer elements beside them"
    if real == counted:
        return Finding("parameters", value, "ok")
    return Finding(
        "parameters",
        f"{value}; the recipe describes {counted:,}",
        "bad",
        "model/ and recipe.yaml are of different runs; restore the one that was changed.",
    )


def weights(loaded: LoadedRun) -> Finding:
    """Whether every weight is a number."""
    broken = tensors_not_finite(loaded.model)
    if not broken:
        return Finding("weights", "all finite", "ok")
    names = ", ".join(broken[:3]) + " ..." * (len(broken) > 3)
    return Finding(
        "weights",
        f"NaN or inf in {len(broken)} tensors: {names}",
        "bad",
        "Training diverged: lower optimizer.learning_rate or set optimizer.clip_norm, and train"
        " again.",
    )


def loss_against_counting(
    loaded: LoadedRun,
    train: TokenSplit,
    validation: TokenSplit,
    chunk_tokens: int,
    progress: Progress | None,
) -> Finding:
    """Bits per byte beside those of uniform, unigram and bigram models of the same tokens."""
    try:
        scores = score_split(
            loaded.model,
            validation,
            Scoring(
                chunk_tokens=chunk_tokens,
                device=loaded.model.device,
                batch_size=BATCH_SIZE,
                progress=progress,
            ),
            context=min(loaded.recipe.sequence_length, loaded.context),
        )
        counted = ngram_baselines(train, validation, int(loaded.model.config.vocab_size))
    except BrimfulError as error:
        return Finding("validation loss", "not measured", "bad", str(error))
    value = (
        f"{scores.bits_per_byte:.3f} bits per byte (bigram {counted.bigram.bits_per_byte:.3f},"
        f" unigram {counted.unigram.bits_per_byte:.3f}, uniform"
        f" {counted.uniform.bits_per_byte:.3f}), loss {scores.loss:.3f}"
    )
    upper_bound = scores.loss
    if scores.loss_interval is not None:
        upper_bound = scores.loss_interval.high
    if upper_bound < counted.bigram.loss:
        return Finding("validation loss", value, "ok")
    if scores.loss < counted.unigram.loss:
        advice = (
            "Not clearly below the bigram: nothing beyond the previous token is used yet. Train"
            " longer or raise optimizer.learning_rate."
        )
        return Finding("validation loss", value, "warn", advice)
    return Finding(
        "validation loss",
        value,
        "bad",
        "No better than token frequencies: training failed or has hardly begun. Look at the loss"
        " curve in report.html.",
    )


def inside(loaded: LoadedRun, validation: TokenSplit, *, loss_chunk: int) -> list[Finding]:
    """Layer by layer: feedback beside backpropagation, kernel beside softmax attention, queries and
    keys; nothing for other methods and models.
    """
    if not has_layers_to_look_at(loaded.recipe):
        return []
    measured = measure_layers(loaded.model, loaded.recipe, validation, loss_chunk=loss_chunk)
    where, findings = f"on {measured.tokens:,} held-out tokens", []
    if measured.alignment is not None:
        points = loaded.recipe.feedback_rules.points
        findings.append(feedback_gradient(measured.alignment, where, points=points))
    if measured.attention is not None:
        penalised = loaded.recipe.orthogonality is not None
        findings.append(attention_output(measured.attention, where))
        findings.append(orthogonality(measured.attention, penalised=penalised))
        if measured.attention.mean_cosine is not None:
            findings.append(kernel_attention(measured.attention, where))
    return findings


def feedback_gradient(alignment: Alignment, where: str, *, points: str) -> Finding:
    """Whether the fed-back gradient points in the direction of backpropagation's; only of layers
    below the top, since the top gets the true gradient.
    """
    name = "feedback gradient"
    rows = tuple(
        {
            "layer": each.name,
            "cosine": each.cosine,
            "norm_ratio": each.norm_ratio,
            "relative_error": each.relative_error,
        }
        for each in alignment.segments
    )
    mean = alignment.mean_cosine
    if points == "none":
        return Finding(
            name,
            "only the top and what is tied to it learn: nothing is fed back to the layers below",
            "ok",
            layers=rows,
        )
    if mean is None:
        return Finding(
            name,
            "the layers below the top get no gradient",
            "bad",
            "The loss does not reach them: look at the weights above.",
            rows,
        )
    value = f"cosine with backpropagation {mean:.3f} on average below the top, {where}"
    lost = [
        each.name
        for each in alignment.below_the_top
        if each.cosine is None or each.cosine < ALIGNED_ABOVE
    ]
    if not lost:
        return Finding(name, value, "ok", layers=rows)
    advice = (
        f"Below {ALIGNED_ABOVE} in {', '.join(lost)}: these layers do not follow the loss; below 0"
        " what is fed back raises it. Train longer, try feedback.matrix=identity, and compare with"
        " feedback.points=none, where they do not learn at all."
    )
    if mean <= 0:
        return Finding(name, value, "bad", advice, rows)
    return Finding(name, value, "warn", advice, rows)


def attention_output(attention: AttentionFidelity, where: str) -> Finding:
    """Whether every layer's attention adds something."""
    rows = tuple(
        {
            "layer": each.name,
            "output_over_values": each.output_norm,
            "temperatures": each.temperatures,
        }
        for each in attention.layers
    )
    least = min(attention.layers, key=lambda each: each.output_norm)
    value = f"{least.output_norm:.3g} of the values' norm where it is least ({least.name}), {where}"
    if not attention.dead:
        return Finding("attention output", value, "ok", layers=rows)
    advice = (
        f"Below {DEAD_BELOW:g} a layer adds nothing to the text that passes it, and learns next to"
        " nothing: its values are zero or its features vanish numerically. Lower model.temperature"
        " or optimizer.learning_rate and train again."
    )
    return Finding(
        "attention output", f"{value}; dead: {', '.join(attention.dead)}", "bad", advice, rows
    )


def orthogonality(attention: AttentionFidelity, *, penalised: bool) -> Finding:
    """How far the rows of each head's queries and keys are from orthogonal; a fault only where the
    recipe asks for it.
    """
    name = "orthogonality of queries and keys"
    rows = tuple(
        {"layer": each.name, "violation": each.violation, "worst_head": each.worst_violation}
        for each in attention.layers
    )
    worst = max(each.worst_violation for each in attention.layers)
    value = (
        f"violation {attention.mean_violation:.3g} of the head size on average, {worst:.3g} in the"
        " worst head"
    )
    if not penalised or attention.mean_violation < ORTHOGONAL_BELOW:
        return Finding(name, value + ", no penalty" * (not penalised), "ok", layers=rows)
    return Finding(
        name,
        value,
        "warn",
        f"The penalty is meant to keep it below {ORTHOGONAL_BELOW}: raise orthogonality.weight.",
        rows,
    )


def kernel_attention(attention: AttentionFidelity, where: str) -> Finding:
    """How near kernel attention is to the softmax attention that it estimates."""
    rows = tuple(
        {"layer": each.name, "cosine": each.cosine, "norm_ratio": each.norm_ratio}
        for each in attention.layers
    )
    cosines = [each.cosine or 0.0 for each in attention.layers]
    value = (
        f"cosine with softmax attention {attention.mean_cosine or 0.0:.3f} on average,"
        f" {min(cosines):.3f} where it is least, {where}"
    )
    if min(cosines) > CLOSE_ABOVE:
        return Finding("kernel attention", value, "ok", layers=rows)
    remedy = "raise model.features, or lower the start of the temperatures, model.temperature"
    if min(cosines) < ROUGH_BELOW:
        advice = (
            f"Below {ROUGH_BELOW} it is an attention of its own, not an estimate of softmax"
            f" attention: {remedy}."
        )
    else:
        advice = f"Below {CLOSE_ABOVE} the estimate is rough; where it matters, {remedy}."
    return Finding("kernel attention", value, "warn", advice, rows)


def samples(loaded: LoadedRun) -> Finding:
    """A few fresh texts with the recipe's settings: empty, stuck in a loop, or text."""
    name = "samples"
    try:
        written = generate(
            loaded.model,
            [[loaded.end_of_text_id]] * NUM_SAMPLES,
            SamplingSettings.from_recipe(loaded.recipe.sample),
            max_new_tokens=loaded.recipe.sample.tokens,
            stop_ids=frozenset({loaded.end_of_text_id}),
            seeds=sample_seeds(loaded.recipe.seed, NUM_SAMPLES),
        )
    except BrimfulError as error:
        return Finding(name, "not generated", "bad", str(error))
    texts = [_decoded(loaded, row.token_ids, with_special=False) for row in written]
    empty = sum(not text.strip() for text in texts)
    if empty == NUM_SAMPLES:
        return Finding(
            name,
            f"all {NUM_SAMPLES} are empty",
            "bad",
            "The model ends every text at once: look at the documents' lengths, and train longer.",
        )
    order = 4
    if loaded.recipe.own_tokenizer.kind == "character":
        order = 12
    distinct = min(distinct_share(row.token_ids, order) for row in written)
    value = (
        f"{distinct:.0%} distinct {order}-grams in the most repetitive of {NUM_SAMPLES}, {empty}"
        f" empty: {_shown(max(texts, key=len))}"
    )
    repeats = "It repeats itself: raise sample.temperature or sample.top_p, or train longer."
    if distinct < STUCK_BELOW:
        return Finding(name, value, "bad", repeats)
    if distinct < REPEATING_BELOW:
        return Finding(name, value, "warn", repeats)
    if empty:
        return Finding(
            name,
            value,
            "warn",
            "Some texts are empty: look for empty or very short training documents.",
        )
    return Finding(name, value, "ok")


def checkpoints(verify: Callable[[Path], object], folders: Sequence[Path]) -> Finding:
    """Whether every checkpoint is whole, by its own checksums."""
    name = "checkpoints"
    if not folders:
        return Finding(
            name,
            "none",
            "warn",
            "Nothing to continue from; the finished model in model/ is not affected.",
        )
    damaged = []
    for folder in folders:
        try:
            verify(folder)
        except CheckpointError as error:
            damaged.append(f"{folder.name}: {error}")
    if not damaged:
        return Finding(name, f"{len(folders)} whole", "ok")
    return Finding(
        name,
        f"{len(damaged)} of {len(folders)} damaged ({'; '.join(damaged)})",
        "bad",
        "Training goes on from the newest whole one; delete the damaged.",
    )


def distinct_share(token_ids: Sequence[int], order: int) -> float:
    """Distinct n-grams over all n-grams; 1 for a text shorter than one."""
    grams = [tuple(token_ids[start : start + order]) for start in range(len(token_ids) - order + 1)]
    if not grams:
        return 1.0
    return len(set(grams)) / len(grams)


def _documents(split: TokenSplit) -> Iterator[tuple[int, list[int], bool]]:
    """(number, ids without end-of-text, whether cut) of some non-empty documents, spread over the
    split.
    """
    if not split.num_documents:
        return
    chosen = np.unique(np.linspace(0, split.num_documents - 1, ROUND_TRIP_DOCUMENTS).astype(int))
    for document in chosen.tolist():
        start, end = (
            int(split.document_offsets[document]),
            int(split.document_offsets[document + 1]) - 1,
        )
        if end > start:
            ids = split.tokens_N[start : min(end, start + ROUND_TRIP_TOKENS)].astype(int).tolist()
            yield document, ids, end - start > ROUND_TRIP_TOKENS


def _shown(text: str, limit: int = 160) -> str:
    """One printable line of a text."""
    controls = {ord(letter): " " for letter in text if unicodedata.category(letter).startswith("C")}
    return repr(shortened(" ".join(text.translate(controls).split()), limit))
