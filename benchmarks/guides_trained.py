"""What the guides say that training gives, beside what was trained here: a section of
docs/guides.md, from records.

python benchmarks/guides_trained.py     # prints it
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"
TITLE = "Trained here"
HEAD = """No guide's own model could be trained here: Gemma 2 and PhoBERT are on the hub, which this machine does not reach, and the A100 sizes need a GPU. Beside each
claim stands the nearest model that was, so a difference is one of models and data as well. Intervals of 95 %; n in brackets."""


def section() -> str:
    """Markdown; every figure of ours comes from a record."""
    rows = [_code(), _okadfa(), _moderation(), _units(), _tiny_gpt()]
    return "\n".join(
        [
            f"## {TITLE}",
            "",
            HEAD,
            "",
            "| guide | the guide says | trained here |",
            "| --- | --- | --- |",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )


def _record(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return values


def _link(name: str) -> str:
    return f"[record](../benchmarks/records/{name}.json)"


def _figure(figures: Mapping[str, Any], metric: str, form: str = "{:.1%}") -> str:
    found = figures[metric]
    interval = found["interval"]
    low, high = (form.format(each) for each in interval)
    return f"{form.format(found['value'])} [{low}, {high}] ({found['n']})"


def _code() -> tuple[str, str, str]:
    record = _record("code_smollm2")
    variants = {each["name"]: each for each in record["comparison"]["variants"]}
    base, tuned = (variants[name]["figures"] for name in ("base", "lora-16"))
    seeds = len(variants["lora-16"]["seeds"])
    metrics = {
        "code that parses": ("code-syntax syntax", "{:.0%}"),
        "BLEU": ("bleu", "{:.1f}"),
        "HumanEval pass@1": ("humaneval pass@1", "{:.1%}"),
        "MBPP pass@1": ("mbpp pass@1", "{:.1%}"),
    }
    told = "; ".join(
        f"{name} {_figure(base, metric, form)} -> {_figure(tuned, metric, form)}"
        for name, (metric, form) in metrics.items()
    )
    return (
        "000, LoRA of rank 16 for Python code",
        "measured on Gemma 2 2B, 50 answers: 92 % parse, BLEU 27.9; claimed: 94 to 98 %, BLEU 41 to"
        " 47, pass@1 45 to 60 % on 5 tasks",
        f"SmolLM2-135M-Instruct, asked through its chat template, before -> after: {told};"
        f" {seeds} seeds; {_link('code_smollm2')}",
    )


def _okadfa() -> tuple[str, str, str]:
    record = _record("learn-okadfa-small")
    found = record["per_gpt2_token"]
    return (
        "001, OKADFA on WikiText",
        "measured: perplexity 604 per GPT-2 token at best (WikiText-2 raw, 123.7M parameters, an"
        " A100); claimed: below 800 to below 450 by size",
        f"`okadfa-small`, {record['parameters'] / 1e6:.1f}M parameters: {found['perplexity']:.0f}"
        f" ({found['tokens']:,} tokens) of WikiText-2 with `<unk>`, after"
        f" {record['updates']} updates on 2 CPU cores; {_link('learn-okadfa-small')}",
    )


def _moderation() -> tuple[str, str, str]:
    record = _record("moderation_minilm")
    sms, sst2 = record["sms"]["f1"]["model"], record["sst2"]["model"]["f1"]
    told = "; ".join(
        f"{name}: F1 {each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}] ({n:,})"
        for name, each, n in (
            ("SMS Spam", sms, record["sms"]["messages"]),
            ("SST-2", sst2, record["sst2"]["texts"]),
        )
    )
    return (
        "002, PhoBERT on Vietnamese comments",
        "claimed: F1 75 to 80 %, and 70 % in six minutes; no log shows either",
        f"all-MiniLM-L6-v2 on English texts: {told}; {_link('moderation_minilm')}",
    )


def _units() -> tuple[str, str, str]:
    return (
        "003, rejection sampling on unit conversion",
        "claimed: SFT 40 to 65 %, RFT 60 to 93 % with SmolLM2-360M; no log shows either",
        f"the course's own questions, a model of 0.9M parameters pre-trained here:"
        f" {_course_questions('rft_offline')}; {_link('rft_offline')}; SmolLM2-135M-Instruct:"
        f" {_course_questions('rft_smollm2')}; {_link('rft_smollm2')}",
    )


def _course_questions(name: str) -> str:
    variants = _record(name)["comparison"]["variants"]
    figures = [each["figures"]["unit-conversion-guide accuracy"] for each in variants]
    shares = ", ".join(
        f"{each['name']} {figure['value']:.1%}"
        for each, figure in zip(variants, figures, strict=True)
    )
    return f"{shares} ({figures[0]['n']})"


def _tiny_gpt() -> tuple[str, str, str]:
    record = _record("learn-wikitext2-small")
    found = record["scores"]["validation"]
    low, high = found["loss_interval"]
    return (
        "004, a GPT with its own tokenizer",
        "reported: validation loss 2.70 with 23M parameters after 100 epochs on an A100, per token"
        " of its own tokenizer",
        f"`wikitext2-small`, {record['parameters'] / 1e6:.1f}M parameters, {record['updates']}"
        f" updates on 2 CPU cores: {found['loss']:.2f} [{low:.2f}, {high:.2f}]"
        f" ({found['tokens']:,} tokens), {found['bits_per_byte']:.3f} bits a byte; losses of two"
        f" tokenizers do not compare; {_link('learn-wikitext2-small')}",
    )


if __name__ == "__main__":
    print(section())
