"""How far outputs move where integers are made of computed floats: what graph/nudge.py allows.

    python scripts/bench/nudges.py [MODEL ...] [--runs N]

Models are the trained ones of tests/quantize/trained.py (default: those that take seconds), in int8
within their budgets. Each runs on this machine. Per model, the most of N runs, in percent of the
output's largest element:

    moved     by the reference with nudged scales: graph/nudge.py bounds this by MOST
    differs   between this machine and the reference, beyond the tolerance of floats
    times     the most that `differs` is of `moved` in one run: graph/nudge.py allows TIMES
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.driver.compare import TOLERANCES  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from mlc_deploy.graph import evaluate  # noqa: E402
from mlc_deploy.graph.nudge import NUDGES, nudged, rounds_floats  # noqa: E402
from mlc_deploy.quantize.data import samples_of  # noqa: E402
from mlc_deploy.quantize.prepare import read  # noqa: E402
from mlc_rpc import Session  # noqa: E402
from tests.quantize.trained import MODELS, SLOW, Trained, quantized  # noqa: E402


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--runs", type=int, default=8)
    given = parser.parse_args(arguments)
    print(f"{'model':18}{'moved':>10}{'differs':>10}{'times':>8}")
    with mlc.connect("local://") as board:
        for name in given.models or [n for n in MODELS if n not in SLOW]:
            moved, differs, times = measured(MODELS[name], given.runs, board)
            print(f"{name:18}{moved:>9.3%}{differs:>10.3%}{times:>8.2f}", flush=True)
    return 0


def measured(trained: Trained, runs: int, board: Session) -> tuple[float, float, float]:
    """The most that outputs of floats move and differ, as shares, and the most that the second is
    of the first; zeros for a model without integers of computed floats."""
    made = quantized(trained, None)
    given = list(samples_of(read(trained.path), trained.data(), None, runs, {}, {}).runs)
    model = mlc.compile(from_onnx(made.model, {n: a.shape for n, a in given[0].items()}), "host")
    if not rounds_floats(model.reference):
        return 0.0, 0.0, 0.0
    found = np.zeros(3)
    tolerance = TOLERANCES["float32"]
    for sample in given:
        right = model.evaluate(sample)
        others = [evaluate(nudged(model.reference, f), sample, module=model.module) for f in NUDGES]
        got = mlc.deploy(model, board, sample).outputs
        for name, expected in right.items():
            if expected.dtype.kind != "f":
                continue
            largest = float(np.abs(expected).max()) or 1.0
            allowed = tolerance.relative * np.abs(expected) + tolerance.of_largest * largest
            moved = max(float(np.abs(o[name] - expected).max()) for o in others) / largest
            off = float(np.maximum(np.abs(got[name] - expected) - allowed, 0).max()) / largest
            times = off / moved if moved else np.inf if off else 0.0
            found = np.maximum(found, (moved, off, times))
    return float(found[0]), float(found[1]), float(found[2])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
