"""Checks of a trained run: tokenizer, weights, loss against counting models, samples,
checkpoints.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from brimful.base.errors import BrimfulError, CheckpointError
from brimful.base.text import shortened
from brimful.base.types import Json, Progress
from brimful.base.units import format_count
from brimful.data.bins import spread_evenly
from brimful.data.tokenizer import FAIL_BELOW
from brimful.data.tokenizer import verdict as rating_of
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


def _found(
    name: str,
    value: str,
    *faults: tuple[object, Verdict, str],
    layers: tuple[Json, ...] = (),
) -> Finding:
    """The finding of a check: the first fault that is there, with its verdict and advice; else
    ok.
    """
    for is_there, verdict, advice in faults:
        if is_there:
            return Finding(name, value, verdict, advice, layers)
    return Finding(name, value, "ok", layers=layers)


def compression(loaded: LoadedRun, validation: TokenSplit) -> Finding:
    """Characters and bytes of held-out text per token, end-of-text tokens left out."""
    name = "tokenizer compression"
    tokens = len(validation.tokens_N) - validation.num_documents
    if tokens < 1:
        return Finding(name, "the validation split holds no text", "bad", "Raise data.validation.")
    characters, size = validation.num_characters / tokens, validation.num_bytes / tokens
    rating = rating_of(loaded.recipe.own_tokenizer.kind, characters)
    value = (
        f"{characters:.2f} characters and {size:.2f} bytes per token, {len(loaded.tokenizer)}"
        f" tokens in the vocabulary: {rating}"
    )
    advice = "Raise tokenizer.vocabulary, or train the tokenizer on text like the validation text."
    is_low = rating in {"fail", "low"}
    is_bad = is_low and max(characters, size) < FAIL_BELOW
    return _found(name, value, (is_bad, "bad", advice), (is_low, "warn", advice))


def round_trip(loaded: LoadedRun, validation: TokenSplit) -> Finding:
    """Whether held-out documents, decoded and encoded again, give the same ids: the run's tokenizer
    made these tokens and loses nothing.
    """
    encode, wrong, seen = batch_encoder(loaded.tokenizer), [], 0
    for number, ids, is_cut in _documents(validation):
        seen += 1
        again: list[int] = []
        if max(ids) < len(loaded.tokenizer):
            again = encode([_decoded(loaded, ids)])[0]
        if is_cut:
            ids, again = ids[:-CUT_TOKENS], again[: len(ids) - CUT_TOKENS]  # noqa: PLW2901 - the same document
        if again != ids:
            wrong.append(number)
    value = f"{seen} validation documents come back exactly"
    if wrong:
        value = (
            f"{len(wrong)} of {seen} validation documents do not come back exactly, the first is"
            f" document {wrong[0]}"
        )
    return _found(
        "tokenizer round trip",
        value,
        (
            wrong and _knows_characters(loaded),
            "warn",
            "They hold characters that training text lacks; tokenizer.kind=bpe knows every"
            " character.",
        ),
        (
            wrong,
            "bad",
            "The tokens were made by another tokenizer: run the same `brimful train` command again"
            " to rebuild them.",
        ),
    )


def _knows_characters(loaded: LoadedRun) -> bool:
    """Whether the tokenizer knows the characters of training text alone."""
    return loaded.recipe.own_tokenizer.kind == "character"


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
    lost = [text for text in ODD_TEXTS if _decoded(loaded, loaded.encode(text)) != text]
    value = f"{len(ODD_TEXTS)} of {len(ODD_TEXTS)} exact"
    if lost:
        value = f"{len(lost)} of {len(ODD_TEXTS)} not exact, such as {lost[0]!r}"
        if _knows_characters(loaded):
            value += " (a character tokenizer knows the training text's characters only)"
    return _found(
        "odd texts round trip",
        value,
        (
            lost and not _knows_characters(loaded),
            "bad",
            "The tokenizer changes text: look at normalizer, pre_tokenizer and decoder in"
            " model/tokenizer.json.",
        ),
    )


def parameters(loaded: LoadedRun) -> Finding:
    """Parameters, tied ones once, held against the recipe's count; buffers beside them, never among
    them.
    """
    real, buffers = num_parameters(loaded.model), num_buffer_elements(loaded.model)
    counted = count_parameters(
        loaded.recipe.fresh_model, int(loaded.model.config.vocab_size), loaded.recipe.context
    ).total
    is_other = real != counted
    value = f"{real:,} ({format_count(real)}); {buffers:,} buffer elements beside them"
    return _found(
        "parameters",
        value + f"; the recipe describes {counted:,}" * is_other,
        (
            is_other,
            "bad",
            "model/ and recipe.yaml are of different runs; restore the one that was changed.",
        ),
    )


def weights(loaded: LoadedRun) -> Finding:
    """Whether every weight is a number."""
    broken, value = tensors_not_finite(loaded.model), "all finite"
    if broken:
        names = ", ".join(broken[:3]) + " ..." * (len(broken) > 3)
        value = f"NaN or inf in {len(broken)} tensors: {names}"
    return _found(
        "weights",
        value,
        (
            broken,
            "bad",
            "Training diverged: lower optimizer.learning_rate or set optimizer.clip_norm, and train"
            " again.",
        ),
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
    is_close = not upper_bound < counted.bigram.loss  # and so is what is not a number
    return _found(
        "validation loss",
        value,
        (
            is_close and not scores.loss < counted.unigram.loss,
            "bad",
            "No better than token frequencies: training failed or has hardly begun. Look at the"
            " loss curve in report.html.",
        ),
        (
            is_close,
            "warn",
            "Not clearly below the bigram: nothing beyond the previous token is used yet. Train"
            " longer or raise optimizer.learning_rate.",
        ),
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


def _rows(layers: Iterable[object], **columns: str) -> tuple[Json, ...]:
    """A row for each layer: under each column the value of the attribute that it names."""
    return tuple(
        {column: getattr(each, name) for column, name in {"layer": "name", **columns}.items()}
        for each in layers
    )


def feedback_gradient(alignment: Alignment, where: str, *, points: str) -> Finding:
    """Whether the fed-back gradient points in the direction of backpropagation's; only of layers
    below the top, since the top gets the true gradient.
    """
    name, mean = "feedback gradient", alignment.mean_cosine
    rows = _rows(
        alignment.segments,
        cosine="cosine",
        norm_ratio="norm_ratio",
        relative_error="relative_error",
    )
    if points == "none":
        told = "only the top and what is tied to it learn: nothing is fed back to the layers below"
        return Finding(name, told, "ok", layers=rows)
    if mean is None:
        advice = "The loss does not reach them: look at the weights above."
        return Finding(name, "the layers below the top get no gradient", "bad", advice, rows)
    lost = [
        each.name
        for each in alignment.below_the_top
        if each.cosine is None or each.cosine < ALIGNED_ABOVE
    ]
    advice = (
        f"Below {ALIGNED_ABOVE} in {', '.join(lost)}: these layers do not follow the loss; below 0"
        " what is fed back raises it. Train longer, try feedback.matrix=identity, and compare with"
        " feedback.points=none, where they do not learn at all."
    )
    return _found(
        name,
        f"cosine with backpropagation {mean:.3f} on average below the top, {where}",
        (lost and mean <= 0, "bad", advice),
        (lost, "warn", advice),
        layers=rows,
    )


def attention_output(attention: AttentionFidelity, where: str) -> Finding:
    """Whether every layer's attention adds something."""
    least = min(attention.layers, key=lambda each: each.output_norm)
    value = f"{least.output_norm:.3g} of the values' norm where it is least ({least.name}), {where}"
    return _found(
        "attention output",
        value + f"; dead: {', '.join(attention.dead)}" * bool(attention.dead),
        (
            attention.dead,
            "bad",
            f"Below {DEAD_BELOW:g} a layer adds nothing to the text that passes it, and learns next"
            " to nothing: its values are zero or its features vanish numerically. Lower"
            " model.temperature or optimizer.learning_rate and train again.",
        ),
        layers=_rows(
            attention.layers, output_over_values="output_norm", temperatures="temperatures"
        ),
    )


