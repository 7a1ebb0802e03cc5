"""The order of calls of users who share boards: start-time fair queueing.

Each call has a turn, and lower turns go first. A user's turn advances by the time that a call
takes, divided by the user's share. So users who always have calls waiting get the boards' time by
their shares. A user who comes, or comes back, begins at the turn that the boards have reached,
without credit for the past. A user with calls waiting continues from their last turn: if one board
runs only others' calls, the other boards make up for it. After Goyal, Vin and Cheng, "Start-time
Fair Queueing" (SIGCOMM 1996).

A call gets a turn when it is sent, before its time is known: it counts as the mean of those
before it, the first ones as nothing, and the difference is made up for when it ends. Few calls are
sent ahead, as by Jin, Chase and Kaur, "Interposed Proportional Sharing" (SIGMETRICS 2004), so that
little is ever to be made up for.
"""

from __future__ import annotations

import threading

PRIORITY = 1e9  # seconds: turns stay below, so that a higher priority always goes first
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

    @property
    def known(self) -> bool:
        """Whether a call has ended, so that others count as something."""
        return self._seconds > 0

    def came(self) -> None:
        """Notes that a call waits."""
        with self._lock:
            if not self._under_way:
                self._next = max(self._next, self._begun)
            self._under_way += 1

    def take(self) -> tuple[float, float]:
        """The turn of a call that is sent, and the seconds that it counts as."""
        with self._lock:
            turn = self._next
            self._next += self._seconds / self.share
            return turn, self._seconds

    def ended(self, begun: float, seconds: float, counted: float) -> None:
        """Notes that a call took so many seconds, and `counted` as others, on a board that had
        reached turn `begun`."""
        with self._lock:
            self._begun = max(self._begun, begun)
            self._next += (seconds - counted) / self.share
            before = self._seconds or seconds
            self._seconds = (1 - NEWEST) * before + NEWEST * seconds

    def left(self) -> None:
        """Notes that a call ended or was given up."""
        with self._lock:
            self._under_way -= 1


def dask_priority(priority: int, turn: float) -> float:
    """The priority by which Dask sorts calls, the largest first."""
    return priority * PRIORITY - turn
