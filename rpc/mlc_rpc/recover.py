"""Work that is done again when the board was lost during it: rebooted, hung, cut off."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from mlc_rpc.errors import Lost
from mlc_rpc.session import RETURN_SECONDS, Session

TIMES = 3  # a board that is lost each time is not lost by chance

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Interruption:
    """That a board was lost during `method`, and back after `seconds` more.

    `what` is what was seen of it. `rebooted` is None where the board does not say.
    """

    what: str
    method: str
    seconds: float
    rebooted: bool | None


def persist(
    session: Session,
    work: Callable[[], T],
    *,
    times: int = TIMES,
    patience: float = RETURN_SECONDS,
    waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> tuple[T, tuple[Interruption, ...]]:
    """What work() returns, and how often it was interrupted: each time that the board is lost, the
    session reconnects, and work begins anew.

    So work must hold nothing of the session from one time to the next. It is done `times` times at
    most; `patience` is how many seconds the board may take to come back, and waiting() is entered
    meanwhile. Raises Lost when all times were in vain, Unreachable when it does not come back, and
    what else work raises.
    """
    interruptions: list[Interruption] = []
    while True:
        try:
            return work(), tuple(interruptions)
        except Lost as error:
            if not session.can_reconnect:
                raise
            if len(interruptions) + 1 >= times:
                raise Lost(
                    f"lost {times} times in the same work; the last time: {error.what}",
                    board=error.board,
                    method=error.method,
                    attempt="a stronger power supply and more cooling, if it is the load that "
                    "brings it down; else look after its network",
                ) from error
            began, boot = time.monotonic(), session.device.boot
            with waiting():
                session.reconnect(patience)
            rebooted = boot != session.device.boot if boot and session.device.boot else None
            seconds = time.monotonic() - began
            interruptions.append(Interruption(error.what, error.method, seconds, rebooted))
