"""What threads bring on this machine: times of models on local://, by number of threads.

    python scripts/bench/threads.py [MODEL ...] [--threads 1,2,4] [--repeat N]

Models are those of tests/models/architectures.py. A time is the least of its samples, since other
programs only make it longer; samples of the numbers of threads are taken in turn, so that all of
them see the same disturbance. Beside each time is how many times faster it is than one thread, and
at the end how many kernels have no more than one task.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlc_deploy as mlc  # noqa: E402
from mlc_deploy.frontend import from_onnx  # noqa: E402
from tests.models.architectures import NAMES, model_and_inputs  # noqa: E402

SAMPLE_MS = 30


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["mobilenet_v1"], metavar="MODEL")
    parser.add_argument("--threads", default="1,2", help="numbers of threads; default: 1,2")
    parser.add_argument("--repeat", type=int, default=20, help="samples of each")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.models if name not in NAMES]
    if unknown:
        parser.error(f"no model '{unknown[0]}'; there are {', '.join(NAMES)}")
    counts = [int(text) for text in options.threads.split(",")]
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before")
    for name in options.models:
        print(measure(name, counts, options.repeat), flush=True)
    return 0


def measure(name: str, counts: Sequence[int], repeat: int) -> str:
    model, given = model_and_inputs(name)
    with mlc.connect("local://") as board:
        module = board.load(mlc.compile(from_onnx(model), "host"))
        best = dict.fromkeys(counts, float("inf"))
        for _ in range(repeat):
            for threads in counts:
                timing = module.time(given, number=1, min_repeat_ms=SAMPLE_MS, threads=threads)
                best[threads] = min(best[threads], *timing.samples)
        tasks = [kernel.tasks for kernel in module.metadata.kernels.values()]
    times = (f"{n}: {best[n] * 1e3:.2f} ms (x{best[counts[0]] / best[n]:.2f})" for n in counts)
    serial = f"{tasks.count(1)} of {len(tasks)} kernels serial"
    return f"{name:<20} {'  '.join(times)}  {serial}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
