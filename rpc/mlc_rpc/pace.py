"""How many bytes may be on their way to the board, or from it: about what its link moves in a
second.

More would gain nothing, and whatever follows, a ping for example, would wait behind them.
"""

from __future__ import annotations

from mlc_rpc.wire import MAX_CHUNK

WINDOW = 8  # chunks in flight
FIRST_BYTES = 1 << 15  # in flight before anything is known of a link; 11 s at 24 kbit/s
LEAST_BYTES = 1 << 12
SHORT_SECONDS, LONG_SECONDS = 0.5, 1.0  # of waiting in queues: more may follow; there is too much
LEAP = 16  # bytes more in flight for each that was answered, as far as the rate is known


class Pace:
    """`limit`: the bytes that may be in flight. Where the way is not a network, it never
    changes."""

    def __init__(self, network: bool) -> None:
        self._network = network
        self.limit = FIRST_BYTES if network else WINDOW * MAX_CHUNK
        self._quickest = float("inf")  # seconds to the board and back, without a queue
        self.rate = 0.0  # bytes per second, as the last answers came; 0: unknown

    @property
    def chunk(self) -> int:
        return min(MAX_CHUNK, max(self.limit // 3, LEAST_BYTES))

    def returned(self, seconds: float) -> None:
        """A short request was answered after `seconds`."""
        self._quickest = min(self._quickest, seconds)

    def answered(self, size: int, flying: int, seconds: float) -> None:
        """A chunk of `size` bytes was answered after `seconds`; `flying` bytes were in flight when
        it was sent, its own among them."""
        if not self._network:
            return
        self.rate = flying / max(seconds, 1e-6)
        self._quickest = min(self._quickest, seconds)
        queued = seconds - self._quickest
        if queued < SHORT_SECONDS and 4 * flying >= self.limit:  # else it says nothing of more
            known = min(self.limit + LEAP * size, int(self.rate * LONG_SECONDS))
            self.limit = min(max(self.limit + size, known), WINDOW * MAX_CHUNK)
        elif queued > LONG_SECONDS:
            self.limit = max(min(self.limit, int(self.rate * LONG_SECONDS)), LEAST_BYTES)
