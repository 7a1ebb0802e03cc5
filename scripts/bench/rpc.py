"""How fast the way to a board is: ping, and tensors up and down.

    python scripts/bench/rpc.py [--board URL]... [--megabytes 256] [--json FILE]

Prints a table; the JSON has the same figures. Without --board, these are local://, and over the
loopback interface tcp:// with its record layer, to a runtime that this starts, and ssh://, to an
OpenSSH server that this starts, where there is one. The medians are what the targets are set for:
ping below 100 µs and 1 GB/s up and down on local://, 300 MB/s on tcp://, and on ssh:// uploads at
80 % of paramiko's sftp.put over a connection like ours, which is measured in turns with them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import paramiko

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mlc_deploy.board.runtime_files import runtime_file
from mlc_rpc import Session, connect
from mlc_rpc.local import local_machine
from mlc_rpc.ssh_client import connect_client
from mlc_rpc.ssh_config import resolve
from mlc_rpc.transport import SshUrl, parse_url
from tests.rpc import sshd

PINGS = 2000
ROUNDS = 7
TCP, SSH = "tcp://", "ssh://"  # over the loopback interface
SSH_MEGABYTES = 64  # which take a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--board", action="append", metavar="URL")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = {}
    for board in options.board or ("local://", TCP, *((SSH,) if sshd.is_here() else ())):
        if board == SSH:
            figures[board] = measure_ssh(min(options.megabytes, SSH_MEGABYTES))
        else:
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
    if board != TCP:
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


def measure(
    session: Session, megabytes: int, other: Callable[[], object] | None = None
) -> dict[str, dict[str, float]]:
    """Median, best and worst of each figure; of sending the bytes by `other` as well, in turns."""
    array = np.random.default_rng(0).integers(0, 255, megabytes * 1_000_000, np.uint8)
    tensor = session.tensor(array)
    if not np.array_equal(tensor.numpy(), array):
        sys.exit("the tensor came back changed")
    session.ping()
    pings = [session.ping() * 1e6 for _ in range(PINGS)]
    ways: dict[str, Callable[[], object]] = {
        "upload, MB/s": lambda: tensor.write(array),
        "download, MB/s": lambda: tensor.numpy(),
    }
    if other:
        ways["sftp.put, MB/s"] = other
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, work in ways.items():
            start = time.perf_counter()
            work()
            rates[name].append(megabytes / (time.perf_counter() - start))
    return {"ping, µs": summary(pings), **{name: summary(each) for name, each in rates.items()}}


def measure_ssh(megabytes: int) -> dict[str, dict[str, float]]:
    """As measure, and what sftp.put does with as many bytes."""
    with tempfile.TemporaryDirectory() as folder, sshd.running(Path(folder)) as server:
        os.environ["HOME"] = str(server.home)
        os.environ.pop("SSH_AUTH_SOCK", None)
        server.trust()
        url = parse_url(server.url)
        assert isinstance(url, SshUrl)
        source = Path(folder) / "source"
        source.write_bytes(np.random.default_rng(0).bytes(megabytes * 1_000_000))
        shell = connect_client(resolve(url), 20)
        try:
            with (
                connect(server.url, runtime_file) as session,
                paramiko.SFTPClient.from_transport(shell._transports[-1]) as sftp,
            ):
                return measure(session, megabytes, lambda: sftp.put(str(source), f"{folder}/copy"))
        finally:
            shell.close()


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


if __name__ == "__main__":
    main()
