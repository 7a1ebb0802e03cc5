"""Finds ranges for a tensor's 256 integers.

Four rules propose ranges. min/max cuts nothing, and is coarse if a few numbers lie far out. The
others cut: at a percentile; at the least squared error of rounding and cutting; at the least
divergence between the distributions before and after (Migacz, "8-bit Inference with TensorRT",
GTC 2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .net import Array

KEPT = 1 << 17  # numbers of a tensor that are kept; all count for min/max
PERCENTILE = 99.99
SHRUNK = np.linspace(0.25, 1.0, 31)  # shares of the range to try
BINS = 2048  # of a histogram, as in TensorRT's calibration by entropy
LEVELS = 256
MINMAX, CUT, LEAST_ERROR, LEAST_DIVERGENCE = RULES = ("min/max", "percentile", "mse", "entropy")


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from low to high, including 0; rule: the one that proposed it."""

    low: float
    high: float
    rule: str = MINMAX

    @property
    def scale(self) -> np.float32:
        """The step between integers."""
        width = np.float32((self.high - self.low) / (LEVELS - 1))
        return width if width > np.finfo(np.float32).tiny else np.float32(1)

    @property
    def zero(self) -> np.int8:
        """The integer that stands for 0."""
        return np.int8(np.clip(np.rint(-128 - self.low / float(self.scale)), -128, 127))

    def rounded(self, x: Array) -> Array:
        """x rounded to the integers."""
        zero = np.float32(self.zero)
        q = np.clip(np.rint(x / self.scale) + zero, -128, 127)
        return ((q - zero) * self.scale).astype(np.float32)


@dataclass
class Seen:
    """Numbers of a tensor, gathered run by run."""

    low: float = 0.0
    high: float = 0.0
    runs: int = 0
    parts: list[Array] = field(default_factory=list)

    def add(self, x: Array, share: int) -> None:
        """Adds the numbers of a run, of which at most `share` are kept."""
        if not x.size:
            return
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        flat = x.reshape(-1)
        if flat.size > share:  # a seeded sample, the same every time
            flat = flat[np.random.default_rng(self.runs).integers(0, flat.size, share)]
        self.parts.append(flat.astype(np.float32))
        self.runs += 1

    @property
    def numbers(self) -> Array:
        return np.concatenate(self.parts) if self.parts else np.zeros(1, np.float32)


def proposals(seen: Seen) -> list[Range]:
    """The distinct ranges that the four rules propose, min/max first."""
    whole = Range(seen.low, seen.high)
    x = seen.numbers
    if whole.high == whole.low:
        return [whole]
    found: Mapping[str, tuple[float, float]] = {
        CUT: _percentile(x),
        LEAST_ERROR: _least_error(x, whole),
        LEAST_DIVERGENCE: _least_divergence(x, whole),
    }
    ranges = [whole]
    for rule, (low, high) in found.items():
        made = Range(max(low, whole.low), min(high, whole.high), rule)
        if made.high > made.low and all((made.low, made.high) != (r.low, r.high) for r in ranges):
            ranges.append(made)
    return ranges


def _percentile(x: Array) -> tuple[float, float]:
    low, high = np.percentile(x, (100 - PERCENTILE, PERCENTILE))
    return min(float(low), 0.0), max(float(high), 0.0)


def _least_error(x: Array, whole: Range) -> tuple[float, float]:
    """The range with the least squared error of rounding and cutting. Both sides shrink together,
    then each alone."""

    def error(low: float, high: float) -> float:
        return float(np.mean(np.square(Range(low, high).rounded(x) - x, dtype=np.float64)))

    x = x[:: max(1, x.size // 16384)]
    both = min(SHRUNK, key=lambda k: error(whole.low * k, whole.high * k))
    low, high = whole.low * both, whole.high * both
    if whole.low < 0 < whole.high:
        low = min((whole.low * k for k in SHRUNK), key=lambda v: error(v, high))
        high = min((whole.high * k for k in SHRUNK), key=lambda v: error(low, v))
    return low, high


def _least_divergence(x: Array, whole: Range) -> tuple[float, float]:
    """The range whose 256 levels are nearest to the histogram."""
    counts, edges = np.histogram(x, BINS, (whole.low, whole.high))
    counts = counts.astype(np.float64)
    zero = int(np.searchsorted(edges, 0.0, "right")) - 1
    best, found = np.inf, (whole.low, whole.high)
    for share in SHRUNK:
        left = zero - round(zero * share)
        right = zero + max(LEVELS // 2, round((BINS - zero) * share))
        right = min(right, BINS)
        if right - left < LEVELS:
            continue
        divergence = _divergence(counts, left, right)
        if divergence < best:
            best, found = divergence, (float(edges[left]), float(edges[right]))
    return min(found[0], 0.0), max(found[1], 0.0)


def _divergence(counts: Array, left: int, right: int) -> float:
    """The Kullback-Leibler divergence between the bins from left to right, whose outermost get the
    counts outside, and the same bins in 256 levels."""
    kept = counts[left:right].copy()
    inside = kept.copy()
    kept[0] += counts[:left].sum()
    kept[-1] += counts[right:].sum()
    level = np.arange(inside.size) * LEVELS // inside.size
    there = inside > 0
    sums = np.bincount(level, inside, LEVELS)
    filled = np.bincount(level, there, LEVELS)
    spread = np.where(there, (sums / np.maximum(filled, 1))[level], 0.0)
    p, q = kept / kept.sum(), spread / max(spread.sum(), 1e-12)
    used = p > 0
    return float(np.sum(p[used] * np.log(p[used] / np.maximum(q[used], 1e-12))))
