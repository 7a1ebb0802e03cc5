"""Links that are slow, late or frozen, over ssh and tcp: whatever moves is alive, and is right."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from mlc_rpc import Session, connect, persist, screen
from mlc_rpc.local import local_machine
from mlc_rpc.pace import LEAST_BYTES
from tests.odd.slow import Way, slow
from tests.odd.world import World
from tests.rpc.listener import Listener, descendants, wait_until

pytestmark = pytest.mark.odd
Runtime = Callable[[str], Path]
# Whichever end notices first.
LOST = "no sign of life from the board for 8 s|the board's program ended|the connection broke"
FREE_SECONDS = 10.0  # until the board has noticed that its client is gone


@contextmanager
def board(
    kind: str, bits: float, seconds: float, users: World, runtime_of: Runtime
) -> Iterator[tuple[str, bytes | None, Way, int]]:
    """A board behind a slow link: its URL, its key, the link, and the process of its server."""
    with ExitStack() as stack:
        if kind == "tcp":
            listener = stack.enter_context(Listener(runtime_of(local_machine())))
            way = stack.enter_context(slow(listener.port, bits, seconds))
            yield f"tcp://127.0.0.1:{way.port}", listener.key, way, listener.process.pid
            return
        known = users.home / ".ssh/known_hosts"
        before = known.read_text() if known.exists() else ""
        port = stack.enter_context(users.server())
        way = stack.enter_context(slow(port, bits, seconds))
        name, key, *_ = (users.folder / "host_key.pub").read_text().split()
        known.write_text(f"{before}[127.0.0.1]:{way.port} {name} {key}\n")
        yield f"ssh://bash@127.0.0.1:{way.port}", None, way, users.process
        known.write_text(before)


def sends(session: Session, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert session.get(session.put(data)) == data


@pytest.mark.parametrize("kind", ["tcp", "ssh"])
@pytest.mark.parametrize(
    ("bits", "seconds", "size"),
    [(1e6, 0.1, 400_000), (500e3, 0.3, 300_000), (160e3, 0.1, 120_000), (24e3, 0.3, 24_000)],
)
def test_a_slow_link(
    kind: str, bits: float, seconds: float, size: int, users: World, runtime_of: Runtime
) -> None:
    said: list[str] = []
    with (
        board(kind, bits, seconds, users, runtime_of) as (url, key, _, _),
        screen.shown(screen.Display(said.append)),
        connect(url, runtime_of, key=key) as session,
    ):
        began = time.monotonic()
        sends(session, size)
        took = time.monotonic() - began
        # Both ways at the link's rate, besides waiting for each other.
        assert took < 2 * (2 * size * 8 / bits) + 8, f"{took:.1f} s"
        assert session.link.pace.limit <= max(2 * bits / 8, 2 * LEAST_BYTES)
        assert session.ping() < 2 * seconds + 2, "too much is in flight"
    assert any(" s left" in text for text in said), said


@pytest.mark.parametrize("kind", ["tcp", "ssh"])
def test_a_frozen_link(kind: str, users: World, runtime_of: Runtime) -> None:
    data = np.random.default_rng(7).bytes(800_000)
    with (
        board(kind, 1e6, 0.05, users, runtime_of) as (url, key, way, _),
        connect(url, runtime_of, key=key) as session,
    ):
        threading.Timer(3, way.freeze, [20]).start()
        name, interruptions = persist(session, lambda: session.put(data))
        assert session.get(name) == data
        assert len(interruptions) <= 2, interruptions
        assert all(re.match(LOST, each.what) for each in interruptions), interruptions


CLIENT = """
import sys
from pathlib import Path
from mlc_deploy.board.runtime_files import runtime_file
from mlc_rpc import connect
with connect(sys.argv[1], runtime_file, key=bytes.fromhex(sys.argv[2]) or None) as session:
    print("begins", flush=True)
    session.put(bytes(range(256)) * 40000)
"""


@pytest.mark.parametrize("kind", ["tcp", "ssh"])
def test_a_killed_client_frees_the_board(kind: str, users: World, runtime_of: Runtime) -> None:
    with board(kind, 1e6, 0.1, users, runtime_of) as (url, key, _, server):
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, url, (key or b"").hex()], stdout=subprocess.PIPE
        )
        assert client.stdout and client.stdout.readline() == b"begins\n"

        def at_work() -> list[int]:
            return [pid for pid in descendants(server) if _is_runtime(pid)]

        time.sleep(2)
        assert at_work()
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
        client.stdout.close()
        began = time.monotonic()
        wait_until(lambda: not at_work(), "the board is still busy")
        assert time.monotonic() - began < FREE_SECONDS


def _is_runtime(pid: int) -> bool:
    try:
        return "runtime-" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
