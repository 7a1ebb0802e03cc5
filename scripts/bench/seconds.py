"""Seconds of models on local:// beside onnxruntime's, on one thread, taken in turn in one run.

    python scripts/bench/seconds.py [MODEL ...] [--repeat N] [--target T] [--json FILE]

Models are those of scripts/bench/models.py; by default those of LIMITS. A time is the least of its
samples, since other programs only make it longer, and samples of both are taken in turn. The exit
status is 1 where ours takes more than its limit of theirs, or than LIMIT where it has none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import onnxruntime  # noqa: E402

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from scripts.bench.models import EVERY, loaded  # noqa: E402

LIMIT = 1.2
LIMITS = {  # of what onnxruntime takes
    "resnet50": 0.9, "mobilenet_v2": 0.9, "minilm": 0.9,
    "resnet50_int8": 1.0, "mobilenet_v2_int8": 1.0,
}  # fmt: skip
SAMPLE_MS = 30


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=[*LIMITS], metavar="MODEL")
    parser.add_argument("--target", default="host")
    parser.add_argument("--repeat", type=int, default=20, help="samples of each")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.models if name not in EVERY]
    if unknown:
        parser.error(f"no model '{unknown[0]}'; there are {', '.join(EVERY)}")
    print(f"onnxruntime {onnxruntime.__version__}, load {os.getloadavg()[0]:.1f} before")
    print(f"{'model':<20}{'ours':>12}{'onnxruntime':>14}{'ratio':>8}")
    figures: dict[str, dict[str, float]] = {}
    for name in options.models:
        ours, theirs = measure(name, options.target, options.repeat)
        figures[name] = {"ours_s": ours, "onnxruntime_s": theirs, "ratio": ours / theirs}
        print(
            f"{name:<20}{ours * 1e3:>9.2f} ms{theirs * 1e3:>11.2f} ms{ours / theirs:>8.2f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return int(any(of["ratio"] > LIMITS.get(name, LIMIT) for name, of in figures.items()))


def measure(name: str, target: str, repeat: int) -> tuple[float, float]:
    """Seconds of an inference, ours and onnxruntime's."""
    model, given = loaded(name)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    best, other = float("inf"), float("inf")
    with mlc.connect("local://") as board:
        module = board.load(mlc.compile(from_onnx(model), target))
        session.run(None, given)
        for _ in range(repeat):
            timing = module.time(given, number=1, min_repeat_ms=SAMPLE_MS, threads=1)
            best = min(best, *timing.samples)
            ends = time.perf_counter() + SAMPLE_MS / 1e3
            while (began := time.perf_counter()) < ends:
                session.run(None, given)
                other = min(other, time.perf_counter() - began)
    return best, other


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
