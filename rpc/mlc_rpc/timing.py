"""What time_evaluator measured on the board."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "noisy", "emulated"]
NOISY = 0.05  # a median absolute deviation above this share of the median


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per run, timed on the board, one sample per repeat; none is ever dropped.

    `number` is how many runs each sample is the mean of. `verdict` "emulated" means that the
    seconds are QEMU's and say nothing about any board.
    """

    samples: tuple[float, ...]
    number: tuple[int, ...]
    emulated: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples)

    @property
    def p95(self) -> float:
        """The smallest sample that at least 95 % of the samples do not exceed."""
        ranked = sorted(self.samples)
        return ranked[-(-len(ranked) * 95 // 100) - 1]

    @property
    def mad(self) -> float:
        """Median absolute deviation from the median."""
        median = self.median
        return statistics.median(abs(sample - median) for sample in self.samples)

    @property
    def verdict(self) -> Verdict:
        if self.emulated:
            return "emulated"
        return "noisy" if self.mad > NOISY * self.median else "ok"

    def __str__(self) -> str:
        return (
            f"median {self.median * 1e3:.4g} ms, p95 {self.p95 * 1e3:.4g} ms, "
            f"mad {self.mad * 1e3:.4g} ms, {len(self.samples)} samples, {self.verdict}"
        )
