"""How fast the way to a board is: ping, and tensors up and down.

    python scripts/bench/rpc.py [--board local://] [--megabytes 256] [--json FILE]

Prints a table; the JSON has the same figures. The medians are what the targets are set for:
ping below 200 µs and uploads above 500 MB/s on local://.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mlc_deploy.runtime_files import runtime_file
from mlc_rpc import Session, connect

PINGS = 2000
ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--board", default="local://")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with connect(options.board, runtime_file) as session:
        figures = measure(session, options.megabytes)
    for name, values in figures.items():
        cells = "  ".join(f"{key} {value:>9.1f}" for key, value in values.items())
        print(f"{name:<16}{cells}")
    if options.json:
        record = {
            "board": options.board,
            "host": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "megabytes": options.megabytes,
            "figures": figures,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def measure(session: Session, megabytes: int) -> dict[str, dict[str, float]]:
    """Median, best and worst of each figure."""
    array = np.random.default_rng(0).integers(0, 255, megabytes * 1_000_000, np.uint8)
    tensor = session.tensor(array)
    if not np.array_equal(tensor.numpy(), array):
        sys.exit("the tensor came back changed")
    session.ping()
    return {
        "ping, µs": summary([session.ping() * 1e6 for _ in range(PINGS)]),
        "upload, MB/s": summary(rates(megabytes, lambda: tensor.write(array))),
        "download, MB/s": summary(rates(megabytes, lambda: tensor.numpy())),
    }


def rates(megabytes: int, work: Callable[[], object]) -> list[float]:
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return [megabytes / each for each in seconds]


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


if __name__ == "__main__":
    main()
