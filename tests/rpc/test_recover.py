"""A board that comes back: the session goes on, work begins anew, nothing old is mistaken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_rpc import Session, connect, errors, persist
from mlc_rpc.errors import Unreachable
from mlc_rpc.local import local_machine
from mlc_rpc.transport import Transport
from tests.driver.test_deploy import relu_sum
from tests.rpc.listener import Listener, wait_until
from tests.rpc.test_faults import supervisor
from tests.runtime.board import X, module_of

Runtime = Callable[[str], Path]


def lose(session: Session) -> None:
    """Kills the board's program, and waits until that is known here."""
    os.kill(supervisor(session), 9)
    wait_until(lambda: is_lost(session), "nobody notices")


def is_lost(session: Session) -> bool:
    try:
        session.ping()
    except errors.Lost:
        return True
    return False


def test_a_session_goes_on(runtime_of: Runtime) -> None:
    with connect("local://", runtime_of) as session:
        module, old = session.load(module_of("add")), session.tensor(X)
        dropped = session.tensor(X)
        sent = session.sent_bytes
        lose(session)
        session.reconnect()
        assert session.sent_bytes > sent
        again, a, b = session.load(module_of("add")), session.tensor(X), session.tensor(X)
        assert (again.handle, a.handle) == (module.handle, old.handle), "or nothing is proven below"
        again["add"](a, a, a)
        np.testing.assert_array_equal(a.numpy(), 2 * X)
        for use in (
            lambda: module["add"](old, old, old),
            lambda: old.numpy(),
            lambda: old.close(),
            lambda: module.close(),
        ):
            with pytest.raises(errors.Lost, match="killed by SIGKILL"):
                use()
        assert b.handle == dropped.handle
        del dropped
        session.empty((1,))  # frees what nobody holds, and nothing of the same number
        np.testing.assert_array_equal(b.numpy(), X)


def test_tensors_of_another_session_are_refused(runtime_of: Runtime) -> None:
    with connect("local://", runtime_of) as one, connect("local://", runtime_of) as two:
        module, a = one.load(module_of("add")), one.tensor(X)
        with pytest.raises(errors.Refused) as caught:
            module["add"](a, two.tensor(X), a)
    assert str(caught.value) == (
        "argument 1 of add is a tensor of another session\n  on:  local://, method run\n"
        "  try: board.tensor(...) of this session"
    )


def test_work_begins_anew(runtime_of: Runtime) -> None:
    begun: list[object] = []
    waited: list[int] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        waited.append(len(begun))
        yield

    with connect("local://", runtime_of) as session:

        def work() -> int:
            begun.append(session.tensor(X))
            if len(begun) < 3:
                lose(session)
            assert session.ping() > 0
            return len(begun)

        result, interruptions = persist(session, work, waiting=waiting)
    assert result == 3 and waited == [1, 2]
    for each in interruptions:
        assert each.what == "the board's program ended: killed by SIGKILL"
        assert each.method == "ping" and each.seconds > 0
        assert not each.rebooted, "this machine was not"
    assert len(interruptions) == 2


def test_a_board_that_is_lost_each_time(runtime_of: Runtime) -> None:
    with connect("local://", runtime_of) as session:

        def work() -> float:
            lose(session)
            return session.ping()

        with pytest.raises(errors.Lost) as caught:
            persist(session, work, times=2)
    assert str(caught.value) == (
        "lost 2 times in the same work; the last time: the board's program ended: killed by "
        "SIGKILL\n  on:  local://, method ping\n"
        "  try: a stronger power supply and more cooling, if it is the load that brings it down; "
        "else check its network"
    )


def test_a_board_that_does_not_come_back(runtime_of: Runtime) -> None:
    def reopen(seconds: float) -> Transport:
        raise Unreachable("no route to host", board="ssh://attic", attempt="ping attic")

    with connect("local://", runtime_of) as session:
        lose(session)
        session._reopen = reopen
        with pytest.raises(errors.Unreachable) as caught:
            session.reconnect(patience=0.5)
        assert str(caught.value) == (
            "the board did not come back in 0.5 s: no route to host\n  on:  local://\n"
            "  try: ping attic"
        )


def test_a_closed_session_stays_closed(runtime_of: Runtime) -> None:
    session = connect("local://", runtime_of)
    session.close()
    with pytest.raises(errors.Lost, match="the session is closed"):
        persist(session, session.ping)
    with pytest.raises(errors.Lost, match="the session is closed"):
        session.reconnect()


def test_the_record_says_so() -> None:
    stages: list[str] = []
    with mlc.connect("local://") as board:

        @contextmanager
        def stage(name: str) -> Iterator[None]:
            stages.append(name)
            if name == "timing" and stages.count(name) == 1:
                lose(board)
            yield

        done = mlc.deploy(relu_sum(), board, stage=stage)
    assert stages == ["reference", *("upload", "run", "timing", "reconnect"),
                      *("upload", "run", "timing")]  # fmt: skip
    assert done.ok
    (interruption,) = json.loads(json.dumps(done.record()))["interruptions"]
    assert interruption["what"] == "the board's program ended: killed by SIGKILL"
    assert set(interruption) == {"what", "method", "seconds", "rebooted"}


def test_a_session_over_tcp_goes_on(runtime_of: Runtime) -> None:
    with (
        Listener(runtime_of(local_machine())) as listener,
        connect(listener.url, runtime_of, key=listener.key) as session,
    ):
        session.link.transport.close()
        assert is_lost(session)
        session.reconnect()
        np.testing.assert_array_equal(session.tensor(X).numpy(), X)
