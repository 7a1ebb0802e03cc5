"""The memory budget: of one session, and of all that one program serves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from mlc_deploy.board.runtime_files import runtime_file
from mlc_rpc import OutOfMemory, Session, connect
from mlc_rpc.local import local_machine
from mlc_rpc.process import ProcessTransport
from tests.rpc.listener import Listener, children, wait_until
from tests.runtime.board import X, module_of

MIB = 1 << 20
PROGRAM = runtime_file(local_machine())


@pytest.fixture
def board() -> Iterator[Listener]:
    with Listener(PROGRAM, "--memory", "64M") as listener:
        yield listener


def joined(stack: ExitStack, board: Listener) -> Session:
    return stack.enter_context(connect(board.url, runtime_file, key=board.key))


def refusal(session: Session, size: int) -> str:
    with pytest.raises(OutOfMemory) as full:
        session.empty((size,), "uint8")
    return str(full.value)


def test_sessions_share_it(board: Listener) -> None:
    with ExitStack() as stack:
        one, other = joined(stack, board), joined(stack, board)
        held = one.empty((40 * MIB,), "uint8")
        data = np.random.default_rng(1).bytes(3 * MIB)
        other.put(data)
        assert re.fullmatch(
            rf"a tensor of {30 * MIB} bytes does not fit the board's memory budget of {64 * MIB} "
            rf"bytes: this session uses {3 * MIB}, 127\.0\.0\.1:\d+ uses {40 * MIB}\n"
            r"  on:  tcp://127\.0\.0\.1:\d+, method tensor\.new\n"
            r"  try: free tensors and blobs that are not needed, end other sessions, or a smaller "
            r"model",
            refusal(other, 30 * MIB),
        )
        with pytest.raises(
            OutOfMemory, match=r"a blob of .* does not fit the board's memory budget"
        ):
            other.put(bytes(30 * MIB))
        assert other.empty((20 * MIB,), "uint8").nbytes == 20 * MIB
        assert "memory budget" in refusal(one, 2 * MIB)
        held.close()
        assert one.empty((30 * MIB,), "uint8").nbytes == 30 * MIB


@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_what_a_session_had_is_there_for_others_when_it_ends(board: Listener, how: str) -> None:
    with ExitStack() as stack:
        other = joined(stack, board)
        with ExitStack() as inner:
            (before,) = children(board.process.pid)
            one = joined(inner, board)
            held = one.empty((60 * MIB,), "uint8")
            one.load(module_of("add64", machine=local_machine()))  # its worker gives nothing back
            assert "memory budget" in refusal(other, 10 * MIB)
            (process,) = set(children(board.process.pid)) - {before}
            if how == "is killed":
                os.kill(process, signal.SIGKILL)
                wait_until(lambda: process not in children(board.process.pid), "it lives on")
                held._open = False
                one.link.close()
        wait_until(lambda: process not in children(board.process.pid), "it lives on")
        assert other.empty((60 * MIB,), "uint8").nbytes == 60 * MIB


def test_more_sessions_than_are_named(board: Listener) -> None:
    with ExitStack() as stack:
        sessions = [joined(stack, board) for _ in range(7)]
        held = [session.empty((8 * MIB,), "uint8") for session in sessions]
        told = refusal(sessions[-1], 9 * MIB)
        assert told.count(f"uses {8 * MIB}") == 4, "its own and three others'"
        assert f", 3 more {24 * MIB}\n" in told
        assert len(held) == 7


def test_a_worker_that_ends_gives_nothing_back_that_is_not_its_own(board: Listener) -> None:
    """It is a copy of the process that has taken the memory."""
    with ExitStack() as stack:
        session = joined(stack, board)
        kept = session.tensor(np.resize(X, 10 * MIB))
        module = session.load(module_of("wild", "add64", machine=local_machine()))
        scratch = session.tensor(np.zeros(64, np.uint8))
        for _ in range(3):
            with pytest.raises(Exception, match="SIGSEGV"):
                module["wild"](scratch)
        assert kept.nbytes == 40 * MIB
        assert "memory budget" in refusal(session, 24 * MIB)


@pytest.mark.parametrize("size", ["", "0", "12T", "x", "-1", "1.5G", "99999999999999999999", "M"])
def test_what_is_no_size_is_refused(size: str) -> None:
    done = subprocess.run([PROGRAM, "--memory", size], input=b"", capture_output=True)
    assert done.returncode == 2 and b"--memory BYTES" in done.stderr


@pytest.mark.parametrize(
    ("text", "size"), [("1000000", 10**6), ("900K", 900 << 10), ("2M", 2 * MIB)]
)
def test_one_session_alone(text: str, size: int) -> None:
    command = [str(PROGRAM), "--memory", text]
    transport = ProcessTransport("local://", command, tempfile.TemporaryDirectory())
    with Session(transport) as session:
        told = refusal(session, size + 1)
        assert f"of {size} bytes: this session uses 0\n" in told and "other sessions" not in told
        assert session.empty((size,), "uint8").nbytes == size
