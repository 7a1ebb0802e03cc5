"""Depthwise convolutions of int8 beside those of float32 on this x86-64, on one thread.

    python scripts/bench/depthwise.py [--only TEXT] [--rounds N] [--json FILE]

Layers are those of kernels.py, as a network has them: floats end in a bias and ReLU6, int8 in a
bias and a requantization. A row per layer:

    executed   instructions of each, built for AVX2, which qemu-x86_64 has; our plugin counts them
    seconds    the least sample of each on local://, built for this machine; samples alternate,
               since other programs make a sample longer and never shorter

Ratios are int8's share of float32's. Exit status 1 where int8 takes longer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.graph.lower import KernelSource, lower_kernel  # noqa: E402
from mlc_rpc import Session  # noqa: E402
from scripts.bench.kernels import LAYERS, Layer, layer_function  # noqa: E402
from scripts.bench.predicted_seconds import emulated  # noqa: E402

DTYPES = ("float32", "int8")
COUNTED = "x86_64 -mcpu=haswell"  # QEMU knows no AVX-512
SAMPLE_MS = 5


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="layers whose names contain it")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    layers = [n for n in LAYERS if n.name.startswith("depthwise") and given.only in n.name]
    print(f"{'layer':28}{'executed':>22}{'ratio':>7}{'µs':>18}{'ratio':>7}")
    record: dict[str, dict[str, Any]] = {}
    with mlc.connect("local://") as here, emulated(()) as counting:
        for layer in layers:
            counts = [Built(layer, dtype, COUNTED).count(counting) for dtype in DTYPES]
            times = least(here, [Built(layer, dtype, "host") for dtype in DTYPES], given.rounds)
            ratios = counts[1] / counts[0], times[1] / times[0]
            record[layer.name] = {"executed": counts, "seconds": times, "ratios": ratios}
            both = f"{counts[0]:,} {counts[1]:,}", f"{times[0] * 1e6:.1f} {times[1] * 1e6:.1f}"
            print(f"{layer.name:28}{both[0]:>22}{ratios[0]:>7.2f}{both[1]:>18}{ratios[1]:>7.2f}",
                  flush=True)  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(of["ratios"][1] > 1 for of in record.values()))


class Built:
    """A layer's kernel for a target."""

    def __init__(self, layer: Layer, dtype: str, named: str) -> None:
        target = mlc.Target(named)
        function = layer_function(layer, target, dtype, activated=True)
        self.func = lower_kernel(KernelSource("layer", function), target)
        self.library = mlc.build(self.func, target=target)

    def loaded(self, board: Session) -> tuple[Any, list[Any]]:
        """The function on a board, and what it is called with."""
        arrays = [
            np.zeros([int(n) for n in b.shape], b.dtype)  # type: ignore[arg-type]
            for b in self.func.buffers
        ]
        return board.load(self.library)["layer"], [board.tensor(a) for a in arrays]

    def count(self, board: Session) -> int:
        function, given = self.loaded(board)
        (counts,) = function.profile(*given).counts
        return int(counts.total)


def least(board: Session, kernels: Sequence[Built], rounds: int) -> list[float]:
    """Seconds of a call of each."""
    loaded = [kernel.loaded(board) for kernel in kernels]
    best = [float("inf")] * len(loaded)
    for _ in range(rounds):
        for n, (function, given) in enumerate(loaded):
            timer = function.time_evaluator(number=1, min_repeat_ms=SAMPLE_MS)
            best[n] = min(best[n], *timer(*given).samples)
    return best


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
