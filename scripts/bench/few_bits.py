"""Executed instructions of products with weights of few bits, beside peers'.

    scripts/bench/few_bits.py [--target NAME ...] [--json FILE] [--against FILE]

A model of one MatMulNBits at accuracy level 4 (K = N = 2048, blocks of 32), counted under QEMU
with the CPU named, everything included: rounding the data to int8, sums, scales. Of one row the
figure is instructions per weight; of 64 rows, instructions divided by the fewest that multiply: 4
products each, or 16 (sdot) and 32 (smmla) where a CPU has instructions for so many. `limit` is what
the figure is to be at most. With --against the exit status is 1 where a figure rose by over 1 %; it
is also 1 where one is above its limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx

TOLERATED = 1.01
SIZE, BLOCK, MANY = 2048, 32, 64
I8MM = "llvm -mtriple=aarch64-linux-gnu -mattr=+neon,+dotprod,+i8mm -device=arm_cpu"
CORTEX_A76 = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu"


@dataclass(frozen=True, slots=True)
class Column:
    """A CPU that QEMU has, the target for it, and how many products an instruction adds up."""

    cpu: str
    target: str
    machine: str = "aarch64"
    together: int = 4


COLUMNS = {
    "cortex-a76": Column("cortex-a76", CORTEX_A76, together=16),
    "i8mm": Column("max,sve=off,sme=off", I8MM, together=32),
    "cortex-a72": Column("cortex-a72", "aarch64"),
    "cortex-a7": Column("cortex-a7", "armv7a", "arm"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A product. limits and peers: by CPU; peers are the best of any other library, with 4 bits
    those of onnxruntime 1.32.0, ggml 0.25.3 and KleidiAI, with 8 bits ggml's."""

    name: str
    rows: int
    bits: int
    zeros: bool
    limits: dict[str, float]
    peers: dict[str, float]


ONE, ROWS = "4 bits, one row", f"4 bits, {MANY} rows"
CASES = (
    Case(ONE, 1, 4, False,
         {"cortex-a76": 0.21, "i8mm": 0.21, "cortex-a72": 0.45, "cortex-a7": 0.6},
         {"cortex-a76": 0.230, "i8mm": 0.230, "cortex-a72": 0.783}),
    Case(f"{ONE}, zero points", 1, 4, True, {}, {}),
    Case("8 bits, one row", 1, 8, False, {}, {"cortex-a76": 0.199}),
    Case(ROWS, MANY, 4, False, {"cortex-a76": 1.65, "i8mm": 2.5, "cortex-a72": 1.1},
         {"cortex-a76": 1.871, "i8mm": 2.951, "cortex-a72": 1.360}),
    Case(f"{ROWS}, zero points", MANY, 4, True, {}, {}),
    Case(f"8 bits, {MANY} rows", MANY, 8, False, {}, {"cortex-a76": 2.006}),
)  # fmt: skip


def model(case: Case) -> ModelProto:
    """MatMulNBits of random weights, as onnxruntime's tools write it."""
    rng, blocks = np.random.default_rng(0), SIZE // BLOCK
    stored = rng.integers(0, 256, (SIZE, blocks, BLOCK * case.bits // 8), np.uint8)
    own = {"w": stored, "scales": (rng.random((SIZE, blocks)) / 50).astype(np.float32)}
    if case.zeros:
        own["zeros"] = rng.integers(0, 256, (SIZE, blocks * case.bits // 8), np.uint8)
    node = helper.make_node(
        "MatMulNBits", ["x", *own], ["y"], domain="com.microsoft", K=SIZE, N=SIZE, bits=case.bits,
        block_size=BLOCK, accuracy_level=4,
    )  # fmt: skip
    shape = (case.rows, SIZE)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    weights = [numpy_helper.from_array(array, name) for name, array in own.items()]
    graph = helper.make_graph([node], "product", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def measure(case: Case, session: Any, column: Column) -> dict[str, Any]:
    compiled = mlc.compile(from_onnx(model(case)), column.target)
    loaded = session.load(compiled)
    x = np.random.default_rng(1).standard_normal((case.rows, SIZE)).astype(np.float32)
    counts = loaded.profile({"x": x}).run.counts
    total = sum(c.total for c in counts)
    products = case.rows * SIZE * SIZE
    return {
        "instructions": total,
        "figure": round(total / products * (1 if case.rows == 1 else column.together), 4),
        "product": max(c.total for c in counts),
        "weights_bytes": len(compiled.weights_bytes),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", action="append", choices=COLUMNS, help="a CPU; default: all")
    parser.add_argument("--json", type=Path, help="where to write the record")
    parser.add_argument("--against", type=Path, help="an earlier record to compare with")
    given = parser.parse_args(arguments)
    record: dict[str, dict[str, Any]] = {}
    for name in given.target or COLUMNS:
        column = COLUMNS[name]
        with mlc.connect(f"qemu://{column.cpu}", machine=column.machine) as session:
            record[name] = {case.name: measure(case, session, column) for case in CASES}
        show(name, record[name])
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    earlier = json.loads(given.against.read_text()) if given.against else {}
    return compare(record, earlier)


def show(cpu: str, measured: dict[str, Any]) -> None:
    table = Table(title=cpu)
    for column in ("product", "instructions", "figure", "limit", "best peer", "weights"):
        table.add_column(column, justify="left" if column == "product" else "right")
    for case in CASES:
        m = measured[case.name]
        known = (case.limits.get(cpu), case.peers.get(cpu))
        numbers = ("" if n is None else f"{n:.3f}" for n in known)
        shown = f"{m['instructions']:,}", f"{m['figure']:.4f}", *numbers
        table.add_row(case.name, *shown, f"{m['weights_bytes']:,}")
    Console(width=100).print(table)


def compare(record: dict[str, dict[str, Any]], earlier: dict[str, dict[str, Any]]) -> int:
    """1 where a figure is above its limit or rose; both are printed."""
    status = 0
    for cpu, found in record.items():
        for case in CASES:
            figure = found[case.name]["figure"]
            before = earlier.get(cpu, {}).get(case.name, {}).get("figure")
            if figure > case.limits.get(cpu, figure):
                print(f"{cpu}: {case.name}: {figure} of {case.limits[cpu]}", file=sys.stderr)
                status = 1
            if before and figure > TOLERATED * before:
                print(f"{cpu}: {case.name}: {before} -> {figure}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
