"""The result of time_evaluator: samples and the conditions on the board."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.verdict import Judgement, Verdict, drift, judge, outliers

Column = tuple[int | None, ...]
COUNTED = ("cycles", "instructions", "cache_misses")  # by the CPU


@dataclass(frozen=True, slots=True)
class Conditions:
    """Facts about the board `before` and `after` every `each` samples: columns by fact (wire.py),
    one row per `each` samples; None where the board's kernel does not say.

    The threads were pinned to `cores`; `cluster` names the models of these. `fast_cores` is how
    many of the board's cores are of the fastest kind; `slow_cores` are those of the slowest.
    """

    before: Mapping[str, Column]
    after: Mapping[str, Column]
    each: int = 1
    cores: tuple[int, ...] = ()
    fast_cores: int = 0
    cluster: str = ""
    slow_cores: tuple[int, ...] = ()

    def during(self, fact: str) -> NDArray[np.float64]:
        """By how much a count grew in each row; empty unless all rows are known."""
        pairs = list(zip(self.before[fact], self.after[fact], strict=True))
        grown = [b - a for a, b in pairs if a is not None and b is not None]
        return np.asarray(grown if len(grown) == len(pairs) else [], np.float64)

    def known(self) -> dict[str, dict[str, list[int | None]]]:
        """The facts with any value, as {"before": {fact: rows}, "after": ...}."""
        told = [
            fact
            for fact, column in self.after.items()
            if any(value is not None for value in (*column, *self.before[fact]))
        ]
        sides = {"before": self.before, "after": self.after}
        return {name: {fact: list(side[fact]) for fact in told} for name, side in sides.items()}


def parse_conditions(
    answer: Mapping[str, Any], models: Sequence[str], fast_cores: int, slow_cores: tuple[int, ...]
) -> Conditions | None:
    """The conditions in the answer to `time`; None if it has none.

    `models`: the models of the board's cores, as far as known.

    Raises ValueError when rows and names do not fit together.
    """
    facts = answer["facts"]
    if not facts:
        return None
    before, after = (_columns(facts, answer[side], side) for side in ("before", "after"))
    cores = tuple(answer["cores"])
    cluster = ", ".join(dict.fromkeys(models[core] for core in cores if core < len(models)))
    return Conditions(before, after, answer["each"], cores, fast_cores, cluster, slow_cores)


def _columns(
    facts: Sequence[str], rows: Sequence[Sequence[int | None]], side: str
) -> Mapping[str, Column]:
    for number, row in enumerate(rows):
        if len(row) != len(facts):
            what = f"a list of {len(row)}, where one of {len(facts)}, as facts, belongs"
            raise ValueError(f"{side}[{number}] of the answer is {what}")
    if len(set(facts)) < len(facts):
        raise ValueError("facts of the answer has a name twice")
    named: defaultdict[str, Column] = defaultdict(lambda: (None,) * len(rows))
    named.update(zip(facts, zip(*rows, strict=True), strict=True))
    return named


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per run, timed on the board, one sample per repeat; none is ever dropped.

    `number`: how many runs each sample is the mean of. The `verdict` "emulated" means that the
    seconds are QEMU's and say nothing about a board. `layers`, if asked for: for each sample, the
    seconds of each call, less the cost of timing it.
    """

    samples: tuple[float, ...]
    number: tuple[int, ...]
    emulated: bool = False
    threads: int = 1
    conditions: Conditions | None = None
    layers: tuple[tuple[float, ...], ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples)

    @property
    def p95(self) -> float:
        return self.percentile(95)

    def percentile(self, share: int) -> float:
        """The smallest sample that at least `share` % of the samples do not exceed."""
        ranked = sorted(self.samples)
        return ranked[-(-len(ranked) * share // 100) - 1]

    @property
    def mad(self) -> float:
        """Median absolute deviation from the median."""
        median = self.median
        return statistics.median(abs(sample - median) for sample in self.samples)

    @property
    def outliers(self) -> tuple[int, ...]:
        """Indices of samples too far from the median to be chance."""
        return outliers(self.samples)

    @property
    def drift(self) -> float:
        """How much slower the last third of the samples was than the first: 0.1 for 10 %."""
        return drift(self.samples)

    @property
    def judgement(self) -> Judgement:
        """The verdict, and all findings against the timing."""
        return judge(self)

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    def per_run(self, fact: str) -> float | None:
        """The median growth of a count per run, such as "cycles"; None if unknown."""
        now = self.conditions
        grown = np.empty(0) if now is None else now.during(fact)
        if now is None or grown.size == 0:
            return None
        starts = range(0, len(self.number), now.each)
        runs = [sum(self.number[start : start + now.each]) for start in starts]
        return float(np.median(grown / np.asarray(runs)))

    def record(self) -> dict[str, Any]:
        """As JSON, in milliseconds; None or empty means unknown. `conditions` has a row for every
        `each` samples; it is None for an emulated board."""
        judgement = self.judgement
        now = None if self.emulated else self.conditions
        return {
            "n": len(self.samples),
            "median_ms": self.median * 1e3,
            **{f"p{share}_ms": self.percentile(share) * 1e3 for share in (50, 90, 95, 99)},
            "mad_ms": self.mad * 1e3,
            "samples": [sample * 1e3 for sample in self.samples],
            "number": list(self.number),
            "outliers": list(self.outliers),
            "drift": self.drift,
            "verdict": judgement.verdict,
            "findings": [{"what": f.what, "mend": f.mend} for f in judgement.findings],
            "cluster": now.cluster if now else "",
            "cores": list(now.cores) if now else [],
            "per_run": {fact: self.per_run(fact) if now else None for fact in COUNTED},
            "each": now.each if now else 1,
            "conditions": now.known() if now else None,
        }

    def __str__(self) -> str:
        judgement = self.judgement
        reason = f": {judgement.findings[0]}" if judgement.findings else ""
        return (
            f"median {self.median * 1e3:.4g} ms, p95 {self.p95 * 1e3:.4g} ms, "
            f"deviation {self.mad * 1e3:.4g} ms, {len(self.samples)} samples, "
            f"{judgement.verdict}{reason}"
        )
