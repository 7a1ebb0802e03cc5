"""What LLVM's models of cores say of our main loops: cycles per multiply instruction, by llvm-mca.

    python scripts/bench/cycles.py [--only TEXT] [--json FILE]

Instructions say little of a core that executes in order, or of one that starts two multiplications
a cycle. Per layer of scripts/bench/kernels.py and per core: the loop with the most multiplications,
its instructions per multiplication, and its cycles per multiplication when it runs for long; beside
them ncnn's, where a tile of sums is meant. Two cores have models worth asking: Cortex-A55 (in
order) and Neoverse N1 (as wide as Cortex-A76). Exit status 1 where a loop takes more cycles than
ncnn's.

Needs llvm-mca of LLVM 19 or later (apt-get install llvm-19); memory that is further away than the
first cache is not in its models.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.graph.lower import lower_fused  # noqa: E402
from scripts.bench.kernels import LAYERS, layer_function  # noqa: E402

TURNS = 200
CORES = {"cortex-a55": 1.08, "neoverse-n1": 0.54}  # ncnn's cycles per fmla of 8 x 12 sums
MULTIPLY = re.compile(r"\s(fmla|fmul|[su]dot|usdot|[su]mmla|usmmla|[su]mlal2?|[su]mull2?)\s")
LABEL = re.compile(r"^(\.LBB\w+):")
BRANCH = re.compile(r"^\s+(?:b\.\w+|cbn?z|tbn?z)\s.*?(\.LBB\w+)$")
WORDS = re.compile(r"^\s+[a-z]")  # an instruction, not a directive


@dataclass(frozen=True, slots=True)
class Loop:
    """The instructions of an innermost loop, its branch included."""

    lines: tuple[str, ...]

    @property
    def multiplications(self) -> int:
        return sum(bool(MULTIPLY.search(line)) for line in self.lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="layers whose names contain this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    mca = find_mca()
    table = Table(title="main loops")
    columns = ("layer", "core", "multiplications", "instructions each", "cycles each", "ncnn")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    record: dict[str, dict[str, Any]] = {}
    for layer in LAYERS:
        if not layer.weights or options.only not in layer.name:
            continue
        # Of a single row, and of one filter per channel, every number is used once or a few times.
        tiled = layer.data[0] > 1 if layer.op == "dense" else layer.weights[1] > 1
        for core, limit in CORES.items():
            target = mlc.Target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={core}")
            function = lower_fused(layer_function(layer, target), target, "layer")
            loop = main_loop(mlc.build(function, target=target).assembly)
            count = loop.multiplications
            each = cycles(mca, core, loop) / count
            record[f"{layer.name} {core}"] = {
                "multiplications": count,
                "instructions_each": len(loop.lines) / count,
                "cycles_each": each,
                "limit": limit if tiled else None,
            }
            numbers = (f"{count}", f"{len(loop.lines) / count:.3f}", f"{each:.2f}")
            table.add_row(layer.name, core, *numbers, f"{limit:.2f}" if tiled else "")
    Console(width=100).print(table)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    limited = [r for r in record.values() if r["limit"] is not None]
    return int(any(r["cycles_each"] > r["limit"] for r in limited))


def find_mca() -> str:
    found = next(filter(None, map(shutil.which, ("llvm-mca-19", "llvm-mca-20", "llvm-mca"))), None)
    if found is None:
        sys.exit("llvm-mca is not here\n  try: apt-get install llvm-19")
    return found


def main_loop(assembly: str) -> Loop:
    """The innermost loop with the most multiplications."""
    labels: dict[str, int] = {}
    lines: list[str] = []
    loops: list[Loop] = []
    last = (
        0  # where the last branch back stands: a loop that begins before it is not an innermost one
    )
    for line in assembly.splitlines():
        if named := LABEL.match(line):
            labels[named[1]] = len(lines)
        elif WORDS.match(line):
            lines.append(line)
            back = BRANCH.match(line.rstrip())
            if back and back[1] in labels:
                if labels[back[1]] >= last:
                    loops.append(Loop(tuple(lines[labels[back[1]] :])))
                last = len(lines)
    return max(loops, key=lambda loop: loop.multiplications)


def cycles(mca: str, core: str, loop: Loop) -> float:
    """Cycles of a turn. Branches are left out: mca takes none."""
    code = "\n".join(line for line in loop.lines if not BRANCH.match(line.rstrip())) + "\n"
    command = [mca, "-mtriple=aarch64", f"-mcpu={core}", f"-iterations={TURNS}"]
    ended = subprocess.run(command, input=code, capture_output=True, text=True, check=True)
    total = re.search(r"Total Cycles: +(\d+)", ended.stdout)
    assert total, ended.stdout
    return int(total[1]) / TURNS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
