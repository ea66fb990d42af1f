"""The README's table of measured figures, made from `benchmarks/records`.

python benchmarks/tables.py
"""

import json
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"


def main() -> None:
    print(table())


def table() -> str:
    """Markdown rows; every figure comes from a record."""
    rows = [*_speed(), *_learned("shakespeare-char"), *_learned("wikitext2-small"), *_killed()]
    return "\n".join(["| what | measured | command, record |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)])


def _record(name: str) -> tuple[dict[str, Any], str]:
    record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return record, f"`{record['command']}`, [record](benchmarks/records/{name}.json)"


def _speed() -> list[tuple[str, str, str]]:
    record, source = _record("pretrain_cpu")
    ours = record["results"]["brimful"]
    default, best, rounds = ours["speed_over_default"], ours["speed_over_best"], record["rounds"]
    return [
        (
            "Training step on a CPU, 16.9M parameters, one thread, beside transformers' Trainer",
            f"{default['median']:.2f}x its default [{default['low']:.2f}, {default['high']:.2f}], {best['median']:.2f}x its best (bf16, fused, compiled) "
            f"[{best['low']:.2f}, {best['high']:.2f}], n = {rounds} rounds; {ours['share_of_bf16_matrix_rate']:.0%} of the core's bf16 matrix rate; equal loss",
            source,
        )
    ]


def _learned(name: str) -> list[tuple[str, str, str]]:
    record, source = _record(f"learn-{name}")
    score = record["scores"]["validation"]
    low, high = score["bits_per_byte_interval"]
    return [
        (
            f"`{name}`, {record['parameters'] / 1e6:.1f}M parameters, {record['plan']['threads']} CPU threads, whole validation split",
            f"loss {score['loss']:.3f}, {score['bits_per_byte']:.3f} bits/byte [{low:.3f}, {high:.3f}], bigram {score['baselines']['bigram']['bits_per_byte']:.3f}; "
            f"{record['updates']:,} updates in {record['seconds_in_all'] / 60:.1f} min, {1000 * record['median_step_time_s']:.0f} ms each",
            source,
        )
    ]


def _killed() -> list[tuple[str, str, str]]:
    record, source = _record("kill")
    return [
        (
            "SIGKILL at random moments and file operations of checkpoints",
            f"{record['equal']} of {record['trials']} runs, {len(record['kills'])} kills: weights, optimizer, metrics equal bit for bit",
            source,
        )
    ]


if __name__ == "__main__":
    main()
