"""What compiling costs as a model repeats itself: seconds and bytes for n, 2n and 4n repetitions.

    python scripts/bench/growth.py [GRAPH ...] [--target aarch64] [--json FILE]

The graphs are those of tests/models/growth.py, each of which uses what it computes twice, so that
there are twice as many ways to its input with every repetition. Each is compiled in a process of
its own with an empty cache; seconds are processor time of that process and its workers, less what
an empty model takes, so that other programs disturb little. Besides, the size of the object, the
statements of all kernels' loops and the nodes of their expressions. The exit status is 1 where
twice as many repetitions cost more than LIMIT times the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.models.growth import GRAPHS  # noqa: E402

LIMIT = 2.3  # times the seconds, for twice as many repetitions
LINE = "{:<12}{:>8}{:>10}{:>8}{:>12}{:>12}{:>12}"
Figures = dict[str, float]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*", metavar="GRAPH", help=", ".join(GRAPHS))
    parser.add_argument("--target", default="aarch64")
    parser.add_argument("--json", type=Path, help="write the figures to FILE")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)  # one, in this process
    options = parser.parse_args(arguments)
    if options.measure:
        name, count = options.measure
        print(json.dumps(measure(name, int(count), options.target)))
        return 0
    unknown = [name for name in options.graphs if name not in GRAPHS]
    if unknown:
        parser.error(f"no graph '{unknown[0]}'; there are {', '.join(GRAPHS)}")
    print(LINE.format("graph", "times", "seconds", "ratio", "object", "statements", "nodes"))
    found: dict[str, dict[int, Figures]] = {}
    slow = False
    for name in options.graphs or GRAPHS:
        found[name] = {}
        least = GRAPHS[name].repeat
        before = 0.0
        for count in (least, 2 * least, 4 * least):
            figures = found[name][count] = apart(name, count, options.target)
            ratio = figures["seconds"] / before if before else 0.0
            slow |= ratio > LIMIT
            before = figures["seconds"]
            print(LINE.format(
                name, count, f"{before:.2f}", f"{ratio:.2f}" if ratio else "",
                *(int(figures[key]) for key in ("object", "statements", "nodes")),
            ), flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(slow)


def apart(name: str, count: int, target: str) -> Figures:
    """The figures of one compilation in a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", name, str(count), "--target", target],
            env={**os.environ, "MLC_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            check=True,
        )
    figures: Figures = json.loads(done.stdout)
    return figures


def measure(name: str, count: int, target: str) -> Figures:
    """Seconds of processor time, bytes of the object, and the loops' size."""
    import mlc_deploy as mlc
    from mlc_deploy.frontend import from_onnx
    from mlc_deploy.ir import statements, walk

    def seconds() -> float:
        return sum(os.times()[:4])

    mlc.compile(from_onnx(GRAPHS["doubled"].make(1)), target)  # what is loaded once
    model = GRAPHS[name].make(count)
    begin = seconds()
    compiled = mlc.compile(from_onnx(model), target)
    took = seconds() - begin
    bodies = [k.body.body for k in compiled.library.kernels]
    return {
        "seconds": took,
        "object": len(compiled.object_bytes),
        "statements": sum(1 for body in bodies for _ in statements(body)),
        "nodes": sum(1 for body in bodies for _ in walk(body)),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
