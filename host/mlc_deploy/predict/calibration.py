"""A board's own speed: factors on the figures of its core, fitted to measurements on the board.

    computing   on cycles: per instruction, and per line that the first cache fetches
    memory      on nanoseconds per line from memory
    threads     on times with several threads

A measurement is a model's time, with QEMU's counts of each of its layers. The measurements are kept
with the factors: a further one refines them, and where a version of this package has other figures
of the core, the factors are fitted again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

from mlc_targets.cores import Speed, speed

from .counting import Counts
from .model import predict, work_of

FORM = 1  # of the JSON
MOST_ROWS = 64  # measurements that are kept, the latest ones
FACTORS = 2  # factors that are fitted to measurements with one thread
APART = 1e-3  # what a ratio of e between the factors costs, in squared errors
STEPS = (0.5, 1e-4)  # of the search, in logarithms: the first one, and the limit where it ends
HELD = 0.85  # share of measurements within the interval
NARROWEST = 0.03  # least half of an interval, in logarithms: a board's times vary as much


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement: a model's milliseconds, and the counts of its layers. spread: the share by
    which most runs took longer, where the board was disturbed."""

    name: str
    threads: int
    ms: float
    layers: tuple[Counts, ...]
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Factors:
    computing: float
    memory: float
    threads: float

    def on(self, base: Speed) -> Speed:
        """The board's own speed, without `threads`."""
        return replace(
            base,
            vector=base.vector * self.computing,
            memory=base.memory * self.computing,
            other=base.other * self.computing,
            l1_miss=base.l1_miss * self.computing,
            line_ns=base.line_ns * self.memory,
            far_ns=base.far_ns * self.memory,
            least_ns=base.least_ns * self.memory,
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """The factors, the multiples of a prediction between which most true times are, and the typical
    error, as a share."""

    factors: Factors
    interval: tuple[float, float]
    error: float


def fit(base: Speed, rows: Sequence[Row]) -> Fit:
    """Fits predictions from a core's speed to the rows' times, by least squares of the logarithms
    of errors. Some rows must have one thread. The interval is as wide as most of their errors, and
    as most of their spreads."""
    ones = [row for row in rows if row.threads == 1]
    works = [[work_of(*counts, base) for counts in row.layers] for row in ones]

    def errors(computing: float, memory: float) -> list[float]:
        own = Factors(math.exp(computing), math.exp(memory), 1.0).on(base)
        return [
            math.log(row.ms / predict(work, own).ms)
            for row, work in zip(ones, works, strict=True)
        ]  # fmt: skip

    def cost(at: tuple[float, float]) -> float:
        return sum(e * e for e in errors(*at)) + APART * (at[0] - at[1]) ** 2

    at = _lowest(cost, (median(errors(0.0, 0.0)),) * 2)
    factors = Factors(math.exp(at[0]), math.exp(at[1]), 1.0)
    own = factors.on(base)
    several = [row.ms / _ms(row, own) for row in rows if row.threads > 1]
    # The factors were fitted to these errors, so future errors are larger.
    shrunk = len(ones) / max(len(ones) - FACTORS, 1)
    ranked = sorted(abs(e) * shrunk for e in errors(*at))
    spreads = sorted(math.log1p(row.spread) for row in ones)
    held = max(math.ceil(HELD * len(ranked)) - 1, 0)
    half = max(ranked[held], spreads[held], NARROWEST)
    return Fit(
        replace(factors, threads=median(several) if several else 1.0),
        (math.exp(-half), math.exp(half)),
        math.expm1(median(ranked)),
    )


def _ms(row: Row, own: Speed) -> float:
    """The prediction for a row, before the factor on several threads."""
    works = [work_of(*counts, own, row.threads) for counts in row.layers]
    return predict(works, own, row.threads).ms


def _lowest(cost: Any, begin: tuple[float, float]) -> tuple[float, float]:
    """The minimum of a function of two numbers, by steps to all sides that become smaller."""
    at, known, step = begin, cost(begin), STEPS[0]
    sides = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y]
    while step > STEPS[1]:
        tried = [(at[0] + x * step, at[1] + y * step) for x, y in sides]
        best, there = min((cost(point), point) for point in tried)
        if best < known:
            at, known = there, best
        else:
            step /= 2
    return at


