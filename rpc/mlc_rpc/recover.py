"""Repeats work during which the board was lost: it rebooted, hung, or was cut off."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from mlc_rpc.errors import Lost, Silent
from mlc_rpc.session import RETURN_SECONDS, Session

WEAK = (
    "a stronger power supply and more cooling, if it is the load that brings it down; else check "
    "its network"
)
CUT_OFF = (
    "check its network, or its power if it was switched off; what has arrived there is "
    "not sent again"
)
TIMES = 3  # a board that is lost each time is not lost by chance

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Interruption:
    """A board was lost during `method` and came back after `seconds`.

    `what` is the error. `rebooted` is None if the board does not say.
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
    """The result of work(), and the interruptions. Each time the board is lost, the session
    reconnects and work() starts again.

    So work() must not keep tensors or modules between attempts. There are at most `times` attempts.
    The board may take `patience` seconds to come back; waiting() is entered meanwhile. Raises Lost
    after the last attempt, Unreachable when the board does not come back, and what else work()
    raises.
    """
    interruptions: list[Interruption] = []
    rebooted: bool | None = None
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
                    attempt=CUT_OFF if isinstance(error, Silent) and not rebooted else WEAK,
                ) from error
            began, boot = time.monotonic(), session.device.boot
            with waiting():
                session.reconnect(patience)
            rebooted = boot != session.device.boot if boot and session.device.boot else None
            seconds = time.monotonic() - began
            interruptions.append(Interruption(error.what, error.method, seconds, rebooted))
