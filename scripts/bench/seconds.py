"""Seconds of models on local:// beside onnxruntime's, on one thread, taken in turn in one run.

    python scripts/bench/seconds.py [MODEL ...] [--repeat N] [--target T] [--json FILE]

Models are those of tests/models/architectures.py; by default those that have a limit. A time is the
least of its samples, since other programs only make it longer, and samples of both are taken in
turn. The exit status is 1 where ours takes more than LIMIT times theirs.
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
from tests.models.architectures import NAMES, model_and_inputs  # noqa: E402

LIMIT = 1.2
MODELS = ("mobilenet_v1", "resnet18", "resnet50")
SAMPLE_MS = 30


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--target", default="host")
    parser.add_argument("--repeat", type=int, default=20, help="samples of each")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.models if name not in NAMES]
    if unknown:
        parser.error(f"no model '{unknown[0]}'; there are {', '.join(NAMES)}")
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
    return int(any(found["ratio"] > LIMIT for found in figures.values()))


def measure(name: str, target: str, repeat: int) -> tuple[float, float]:
    """Seconds of an inference, ours and onnxruntime's."""
    model, given = model_and_inputs(name)
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