@dataclass(frozen=True, eq=False)
class Calibration:
    """What is known about a user's board.

    board, url: its name and address; cpu: the cores that it reports; cores: the number of fast
    ones; memory: in bytes.
    target: the one that models are compiled for to count them; of another machine than the board
    where QEMU cannot count for the board's. core, chip: the factors apply to their speed; like:
    whether this is another core, since the board's own is unknown. date: of the last measurement.
    """

    board: str
    url: str
    cpu: str
    cores: int
    memory: int
    target: str
    core: str
    chip: str
    like: bool
    date: str
    rows: tuple[Row, ...]
    fitted: Fit

    @cached_property
    def base(self) -> Speed:
        return _base(self.core, self.chip)

    @cached_property
    def speed(self) -> Speed:
        return self.fitted.factors.on(self.base)

    def ms(self, row: Row) -> float:
        """The prediction for a measurement's model and threads."""
        shared = self.fitted.factors.threads if row.threads > 1 else 1.0
        return _ms(row, self.speed) * shared

    def with_rows(self, rows: Sequence[Row], date: str) -> Calibration:
        """Fitted to more measurements; one of the same model and threads replaces the other."""
        known = {(row.name, row.threads): row for row in self.rows}
        for row in rows:
            known.pop((row.name, row.threads), None)
            known[row.name, row.threads] = row
        kept = tuple(known.values())[-MOST_ROWS:]
        return replace(self, date=date, rows=kept, fitted=fit(self.base, kept))

    def as_json(self) -> dict[str, Any]:
        names = ("board", "url", "cpu", "cores", "memory", "target", "core", "chip", "like", "date")
        return {
            "form": FORM,
            **{name: getattr(self, name) for name in names},
            "factors": asdict(self.fitted.factors),
            "interval": list(self.fitted.interval),
            "error": self.fitted.error,
            "base": asdict(self.base),
            "rows": [
                {"name": row.name, "threads": row.threads, "ms": row.ms, "spread": row.spread,
                 "layers": [[dict(part) for part in counts] for counts in row.layers]}
                for row in self.rows
            ],
        }  # fmt: skip


def calibrated(
    rows: Sequence[Row], *, board: str, url: str, cpu: str, cores: int, memory: int, target: str,
    base: Speed, chip: str, like: bool, date: str,
) -> Calibration:  # fmt: skip
    """The calibration of a board that has none yet."""
    return Calibration(
        board, url, cpu, cores, memory, target, base.core, chip, like, date, tuple(rows),
        fit(base, rows),
    )  # fmt: skip


def from_json(body: Any) -> Calibration:
    """Reads what as_json made, and fits again if the core's figures differ now. Raises ValueError
    for anything else."""
    try:
        if body["form"] != FORM:
            raise ValueError(f"it is of form {body['form']}, and this is {FORM}")
        rows = tuple(map(_row, body["rows"]))
        if not any(row.threads == 1 for row in rows):
            raise ValueError("it holds no measurement with one thread")
        words = {name: _typed(body[name], str)
                 for name in ("board", "url", "cpu", "target", "core", "chip", "date")}  # fmt: skip
        base = _base(words["core"], words["chip"])
        if body["base"] == asdict(base):
            low, high = map(_amount, body["interval"])
            parts = [_amount(body["factors"][name]) for name in Factors.__slots__]
            fitted = Fit(Factors(*parts), (low, high), float(body["error"]))
        else:
            fitted = fit(base, rows)
        return Calibration(
            **words, cores=_typed(body["cores"], int), memory=_typed(body["memory"], int),
            like=_typed(body["like"], bool), rows=rows, fitted=fitted,
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"it is not whole ({type(error).__name__}: {error})") from None


def _base(core: str, chip: str) -> Speed:
    found = speed(core, chip)
    if found is None:
        raise ValueError(f"nothing is known of the core '{core}'")
    return found


def _row(body: Mapping[str, Any]) -> Row:
    layers = tuple(
        ({k: _typed(n, int) for k, n in classes.items()}, {k: _typed(n, int) for k, n in m.items()})
        for classes, m in body["layers"]
    )
    spread = body.get("spread", 0.0)
    if type(spread) is not float or not 0 <= spread < math.inf:
        raise ValueError(f"{spread!r:.40} is not a share")
    return Row(
        _typed(body["name"], str), _typed(body["threads"], int), _amount(body["ms"]), layers, spread
    )  # fmt: skip


MOST = 1e18  # of a figure: sums and products of smaller ones are finite


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r:.40} is not of type {kind.__name__}")
    if isinstance(value, int) and abs(value) >= MOST:
        raise ValueError("a number is too large")
    return value


def _amount(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < MOST:
        raise ValueError(f"{value!r:.40} is not a number above 0")
    return float(value)
