"""Public training recipes with stated hardware, planned by `brimful plan`: is said to fit what is
documented to run, and not to fit what is documented to run out of memory?

    python benchmarks/public_recipes.py [--only WORDS] [--without NAME ...] [--no-record]

`public_recipes.toml` has the recipes: facts, the address of each, and how the documented step
differs from brimful's own, which is the one that is planned, as `brimful plan` does; the words to
ask it are in the record. Micro-batch, length, recomputation and spread are fixed as documented;
what is not stated is left to the plan. A verdict is right where a plan surely fits what runs, or
surely does not fit what fails; "uncertain" is neither right nor wrong.
"""

import argparse
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brimful.base.errors import BrimfulError
from brimful.base.units import GIB
from brimful.chains.devices import facts_of
from brimful.hardware.groups import parse
from brimful.planning.plan import Prediction
from brimful.planning.specs import model_facts
from brimful.planning.spread import derive_spread
from brimful.planning.survey import Tracer
from brimful.recipe import load
from brimful.rehearsal.kept_traces import kept_traces
from record import write_record

STORED = Path(__file__).with_suffix(".toml")
MPT_VOCABULARY = 50368
RIGHT = {"runs": "fits", "fails": "does not fit"}
FIXED = ("tokenizer=null", "training.steps=1000", "plan.compile=false")
"""Of published models; `quickstart` reads documents, so that rows are full."""


def words_of(recipe: Mapping[str, Any]) -> list[str]:
    """Return the words of `brimful plan` that ask for a recipe."""
    words = [f"sequence_length={recipe['length']}", f"plan.micro_batch={recipe['sequences']}"]
    words.append(f"batch.sequences={recipe['sequences'] * parse(recipe['devices']).count}")
    if "shape" in recipe:
        shape = ", ".join(f"{name}: {value}" for name, value in recipe["shape"].items())
        words.append(f"model={{architecture: gpt2, {shape}}}")
        words.append(f"tokenizer.vocabulary={MPT_VOCABULARY}")
        words += FIXED[1:]
    else:
        words += [f"model={recipe['model']}", *FIXED]
    if "recompute" in recipe:
        words.append(f"plan.recompute={str(recipe['recompute']).lower()}")
    if "spread" in recipe:
        words.append(f"plan.spread={recipe['spread']}")
    return ["plan", "quickstart", *words, *recipe.get("changes", []), "--on", recipe["devices"]]


def asked(recipe: Mapping[str, Any], traces: Tracer) -> dict[str, Any]:
    """Return what the plan of a recipe says of memory."""
    words = words_of(recipe)
    row = {name: recipe[name] for name in ("name", "address", "ends", "devices")}
    row |= {"command": ["brimful", *words], "other": recipe.get("other", "")}
    row |= {"found": recipe["found"]} if "found" in recipe else {}
    group = parse(recipe["devices"])
    try:
        planned = load(words[1], words[2 : words.index("--on")])
        facts = facts_of(group.device, model=model_facts(planned))
        derived = derive_spread(planned, group, traces, facts)
    except BrimfulError as error:
        return row | {"verdict": "refused", "reason": str(error)}
    said = derived.footprint
    row |= {
        "verdict": said.verdict,
        "spread": derived.plan.spread,
        "recompute": derived.plan.recompute,
        "usable_gib": round(said.usable_bytes / GIB, 2),
        "driver_gib": _gib(said.driver),
        "reserved_gib": _gib(said.reserved),
    }
    if "told_gib" in recipe:
        row["told_reserved_gib"] = recipe["told_gib"]
    return row


def _gib(peak: Prediction) -> list[float]:
    return [round(each / GIB, 2) for each in (peak.value, peak.low, peak.high)]


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many verdicts are right, wrong or undecided, by how recipes end."""
    made: dict[str, Any] = {}
    for ends, right in RIGHT.items():
        verdicts = Counter(row["verdict"] for row in rows if row["ends"] == ends)
        made[ends] = {"recipes": sum(verdicts.values()), "right": verdicts[right], **verdicts}
    return made


def main() -> None:
    """Plan every recipe, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only recipes whose name has these words")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="NAME", help="leave these out for want of time"
    )
    options = parser.parse_args()
    recipes = tomllib.loads(STORED.read_text(encoding="utf-8"))["recipe"]
    rows = []
    chosen = [
        recipe
        for recipe in recipes
        if options.only in recipe["name"] and recipe["name"] not in options.without
    ]
    with kept_traces() as traces:
        for recipe in chosen:
            row = asked(recipe, traces)
            rows.append(row)
            mark = "" if row["verdict"] == RIGHT[row["ends"]] else "  <-- "
            memory = row.get("driver_gib", row.get("reason"))
            print(f"{row['ends']:5s} {row['verdict']:12s} {memory} {row['name']}{mark}", flush=True)
    print(counts(rows))
    if not options.no_record and not options.only:
        values = {"counts": counts(rows), "not_planned": options.without, "recipes": rows}
        print(write_record("public_recipes", values))


if __name__ == "__main__":
    main()
