"""How much is in flight, by a link's rate and delay: simulated, so that nobody waits."""

from __future__ import annotations

from collections import deque

import pytest

from mlc_rpc.pace import FIRST_BYTES, LEAST_BYTES, LONG_SECONDS, WINDOW, Pace
from mlc_rpc.wire import MAX_CHUNK


def sent(pace: Pace, size: int, rate: float, delay: float) -> tuple[float, list[int]]:
    """Sends `size` bytes over a link of so many bytes per second, whose answers take `delay`: the
    seconds, and the bytes that were in flight when each chunk was sent."""
    now = free = 0.0
    window: deque[tuple[float, int, int, float]] = deque()  # when answered, size, in flight, sent
    flying, seen, left = 0, list[int](), size
    while left or window:
        step = min(pace.chunk, left)
        if window and (not left or flying + step > pace.limit or len(window) == WINDOW):
            answered, size_, with_it, when = window.popleft()
            now = max(now, answered)
            flying -= size_
            pace.answered(size_, with_it, answered - when)
            continue
        flying += step
        left -= step
        free = max(free, now) + step / rate
        window.append((free + delay, step, flying, now))
        seen.append(flying)
    return now, seen


@pytest.mark.parametrize("delay", [0.001, 0.1, 0.3, 1.5])
@pytest.mark.parametrize("rate", [3e3, 20e3, 60e3, 125e3, 1e6, 100e6])
def test_a_link_is_used_and_not_flooded(rate: float, delay: float) -> None:
    pace = Pace(True)
    pace.returned(delay)
    size = int(min(rate * 60, 40_000_000))
    seconds, seen = sent(pace, size, rate, delay)
    ideal = size / min(rate, WINDOW * MAX_CHUNK / delay)
    assert seconds < 2 * ideal + 10 * delay + 5
    # Once it is known, a second's worth is in flight, beside what the delay holds.
    most = max(rate * (LONG_SECONDS + 1.5 * delay + 0.5), 2 * LEAST_BYTES)
    assert max(seen[len(seen) // 2 :]) <= min(2 * most, WINDOW * MAX_CHUNK)
    assert seen[0] <= FIRST_BYTES


def test_what_is_no_network_has_no_pace() -> None:
    pace = Pace(False)
    sent(pace, 10 * MAX_CHUNK, 1e3, 1.0)
    assert pace.limit == WINDOW * MAX_CHUNK and pace.chunk == MAX_CHUNK
