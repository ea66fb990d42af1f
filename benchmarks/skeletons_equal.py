"""Are the recordings that follow from skeletons those of the networks themselves, to the byte?

    python benchmarks/skeletons_equal.py [--pairs 60] [--minutes 30] [--seed 0]

Draws pairs of a model of the catalog and a method at random, then each of SIZES, and of each one step
that a plan asks for, at a length that is a multiple of 128 or at another. The step is traced at the
network's own widths and compared with what the skeletons say, value by value. Only steps that
skeletons serve are drawn; how many pairs and models have one is in the record, and the others are
traced by `brimful plan`. A trace takes some ten CPU seconds.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.model import catalog
from brimful.planning.family_key import TraceFamilyKey
from brimful.planning.parametric import Irregular
from brimful.rehearsal.shipped_skeletons import ShippedSkeletons
from brimful.rehearsal.tracer import trace_family
from record import write_record
from ship_skeletons import CARDS, CPUS, METHODS, Asked, content_of, said


def _llama(h: int, n: int, g: int, f: int, v: int, blocks: int, **others: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": h,
        "num_attention_heads": n,
        "num_key_value_heads": g,
        "intermediate_size": f,
        "vocab_size": v,
        "num_hidden_layers": blocks,
        "max_position_embeddings": 8192,
        **others,
    }


_QWEN2 = {"model_type": "qwen2", "max_position_embeddings": 32768}
_MISTRAL = {"model_type": "mistral", "head_dim": 128, "sliding_window": None}
SIZES = {
    "Yi 6B": _llama(4096, 32, 4, 11008, 64000, 32),
    "Yi 1.5 9B": _llama(4096, 32, 4, 11008, 64000, 48),
    "SmolLM 360M, 36 blocks": _llama(960, 15, 5, 2560, 49152, 36, tie_word_embeddings=True),
    "Falcon 3 7B": _llama(3072, 12, 4, 23040, 131072, 28, head_dim=256),
    "Falcon 3 1B": _llama(2048, 8, 4, 8192, 131072, 18, head_dim=256),
    "Mistral Nemo 12B": _llama(5120, 32, 8, 14336, 131072, 40, **_MISTRAL),
    "Mistral Small 24B": _llama(5120, 32, 8, 32768, 131072, 40, **_MISTRAL),
    "Codestral 22B": _llama(6144, 48, 8, 16384, 32768, 56, **_MISTRAL),
    "R1 Distill Qwen 1.5B": _llama(1536, 12, 2, 8960, 151936, 28, **_QWEN2),
    "Qwen2 0.5B, 30 blocks": _llama(
        896, 14, 2, 4864, 151936, 30, **_QWEN2, tie_word_embeddings=True
    ),
}
"""Networks that are not in the catalog of models: published sizes as remembered, and two with more
blocks than published. What is compared does not depend on whether they are right.
"""


def served(model: str, method: str) -> list[TraceFamilyKey]:
    """Return the steps of a model and a method that skeletons serve."""
    skeletons = ShippedSkeletons()
    try:
        keys = dict.fromkeys(Asked((*CARDS, *CPUS), (method,)).keys_of(model))
    except IndexError:  # its lengths and ranks are fixed
        return []
    return [key for key in keys if skeletons.family(key) is not None]


def compared(model: str, key: TraceFamilyKey) -> dict[str, Any]:
    """Trace a step, and return whether it is what the skeletons say."""
    start_s = time.process_time()
    family = ShippedSkeletons().family(key)
    try:
        same = family is not None and content_of(family) == content_of(trace_family(key))
    except Irregular as irregular:
        print(f"{model} {said(key)}: {irregular}")
        same = False
    print(f"{model} {said(key)}: {'equal' if same else 'DIFFERENT'}", flush=True)
    return {
        "model": model,
        "step": said(key),
        "equal": same,
        "cpu_s": round(time.process_time() - start_s, 1),
    }


def others(folder: Path) -> Iterator[tuple[str, str]]:
    """Write the config of each of SIZES; yield its name and its folder."""
    for number, (name, config) in enumerate(SIZES.items()):
        (folder / str(number)).mkdir()
        (folder / str(number) / "config.json").write_text(json.dumps(config))
        yield name, str(folder / str(number))


def main() -> None:
    """Compare, print, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=30, help="nothing is traced after these")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    end_s, choice = time.monotonic() + 60 * options.minutes, random.Random(options.seed)
    pairs = [
        (model, method, keys)
        for model in catalog.names()
        for method in METHODS
        if (keys := served(model, method))
    ]
    values: dict[str, Any] = {
        "models_in_catalog": len(catalog.names()),
        "models_with_a_skeleton": len({model for model, _, _ in pairs}),
        "pairs_in_catalog": len(catalog.names()) * len(METHODS),
        "pairs_with_a_skeleton": len(pairs),
        "of_the_catalog": [],
        "of_other_sizes": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, path in others(Path(folder)):
            method = choice.choice(list(METHODS))
            if keys := served(path, method):
                values["of_other_sizes"].append(compared(name, choice.choice(keys)))
        for model, method, keys in choice.sample(pairs, min(options.pairs, len(pairs))):
            if time.monotonic() > end_s:
                break
            values["of_the_catalog"].append(compared(f"{model}, {method}", choice.choice(keys)))
    each = [*values["of_the_catalog"], *values["of_other_sizes"]]
    values |= {"compared": len(each), "equal": sum(one["equal"] for one in each)}
    print(write_record("skeletons_equal", values))
    sys.exit(not all(one["equal"] for one in each))


if __name__ == "__main__":
    main()
