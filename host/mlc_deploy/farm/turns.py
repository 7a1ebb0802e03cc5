"""Who goes next, among users who share boards: start-time fair queueing.

Each call has a turn, and calls of lower turns go first. A user's turns move on by the time that the
calls take, divided by the user's share; so users who always have calls waiting get the boards' time
by their shares. Whoever comes, or comes back, begins at the turn that the boards have reached, and
has nothing to make up for. Who has calls waiting goes on from the own last turn: a board without
them is ahead with somebody else's, and the other boards make up for it. After Goyal, Vin and Cheng,
"Start-time Fair Queueing" (SIGCOMM 1996).
"""

from __future__ import annotations

import threading

PRIORITY = 1e9  # seconds: turns stay below, so that a higher priority goes before any of them
FIRST_SECONDS = 1.0  # that a user's calls are taken to last until one has ended
NEWEST = 0.2  # the weight of a call that ended, in the mean of what calls take


class Turns:
    """The turns of one user's calls, in seconds of one share. `begun`: what the boards had reached
    before the first of them."""

    def __init__(self, share: float, begun: float = 0.0) -> None:
        self.share, self._begun = share, begun
        self._next = 0.0
        self._under_way = 0
        self._seconds = 0.0  # of a call, on average
        self._lock = threading.Lock()

    def take(self) -> float:
        """The turn of a further call."""
        with self._lock:
            turn = self._next if self._under_way else max(self._next, self._begun)
            self._under_way += 1
            self._next = turn + (self._seconds or FIRST_SECONDS) / self.share
            return turn

    def ended(self, begun: float, seconds: float) -> None:
        """A call took so long, on a board that had reached turn `begun`."""
        with self._lock:
            self._begun = max(self._begun, begun)
            known = self._seconds or seconds
            self._seconds = (1 - NEWEST) * known + NEWEST * seconds

    def left(self) -> None:
        """A call waits no longer: it ended, or was given up."""
        with self._lock:
            self._under_way -= 1


def dask_priority(priority: int, turn: float) -> float:
    """What Dask sorts calls by, the largest first."""
    return priority * PRIORITY - turn