def orthogonality(attention: AttentionFidelity, *, penalised: bool) -> Finding:
    """How far the rows of each head's queries and keys are from orthogonal; a fault only where the
    recipe asks for it.
    """
    worst = max(each.worst_violation for each in attention.layers)
    value = (
        f"violation {attention.mean_violation:.3g} of the head size on average, {worst:.3g} in the"
        " worst head"
    )
    return _found(
        "orthogonality of queries and keys",
        value + ", no penalty" * (not penalised),
        (
            penalised and not attention.mean_violation < ORTHOGONAL_BELOW,
            "warn",
            f"The penalty is meant to keep it below {ORTHOGONAL_BELOW}: raise"
            " orthogonality.weight.",
        ),
        layers=_rows(attention.layers, violation="violation", worst_head="worst_violation"),
    )


def kernel_attention(attention: AttentionFidelity, where: str) -> Finding:
    """How near kernel attention is to the softmax attention that it estimates."""
    least = min(each.cosine or 0.0 for each in attention.layers)
    value = (
        f"cosine with softmax attention {attention.mean_cosine or 0.0:.3f} on average,"
        f" {least:.3f} where it is least, {where}"
    )
    remedy = "raise model.features, or lower the start of the temperatures, model.temperature"
    return _found(
        "kernel attention",
        value,
        (
            least < ROUGH_BELOW,
            "warn",
            f"Below {ROUGH_BELOW} it is an attention of its own, not an estimate of softmax"
            f" attention: {remedy}.",
        ),
        (
            not least > CLOSE_ABOVE,
            "warn",
            f"Below {CLOSE_ABOVE} the estimate is rough; where it matters, {remedy}.",
        ),
        layers=_rows(attention.layers, cosine="cosine", norm_ratio="norm_ratio"),
    )


