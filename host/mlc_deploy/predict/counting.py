"""From the counts of an emulated run to a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlc_targets import Target, TargetError, board
from mlc_targets.caches import share_kib
from mlc_targets.cores import Speed, speed

from .model import Prediction, predict, work_of

if TYPE_CHECKING:
    from .calibration import Calibration

Counts = tuple[Mapping[str, int], Mapping[str, int]]  # instructions by class; lines by cache


@dataclass(frozen=True, slots=True)
class Forecast:
    """A model's time on an absent board: with one thread, and bounds that hold in most cases; with
    all of its fast cores; per layer with one thread. own: the board's own calibration, if there is
    one."""

    speed: Speed
    one: Prediction
    threads: Mapping[int, float]
    own: Calibration | None = None

    def record(self) -> dict[str, Any]:
        """As data, in milliseconds."""
        return {
            "ms": self.one.ms,
            "low": self.one.low,
            "high": self.one.high,
            "threads": {str(n): ms for n, ms in self.threads.items()},
            "core": self.speed.core,
            "mhz": self.speed.mhz,
            "calibrated": self.own
            and {
                "board": self.own.board,
                "date": self.own.date,
                "cpu": self.own.cpu,
                "like": self.own.like,
            },
        }


def speed_for(target: Target) -> Speed | None:
    """The speed of the target's cores; None where it is unknown."""
    return speed(target.mcpu, target.model)


def forecast(
    target: Target, layers: Sequence[Counts], own: Calibration | None = None
) -> Forecast | None:
    """The forecast; None where the core is unknown, or its caches were not simulated. own: the
    board's own calibration, if there is one."""
    known = own.speed if own else speed_for(target)
    if known is None or not layers:
        return None
    cores = own.cores if own else fast_cores(target)
    wanted = {f"{known.l1_kib}K", *(f"{share_kib(known.last_kib, n)}K" for n in (1, cores))}
    if any(not wanted <= misses.keys() for _, misses in layers):
        return None
    made = {
        n: predict([work_of(*counts, known, n) for counts in layers], known, n)
        for n in sorted({1, cores})
    }
    one, threads = made[1], {n: each.ms for n, each in made.items()}
    if own:
        low, high = own.fitted.interval
        one = replace(one, low=one.ms * low, high=one.ms * high)
        threads |= {n: ms * own.fitted.factors.threads for n, ms in threads.items() if n > 1}
    return Forecast(known, one, threads, own)


def fast_cores(target: Target) -> int:
    """How many the target's board has; 1 where the target names no board."""
    if target.tag:
        try:
            return board(target.tag).clusters[0].count
        except TargetError:  # a tag of the user's own
            pass
    return max(target.num_cores, 1)
