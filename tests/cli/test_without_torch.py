"""Plans of models whose recordings come with brimful, in a process where neither torch nor
transformers nor peft can be found.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ABSENT = """
import importlib.metadata, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "peft"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

version = importlib.metadata.version

def installed(name):
    if name in {"torch", "transformers", "peft"}:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

sys.meta_path.insert(0, Absent())
importlib.metadata.version = installed
from brimful.cli import main
try:
    main()
finally:
    with open("/proc/self/status") as file:  # getrusage tells that of the parent, too
        print(*(line for line in file if line.startswith("VmHWM")), file=sys.stderr)
"""
LORA = ("plan", "quickstart", "tokenizer=null", "adapter.rank=16", "batch.sequences=16", "--json")
MOST_KB = 300_000


def _run(cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ABSENT, *words],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"BRIMFUL_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
    )


def _peak_kb(ended: subprocess.CompletedProcess[str]) -> int:
    return int(ended.stderr.split()[-2])


def test_a_model_whose_recordings_come_with_brimful_is_planned_for(tmp_path: Path) -> None:
    ended = _run(
        tmp_path, *LORA, "model=meta-llama/Llama-3.1-8B", "sequence_length=2048", "--on", "T4"
    )

    assert ended.returncode == 1, ended.stderr
    (answer,) = json.loads(ended.stdout)["devices"]
    assert answer["verdict"] == "does not fit"
    assert any(each["set"] == "quantize=nf4" for each in answer["remedies"])
    assert answer["smallest_device"]
    assert _peak_kb(ended) < MOST_KB


def test_so_is_another_size_of_the_architecture_on_a_list_of_devices(tmp_path: Path) -> None:
    words = ("model=meta-llama/Llama-3.1-70B", "quantize=nf4", "sequence_length=1024")

    ended = _run(tmp_path, *LORA, *words, "--on", "h100-nvl,a100-80gb-pcie,L4")

    assert ended.returncode in (0, 1), ended.stderr
    answers = json.loads(ended.stdout)["devices"]
    assert [each["verdict"] == "fits" for each in answers] == [True, True, False]
    assert _peak_kb(ended) < MOST_KB


def test_what_would_have_to_be_traced_is_refused_with_what_to_do(tmp_path: Path) -> None:
    words = ("model=EleutherAI/pythia-70m", "sequence_length=512")

    ended = _run(tmp_path, *LORA, *words, "--on", "T4")

    assert ended.returncode == 2
    assert "without torch none can be made. Install torch" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
