"""What a session costs beside its data: memory of both sides, and time until it answers."""

from __future__ import annotations

import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from mlc_rpc import Session, connect
from mlc_rpc.local import local_machine
from mlc_rpc.process import ProcessTransport
from tests.rpc.listener import Listener, descendants
from tests.rpc.sshd import WHY_NOT, Server, is_here

Runtime = Callable[[str], Path]
Way = Callable[[Runtime, pytest.FixtureRequest], AbstractContextManager[tuple[Session, int]]]

BESIDE_BYTES = 16 << 20
ANSWER_SECONDS = 0.05
TRIES = 100  # of which one must be undisturbed by other programs


def private_memory(pid: int | str) -> int:
    """Bytes of a process that are no file's and in no memory that it shares: a blob's are both."""
    match = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match
    return 1024 * int(match[1])


@contextmanager
def local(runtime_of: Runtime, request: pytest.FixtureRequest) -> Iterator[tuple[Session, int]]:
    with connect("local://", runtime_of) as session:
        transport = session.link.transport
        assert isinstance(transport, ProcessTransport)
        yield session, transport._child.pid


@contextmanager
def tcp(runtime_of: Runtime, request: pytest.FixtureRequest) -> Iterator[tuple[Session, int]]:
    with (
        Listener(runtime_of(local_machine())) as board,
        connect(board.url, runtime_of, key=board.key) as session,
    ):
        yield session, descendants(board.process.pid)[0]  # and its worker


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def ssh(runtime_of: Runtime, request: pytest.FixtureRequest) -> Iterator[tuple[Session, int]]:
    if not is_here():
        pytest.skip(WHY_NOT)
    server: Server = request.getfixturevalue("server")
    server.trust()
    with connect(server.url, runtime_of) as session:
        runtimes = {
            pid
            for pid in descendants(server.process)
            if "runtime-" in os.readlink(f"/proc/{pid}/exe")
        }
        (process,) = (pid for pid in runtimes if _parent(pid) not in runtimes)  # not its workers
        yield session, process


@pytest.mark.parametrize("megabytes", [96, pytest.param(1024, marks=pytest.mark.soak)])
@pytest.mark.parametrize("way", [local, tcp, ssh])
def test_an_upload_takes_no_memory_beside_the_blob(
    way: Way, megabytes: int, runtime_of: Runtime, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    weights = tmp_path / "weights"
    with weights.open("wb+") as file:
        file.truncate(megabytes << 20)
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    done = threading.Event()
    most: dict[int | str, int] = {}
    with way(runtime_of, request) as (session, board):
        session.put(b"a small one first")
        before: dict[int | str, int] = {pid: private_memory(pid) for pid in ("self", board)}

        def watch() -> None:
            while not done.wait(0.005):
                for pid in before:
                    most[pid] = max(most.get(pid, 0), private_memory(pid))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            name = session.put(memoryview(whole))
        finally:
            done.set()
            watching.join()
        assert session.has(name)
        for pid, bytes_before in before.items():
            assert most[pid] - bytes_before < BESIDE_BYTES
        assert private_memory(board) - before[board] < 1 << 20


def test_the_first_answer_comes_soon(runtime_of: Callable[[str], Path]) -> None:
    took: list[float] = []
    while len(took) < TRIES and (not took or min(took) >= ANSWER_SECONDS):
        began = time.perf_counter()
        with connect("local://", runtime_of) as session:
            session.ping()
            took.append(time.perf_counter() - began)
    assert min(took) < ANSWER_SECONDS
