"""Plans and recipes that several tests begin with."""

from brimful.planning.plan import Plan

PLAINEST = Plan(
    recipe="tiny",
    device={"name": "a CPU"},
    choices=(),
    micro_batches=(8,),
    precision="fp32",
    attention="eager",
    recompute=False,
    compile=False,
    optimizer="fused",
    loss_chunk=256,
    loader_workers=1,
    threads=1,
    parameters=1000,
    sequence_length=32,
    total_steps=12,
    predicted={},
    memory_terms={},
    time_terms={},
)
SMALL = {
    "name": "small",
    "sequence_length": 32,
    "batch": {"sequences": 6},
    "training": {"steps": 5},
    "model": {"layers": 2, "heads": 2, "width": 32},
    "tokenizer": {"vocabulary": 300},
    "data": {"path": "x.txt"},
    "optimizer": {"learning_rate": 1e-3},
}
HUGE = SMALL | {
    "name": "huge",
    "sequence_length": 2048,
    "model": {"layers": 1, "heads": 64, "width": 65536},
}
"""Fits no device of the catalog."""
SMALL_FILE = """
name: small
sequence_length: 16
batch: {sequences: 2}
training: {steps: 8}
model: {architecture: llama, layers: 1, heads: 1, width: 16}
tokenizer: {kind: bpe, vocabulary: 300}
data: {path: "builtin:python-docs"}
optimizer: {learning_rate: 1.0e-3}
plan: {compile: false}
"""
