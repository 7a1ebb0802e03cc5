"""The order of calls of users who share boards: start-time fair queueing.

Each call has a turn, and lower turns go first. A user's turn advances by the time that a call
takes, divided by the user's share. So users who always have calls waiting get the boards' time by
their shares. A user who comes, or comes back, begins at the turn that the boards have reached,
without credit for the past. A user with calls waiting continues from their last turn: if one board
runs only others' calls, the other boards make up for it. After Goyal, Vin and Cheng, "Start-time
Fair Queueing" (SIGCOMM 1996).
"""

from __future__ import annotations

import threading

PRIORITY = 1e9  # seconds: turns stay below, so that a higher priority always goes first
FIRST_SECONDS = 1.0  # the assumed time of a user's calls until one has ended
NEWEST = 0.2  # the weight of the latest call in the mean time of calls


class Turns:
    """The turns of one user's calls, in seconds per share. `begun`: the turn that the boards had
    reached before."""

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
        """Notes that a call took so many seconds, on a board that had reached turn `begun`."""
        with self._lock:
            self._begun = max(self._begun, begun)
            known = self._seconds or seconds
            self._seconds = (1 - NEWEST) * known + NEWEST * seconds

    def left(self) -> None:
        """Notes that a call ended or was given up."""
        with self._lock:
            self._under_way -= 1


def dask_priority(priority: int, turn: float) -> float:
    """The priority by which Dask sorts calls, the largest first."""
    return priority * PRIORITY - turn
