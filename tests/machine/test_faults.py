"""Everything that happens to boards, in everything that is done with them: how it ends, what is
said and when, how it goes on, and that nothing is left. docs/explanation/faults.md tells users the
same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mlc_deploy as mlc
from mlc_rpc import Session, errors
from tests.machine.machine import Machine
from tests.machine.work import METHODS, WORK
from tests.rpc.listener import wait_until

pytestmark = pytest.mark.boards

ROOT = Path(__file__).resolve().parents[2]
STRIKE_SECONDS = 0.7  # after the first step of the work
NOTICED_SECONDS = 12.0  # 8 of silence, a tick of the heartbeat, and what is on its way
ENDED_SECONDS = 10.0  # after which a board has ended the session of a dead client
BACK_SECONDS = 30.0  # from the moment that the board can be reached to the end of the next step
SILENCE = "no sign of life from the board for 8 s"


@dataclass(frozen=True)
class Fault:
    """`strike` makes it happen, `mend` ends it; `says` is what the caller is told, as a pattern."""

    strike: Callable[[Machine], None]
    mend: Callable[[Machine], None]
    says: str
    lasts: float = 0.0  # seconds from the one to the other, at least
    rebooted: bool = False


FAULTS = {
    "link down 15 s": Fault(lambda m: m.link(False), lambda m: m.link(True), SILENCE, 15),
    "board hung": Fault(Machine.hang, Machine.go_on, SILENCE),
    "reset": Fault(
        Machine.reset, Machine.await_boot, f"{SILENCE}|the board's program ended", rebooted=True
    ),
    "power loss": Fault(
        Machine.power_off, Machine.power_on, "the board's program ended|the connection broke",
        rebooted=True,
    ),
}  # fmt: skip


@contextmanager
def nothing_left(board: Machine) -> Iterator[float]:
    """Neither here, of descriptors and threads, nor there, of processes, memory, parts of blobs.

    Gives the seconds that everything takes longer where this machine has other work as well: some
    times what the simplest command on the board takes, a third of a second where it has not.
    """

    def here() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    board.shell("true")  # what the first connection leaves for all
    began = time.monotonic()
    board.shell("true")
    slack = 5 * (time.monotonic() - began)
    before = here()
    yield slack
    wait_until(lambda: left_there(board) == [], f"the board keeps {left_there(board)}")
    wait_until(lambda: here() <= before, f"the client keeps {before} -> {here()}")


def left_there(board: Machine) -> list[str]:
    found = board.shell(
        "ps w | grep '[r]untime-' | grep -v 'grep\\|sh -c'; ls -A /dev/shm;"
        "ls -A /root/.cache/mlc-runtime | grep part"
    )
    return found.split("\n")[:-1]


@dataclass(frozen=True)
class Ending:
    """What the work ended with, when it was struck (of time.monotonic()), the seconds from then
    to that, and the steps before."""

    error: errors.RpcError
    struck: float
    seconds: float
    steps: int


def until_lost(steps: Iterator[None], strike: Callable[[], None]) -> Ending:
    next(steps)
    done = 1
    struck: list[float] = []

    def act() -> None:
        struck.append(time.monotonic())
        strike()

    threading.Timer(STRIKE_SECONDS, act).start()
    with pytest.raises(errors.Lost) as caught:
        for _ in steps:
            done += 1
    return Ending(caught.value, struck[0], time.monotonic() - struck[0], done)


def do(session: Session, work: str, steps: int) -> None:
    for _, _ in zip(range(steps), WORK[work](session), strict=False):
        pass


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("name", FAULTS)
def test_lost_and_back(board: Machine, name: str, work: str) -> None:
    fault = FAULTS[name]
    with nothing_left(board) as slack, mlc.connect(board.url) as session:
        boot = session.device.boot
        began = time.monotonic()
        ended = until_lost(WORK[work](session), lambda: fault.strike(board))
        assert ended.seconds < NOTICED_SECONDS + slack
        assert re.match(fault.says, ended.error.what), ended.error.what
        assert ended.error.board == board.url and ended.error.method in METHODS[work]
        assert "connect again" in ended.error.attempt
        time.sleep(max(fault.lasts - (time.monotonic() - began), 0))
        fault.mend(board)
        reachable = time.monotonic()
        session.reconnect()
        do(session, work, 1)
        assert time.monotonic() - reachable < BACK_SECONDS + slack
        assert (session.device.boot != boot) == fault.rebooted
        do(session, work, ended.steps + 1)  # that of an upload which the fault broke off


@pytest.mark.parametrize("work", WORK)
def test_a_link_that_is_down_for_good(board: Machine, work: str) -> None:
    with nothing_left(board) as slack, mlc.connect(board.url) as session:
        # Notes when the session's last process is gone, by the board's clock.
        asked = time.monotonic()
        uptime = float(
            board.shell(
                "cut -d' ' -f1 /proc/uptime;"
                "(while ps w | grep '[r]untime-' | grep -qv 'sh -c'; do sleep 1; done;"
                "cut -d' ' -f1 /proc/uptime > /tmp/ended) < /dev/null > /dev/null 2>&1 &"
            )
        )
        ended = until_lost(WORK[work](session), lambda: board.link(up=False))
        assert ended.error.what == SILENCE and ended.error.method in METHODS[work]
        assert ended.seconds < NOTICED_SECONDS + slack
        with pytest.raises(errors.Unreachable) as caught:
            session.reconnect(patience=6)
        assert caught.value.what.startswith("the board did not come back in 6 s: ")
        assert caught.value.board == board.url and caught.value.attempt
        board.link(up=True)
        there = float(board.shell("cat /tmp/ended; rm /tmp/ended")) - uptime
        assert there - (ended.struck - asked) < ENDED_SECONDS + slack
        session.reconnect()
        do(session, work, ended.steps + 1)


@pytest.mark.parametrize("work", WORK)
def test_a_client_that_is_killed(board: Machine, work: str) -> None:
    with nothing_left(board) as slack:
        client = subprocess.Popen(
            [sys.executable, "-m", "tests.machine.work", board.url, work],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert client.stdout
        with client.stdout:
            assert client.stdout.readline() == b"a step\n"
            time.sleep(STRIKE_SECONDS)
            client.kill()
            output = client.stdout.read().decode()
            client.wait()
        killed, steps = time.monotonic(), 1 + output.count("a step")
        while any("runtime-" in line for line in left_there(board)):
            late = time.monotonic() - killed
            assert late < ENDED_SECONDS + slack, "its session is still there"
        with mlc.connect(board.url) as session:
            began = time.monotonic()
            do(session, work, 1)
            assert time.monotonic() - began < BACK_SECONDS + slack
            do(session, work, steps + 1)


@pytest.mark.parametrize("work", WORK)
def test_a_disk_that_fills(board: Machine, work: str) -> None:
    def fill() -> None:
        board.shell(
            "for n in 32 16 8 4 2 1; do fallocate -l ${n}m /disk/full$n; done;"
            "head -c 4000000 /dev/zero > /disk/full"
        )

    with nothing_left(board), mlc.connect(board.url) as session:
        steps = WORK[work](session)
        next(steps)
        filling = threading.Timer(STRIKE_SECONDS, fill)
        filling.start()
        while filling.is_alive():
            next(steps)
        next(steps)
        assert "100%" in board.shell("df /disk")


def lost_while_timing(
    board: Machine, session: Session, strike: Callable[[], None]
) -> tuple[dict[str, Any], list[int]]:
    """The record of a deployment that is struck while it is timed, and what each upload sent."""
    sent: list[int] = []
    stages: list[str] = []

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        stages.append(name)
        before = session.sent_bytes
        if name == "timing" and stages.count(name) == 1:
            board.shell("sync")
            strike()
        yield
        if name == "upload":
            sent.append(session.sent_bytes - before)

    model = mlc.compile(ROOT / "host/mlc_deploy/models/digits_cnn.onnx", "aarch64")
    done = mlc.deploy(model, session, stage=stage)
    assert done.ok
    record: dict[str, Any] = json.loads(json.dumps(done.record()))
    return record, sent


@pytest.mark.parametrize("name", ["reset", "link down 15 s"])
def test_a_measurement_is_repeated_and_the_record_says_so(board: Machine, name: str) -> None:
    fault = FAULTS[name]
    mending = threading.Timer(max(fault.lasts, 0.1), fault.mend, (board,))

    def strike() -> None:
        fault.strike(board)
        mending.start()

    with nothing_left(board), mlc.connect(board.url) as session:
        record, (first, second) = lost_while_timing(board, session, strike)
        mending.join()
    (interruption,) = record["interruptions"]
    assert interruption["rebooted"] is fault.rebooted
    assert re.match(fault.says, interruption["what"]) and interruption["method"] == "time"
    assert 0 < interruption["seconds"] < 60
    assert second < first - 20_000, "object and weights are in the cache"
