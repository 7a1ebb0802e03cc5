"""What a session costs beside its data: memory of both sides, and time until it answers."""

from __future__ import annotations

import mmap
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mlc_rpc import connect
from mlc_rpc.process import ProcessTransport

BLOB_BYTES = 256 << 20
BESIDE_BYTES = 16 << 20
ANSWER_SECONDS = 0.05
TRIES = 20  # of which one must be undisturbed by other programs


def private_memory(pid: int | str) -> int:
    """Bytes of a process that are no file's and in no memory that it shares: a blob's are both."""
    match = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match
    return 1024 * int(match[1])


def test_an_upload_takes_no_memory_beside_the_blob(
    runtime_of: Callable[[str], Path], tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    with weights.open("wb+") as file:
        file.truncate(BLOB_BYTES)
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    done = threading.Event()
    most: dict[int | str, int] = {}
    with connect("local://", runtime_of) as session:
        transport = session.link.transport
        assert isinstance(transport, ProcessTransport)
        session.put(b"a small one first")
        processes = ("self", transport._child.pid)
        before = {pid: private_memory(pid) for pid in processes}

        def watch() -> None:
            while not done.wait(0.005):
                for pid in processes:
                    most[pid] = max(most.get(pid, 0), private_memory(pid))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            name = session.put(memoryview(whole))
        finally:
            done.set()
            watching.join()
        assert session.has(name)
        for pid in processes:
            assert most[pid] - before[pid] < BESIDE_BYTES
        assert private_memory(transport._child.pid) - before[transport._child.pid] < 1 << 20


def test_the_first_answer_comes_soon(runtime_of: Callable[[str], Path]) -> None:
    took: list[float] = []
    while len(took) < TRIES and (not took or min(took) >= ANSWER_SECONDS):
        began = time.perf_counter()
        with connect("local://", runtime_of) as session:
            session.ping()
            took.append(time.perf_counter() - began)
    assert min(took) < ANSWER_SECONDS
