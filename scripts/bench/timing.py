"""What timing each layer does to the time of the whole, and how far layers add up to it.

    python scripts/bench/timing.py [--board URL] [--rounds N] [--layers N] [--json FILE]

Chains of one matrix product on layers of several sizes, from a microsecond on. Per size: the whole
model's time; the same while each layer is timed (`disturbed`, a share of it); and the sum of the
layers (`sum`, a share of it too). Rounds alternate, and the least of all samples stands for each,
since other programs make a sample longer and never shorter. Under 2 % is what layers are to cost.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import mlc_deploy as mlc
from mlc_deploy.board.connect import target_of
from mlc_deploy.graph import BlockBuilder, Function
from mlc_rpc import RemoteModule, Session

SIZES = (16, 32, 64, 128, 256)
LAYERS = 20
REPEAT = 400  # short samples, some of which nothing disturbs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--board", default="local://")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = []
    with mlc.connect(options.board) as board:
        for size in SIZES:
            found = measure(board, size, options.layers, options.rounds)
            cells = "  ".join(f"{name} {value:9.2f}" for name, value in found.items())
            print(f"{size:>4} x {size:<4} {cells}", flush=True)
            figures.append({"size": size, **found})
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(board: Session, size: int, layers: int, rounds: int) -> dict[str, float]:
    """Microseconds of a layer, and percent."""
    module = board.load(mlc.compile(chain(size, layers), target_of(board.device)))
    x = {"x": np.random.default_rng(0).uniform(-1, 1, (size, size)).astype(np.float32)}
    whole, disturbed, total = (
        min(values) for values in zip(*(one_round(module, x) for _ in range(rounds)), strict=True)
    )
    module.close()
    return {
        "layer, µs": whole / layers * 1e6,
        "disturbed, %": 100 * (disturbed / whole - 1),
        "sum, %": 100 * total / whole,
    }


def one_round(module: RemoteModule, x: dict[str, np.ndarray]) -> tuple[float, float, float]:
    """Seconds: of the whole, of the whole while layers are timed, and of all layers together."""
    whole = module.time(x, number=1, repeat=REPEAT, min_repeat_ms=1)
    each = module.time(x, number=1, repeat=REPEAT, min_repeat_ms=1, layers=True)
    return min(whole.samples), min(each.samples), min(map(sum, each.layers))


def chain(size: int, layers: int) -> Function:
    """x @ w @ w ... with weights that keep numbers within bounds."""
    builder = BlockBuilder("main")
    x = builder.param("x", (size, size), "float32")
    weight = np.random.default_rng(1).uniform(-1, 1, (size, size)).astype(np.float32) / size
    for _ in range(layers):
        x = builder.emit("matmul", x, weight)
    return builder.finish([x], ["y"])


if __name__ == "__main__":
    main()