def samples(loaded: LoadedRun) -> Finding:
    """A few fresh texts with the recipe's settings: empty, stuck in a loop, or text."""
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
        return Finding("samples", "not generated", "bad", str(error))
    texts = [_decoded(loaded, row.token_ids, with_special=False) for row in written]
    empty = sum(not text.strip() for text in texts)
    order = 12 if _knows_characters(loaded) else 4
    distinct = min(distinct_share(row.token_ids, order) for row in written)
    value, all_empty = f"all {NUM_SAMPLES} are empty", empty == NUM_SAMPLES
    if not all_empty:
        value = (
            f"{distinct:.0%} distinct {order}-grams in the most repetitive of {NUM_SAMPLES},"
            f" {empty} empty: {_shown(max(texts, key=len))}"
        )
    repeats = "It repeats itself: raise sample.temperature or sample.top_p, or train longer."
    return _found(
        "samples",
        value,
        (
            all_empty,
            "bad",
            "The model ends every text at once: look at the documents' lengths, and train longer.",
        ),
        (distinct < STUCK_BELOW, "bad", repeats),
        (distinct < REPEATING_BELOW, "warn", repeats),
        (
            empty,
            "warn",
            "Some texts are empty: look for empty or very short training documents.",
        ),
    )


def checkpoints(verify: Callable[[Path], object], folders: Sequence[Path]) -> Finding:
    """Whether every checkpoint is whole, by its own checksums."""
    damaged = []
    for folder in folders:
        try:
            verify(folder)
        except CheckpointError as error:
            damaged.append(f"{folder.name}: {error}")
    value = f"{len(folders)} whole" if folders else "none"
    if damaged:
        value = f"{len(damaged)} of {len(folders)} damaged ({'; '.join(damaged)})"
    return _found(
        "checkpoints",
        value,
        (
            not folders,
            "warn",
            "Nothing to continue from; the finished model in model/ is not affected.",
        ),
        (damaged, "bad", "Training goes on from the newest whole one; delete the damaged."),
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
    for document in spread_evenly(split.num_documents, ROUND_TRIP_DOCUMENTS).tolist():
        start, end = map(int, split.document_offsets[document : document + 2])
        end -= 1
        if end > start:
            ids = split.tokens_N[start : min(end, start + ROUND_TRIP_TOKENS)].astype(int).tolist()
            yield document, ids, end - start > ROUND_TRIP_TOKENS


def _shown(text: str, limit: int = 160) -> str:
    """One printable line of a text."""
    controls = {ord(letter): " " for letter in text if unicodedata.category(letter).startswith("C")}
    return repr(shortened(" ".join(text.translate(controls).split()), limit))
