"""How fast the way to a board is: ping, and tensors up and down.

    python scripts/bench/rpc.py [--board URL]... [--megabytes 256] [--json FILE]

Prints a table; the JSON has the same figures. Without --board, these are local://, and tcp:// with
its record layer over the loopback interface, to a runtime that this starts. The medians are what
the targets are set for: ping below 100 µs and 1 GB/s up and down on local://, 300 MB/s on tcp://.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mlc_deploy.runtime_files import runtime_file
from mlc_rpc import Session, connect
from mlc_rpc.local import local_machine

PINGS = 2000
ROUNDS = 7
LOOPBACK = "tcp://"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--board", action="append", metavar="URL")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = {}
    for board in options.board or ("local://", LOOPBACK):
        with open_board(board) as session:
            figures[board] = measure(session, options.megabytes)
        for name, values in figures[board].items():
            cells = "  ".join(f"{key} {value:>9.1f}" for key, value in values.items())
            print(f"{board:<12}{name:<16}{cells}", flush=True)
    if options.json:
        record = {
            "host": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "megabytes": options.megabytes,
            "figures": figures,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


@contextmanager
def open_board(board: str) -> Iterator[Session]:
    if board != LOOPBACK:
        with connect(board, runtime_file) as session:
            yield session
        return
    key = secrets.token_bytes(32)
    command = [str(runtime_file(local_machine())), "--listen", "0", "--key-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as listener:
        assert listener.stdin and listener.stderr
        listener.stdin.write(key)
        listener.stdin.close()
        address = listener.stderr.readline().decode().split()[-1]
        try:
            with connect(f"tcp://{address}", runtime_file, key=key) as session:
                yield session
        finally:
            listener.kill()


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
