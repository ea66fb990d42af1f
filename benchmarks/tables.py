"""The pages and tables of the documents whose figures come from `benchmarks/records`: one template each,
in `benchmarks/pages`.

    python benchmarks/tables.py measured > docs/measured.md
    python benchmarks/tables.py questions > docs/questions.md
    python benchmarks/tables.py ablation        # the table of docs/okadfa.md
    python benchmarks/tables.py environments    # the table of docs/install.md
    python benchmarks/tables.py guides_trained  # the section of docs/guides.md that needs no plans
    python benchmarks/tables.py verify          # the table of docs/verify.md
"""

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

FOLDER = Path(__file__).parent
WITHOUT_AMX, SLOW_BF16 = "_without_amx", "_slow_bf16"
CPU_KINDS = {"": "with AMX", WITHOUT_AMX: "without AMX", SLOW_BF16: "on which bf16 is slow"}
"""Kinds of CPU that a benchmark may have a record of each, by the ending of its name."""
MOVED = {
    "pretrain_cpu.py": "compare.py pretrain",
    "finetune_cpu.py": "compare.py tune",
    "preferences_cpu.py": "compare.py preferences",
    "rewards_cpu.py": "compare.py rewards",
    "classify_cpu.py": "compare.py classify",
    "sampling_published.py": "compare.py sampling",
    "evaluation_cpu.py": "compare.py evaluation",
    "nanogpt_cpu.py": "compare.py nanogpt",
    "learn.py": "learned.py",
    "code_offline.py": "learned.py",
    "code_smollm2.py": "learned.py",
    "rft_offline.py": "learned.py",
    "moderation_offline.py": "moderation.py",
}
"""What makes a record now, by the script that made it."""


def page(name: str, **figures: Any) -> str:
    """Return a page or table as Markdown; every figure comes from a record, or from what is given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "pages"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=jinja2.select_autoescape(),  # of HTML alone
    )
    environment.globals |= {"record": record, "source": source, "records_of": records_of, **figures}
    environment.filters |= {"median": statistics.median, "spread": spread, "interval": interval}
    return environment.get_template(f"{name}.md.j2").render().strip()


def record(name: str) -> dict[str, Any]:
    """Return the values of `records/NAME.json`."""
    values: dict[str, Any] = json.loads(
        (FOLDER / "records" / f"{name}.json").read_text(encoding="utf-8")
    )
    return values


def source(name: str) -> str:
    """Return the script that makes a record, with a link to the record."""
    _, script, *words = record(name)["command"].split()
    made_by = Path(script).name
    if made_by == "compare.py":
        made_by += f" {words[0]}"
    return f"[`{MOVED.get(made_by, made_by)}`](../benchmarks/records/{name}.json)"


def records_of(name: str) -> dict[str, str]:
    """Return the records that a benchmark has of kinds of CPU: device and kind by name."""
    found = {}
    for ending, kind in CPU_KINDS.items():
        if (FOLDER / "records" / f"{name}{ending}.json").exists():
            device = record(name + ending)["device"].replace("(R)", "").removesuffix(" Processor")
            found[name + ending] = f"{device} {kind}"
    return found


def spread(ratio: Mapping[str, float], form: str = "{:.2f}") -> str:
    """Return the median of a ratio with its interval, or its smallest and largest value."""
    low, high = (
        ratio.get(end, ratio.get(other)) for end, other in (("low", "min"), ("high", "max"))
    )
    return f"{form.format(ratio['median'])} [{form.format(low)}, {form.format(high)}]"


def interval(figure: Mapping[str, Any], form: str = "{:.1%}", unit: int = 1) -> str:
    """Return a value with its 95 % interval, where it has one."""
    value = form.format(figure["value"] / unit)
    if not figure["interval"]:
        return value
    low, high = (form.format(end / unit).removesuffix(" GiB") for end in figure["interval"])
    return f"{value} [{low}, {high}]"


if __name__ == "__main__":
    print(page(sys.argv[1]))
