"""Measures the largest error of every function of one number, and writes the table of
docs/reference/numbers.md.

    python scripts/float_errors.py [--check] [--only NAME ...] [--patterns N] [--all]

Each function runs as a compiled kernel on this machine (x86-64) and on emulated boards (AArch64,
ARMv7), for N patterns of float32 (default: 2^22), evenly spread over all 2^32, for all bfloat16
numbers and for the ends; --all takes every pattern on this machine, which takes hours. float16 is
taken whole. Errors are distances from results in float64, in units in the last place (ulp) of the
dtype. With --check nothing is written: the exit status is 1 where a figure is above the page's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.driver.build import build
from mlc_deploy.graph import BlockBuilder
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ir import IRModule, PrimFunc
from mlc_deploy.ops import frozen_attrs
from mlc_targets import Target

if TYPE_CHECKING:
    from mlc_rpc import Session

Array = NDArray[Any]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "numbers.md"
BEGIN, END = "<!-- scripts/float_errors.py writes this table -->", "<!-- end of the table -->"
SAMPLE = 1 << 22
CHUNK = 1 << 20
TINY = float(np.finfo(np.float32).tiny)  # the smallest normal number


# ------------------------------------------------------------------------------------ references


def erfc(x: Array) -> Array:
    """In float64, element by element where the result is neither 0, 1 nor 2 nor a straight line."""
    size = np.abs(x)
    result = np.where(x < 0, 2.0, 0.0) + np.where(np.isnan(x), np.nan, 0)
    near = size < 2.0**-40
    result[near] = 1.0
    bent = ~near & (x > -6) & (x < 28)
    result[bent] = [math.erfc(v) for v in x[bent].tolist()]
    return result


def erf(x: Array) -> Array:
    size = np.abs(x)
    result = np.copysign(1.0, x) + np.where(np.isnan(x), np.nan, 0)
    near = size < 2.0**-30
    result[near] = x[near] * (2 / math.sqrt(math.pi))
    bent = ~near & (size < 6)
    result[bent] = [math.erf(v) for v in x[bent].tolist()]
    return result


def softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def sigmoid(x: Array) -> Array:
    power = np.exp(-np.abs(x))
    below: Array = np.where(x < 0, power, 1.0) / (1 + power)
    return below


def product(x: Array, factor: Array) -> Array:
    """x * factor, 0 where x is -inf: what the product tends to."""
    return np.where(np.isneginf(x), -0.0, x * factor)


def gelu_tanh(x: Array) -> Array:
    """x * (1 + tanh u) / 2 is x * sigmoid(2 u)."""
    return np.asarray(x * sigmoid(2 * math.sqrt(2 / math.pi) * (x * x * x * 0.044715 + x)))


@dataclass(frozen=True, slots=True)
class Function:
    """An operator's own definition in float64. most: the most ulps that its float32 may be off.
    of_argument: ulps are the argument's where these are larger: of functions that multiply it by
    something that vanishes."""

    exact: Callable[[Array], Array]
    most: float = 4
    attrs: Mapping[str, Any] = field(default_factory=dict)
    op: str = ""
    of_argument: bool = False


ALPHA, GAMMA = 1.6732632423543772, 1.0507009873554805
FUNCTIONS: dict[str, Function] = {
    "abs": Function(np.abs, 0),
    "acos": Function(np.arccos),
    "acosh": Function(np.arccosh),
    "asin": Function(np.arcsin),
    "asinh": Function(np.arcsinh),
    "atan": Function(np.arctan),
    "atanh": Function(np.arctanh),
    "ceil": Function(np.ceil, 0),
    "clip": Function(lambda x: np.clip(x, -1.5, 2.5), 0, {"min": -1.5, "max": 2.5}),
    "cos": Function(np.cos),
    "cosh": Function(np.cosh),
    "elu": Function(lambda x: np.where(x < 0, np.expm1(x), x), attrs={"alpha": 1.0}),
    "erf": Function(erf),
    "exp": Function(np.exp),
    "floor": Function(np.floor, 0),
    "gelu": Function(
        lambda x: product(x, erfc(-x * 0.5**0.5) / 2),
        23,  # a rational function of few terms: codegen/math.py
        attrs={"approximate": "none"},
        of_argument=True,
    ),
    "gelu (tanh)": Function(gelu_tanh, attrs={"approximate": "tanh"}, op="gelu", of_argument=True),
    "hard_sigmoid": Function(
        lambda x: np.clip(x * float(np.float32(0.2)) + 0.5, 0, 1),
        attrs={"alpha": float(np.float32(0.2)), "beta": 0.5},
        of_argument=True,
    ),
    "hard_swish": Function(lambda x: x * np.clip(x / 6 + 0.5, 0, 1), of_argument=True),
    "leaky_relu": Function(lambda x: np.where(x < 0, x * 0.125, x), attrs={"alpha": 0.125}),
    "log": Function(np.log),
    "mish": Function(lambda x: x * np.tanh(softplus(x)), of_argument=True),
    "negative": Function(np.negative, 0),
    "reciprocal": Function(lambda x: 1 / x),
    "relu": Function(lambda x: np.maximum(x, 0), 0),
    "round": Function(np.rint, 0),
    "selu": Function(
        lambda x: np.where(x > 0, x, np.expm1(x) * ALPHA) * GAMMA,
        attrs={"alpha": ALPHA, "gamma": GAMMA},
    ),
    "sigmoid": Function(sigmoid),
    "sign": Function(np.sign, 0),
    "silu": Function(lambda x: product(x, sigmoid(x)), of_argument=True),
    "sin": Function(np.sin),
    "sinh": Function(np.sinh),
    "softplus": Function(softplus),
    "softsign": Function(lambda x: x / (1 + np.abs(x))),
    "sqrt": Function(np.sqrt, 0),
    "tan": Function(np.tan),
    "tanh": Function(np.tanh),
    "thresholded_relu": Function(lambda x: np.where(x > 1, x, 0), 0, {"alpha": 1.0}),
}


# ------------------------------------------------------------------------------------- patterns


def ends() -> Array:
    """Infinities, NaN, zeros, the ends of normal and denormal numbers, where functions bend, with
    the neighbours of each; multiples of pi / 2; all bfloat16 numbers."""
    bends = [0.0, 2.0**-149, TINY, 2.0**-24, 0.25, 0.41421356, 0.5, 0.625, 0.70710678, 1, 1.5, 2]
    bends += [2.4142136, 4, 4.714182, 5, 6, 9.1, 16.6, 17, 20, 80, 87, 87.33655, 87.68312, 88]
    bends += [88.72284, 89, 89.415985, 89.5, 103.27893, 103.97208, 104, 104.2, 150, 12800, 2.0**23]
    bends += [2.0**24, 2.0**31, 2.0**32, 2.0**40, 2.0**63, 1.8446743e19, 1e20, 3.4028235e38, np.inf]
    middle = np.array([*bends, np.nan], np.float32)
    with np.errstate(all="ignore"):
        around = [np.nextafter(middle, np.float32(t)) for t in (-np.inf, np.inf)]
    close = np.concatenate([middle, *around])
    quarters = (np.arange(-4096, 4096) * (np.pi / 2)).astype(np.float32)
    short = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    return np.concatenate([close, -close, quarters, short])


def patterns(count: int) -> Iterator[Array]:
    """float32 numbers in pieces of one length: `count` patterns, one of each stretch of all of
    them; then the ends."""
    rng = np.random.default_rng(7)
    step, length = (1 << 32) // count, min(count, CHUNK)
    for first in range(0, count, length):
        bits = (np.arange(first, first + length, dtype=np.uint64) * step).astype(np.uint32)
        if step > 1:
            bits += rng.integers(0, step, length, np.uint32)
        yield bits.view(np.float32)
    if step > 1:
        last = ends()
        for first in range(0, len(last), length):
            yield np.resize(last[first : first + length], length)


def halves() -> Iterator[Array]:
    """All float16 numbers."""
    yield np.arange(1 << 16, dtype=np.uint16).view(np.float16)


# -------------------------------------------------------------------------------------- measures


def distances(actual: Array, wanted: Array, unit: Array) -> Array:
    """Of `actual` from the results in float64, in ulp of `unit` as its dtype; 0 where both are the
    same infinity or no number, infinite where only one is."""
    dtype = actual.dtype
    with np.errstate(all="ignore"):
        nearest = wanted.astype(dtype)
        right = (actual == nearest) | (np.isnan(actual) & np.isnan(nearest))
        result = np.zeros(actual.shape)
        off = np.flatnonzero(~right)
        if len(off):
            size = np.minimum(np.abs(unit[off].astype(dtype)), np.finfo(dtype).max)
            near = np.abs(actual[off].astype(np.float64) - wanted[off])
            result[off] = np.nan_to_num(near / np.spacing(size).astype(np.float64), nan=np.inf)
    return result


def error_of(function: Function, x: Array, actual: Array, wanted: Array) -> Array:
    """Of each result, in ulp: of itself, or of the argument where that is larger."""
    unit = np.maximum(np.abs(wanted), np.abs(x)) if function.of_argument else wanted
    return distances(actual, wanted, unit)


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels run. flushes: float32 numbers below 2^-126 count as 0, and results below 2^-124
    may be 0, since a part of them is below 2^-126."""

    title: str
    board: str
    target: str
    flushes: bool = False


PLACES = (
    Place("x86-64", "local://", "host"),
    Place("AArch64", "qemu://cortex-a72", "aarch64"),
    Place("ARMv7", "qemu://cortex-a7", "armv7a", flushes=True),
)


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest error, and where."""

    error: float = 0.0
    x: float = 0.0
    actual: float = 0.0
    wanted: float = 0.0

    def __str__(self) -> str:
        return f"{self.error:.2f} ulp at {self.x!r}: {self.actual!r}, not {self.wanted!r}"


def kernel(name: str, symbol: str, length: int, dtype: str, target: str) -> PrimFunc:
    function = FUNCTIONS[name]
    builder = BlockBuilder(symbol)
    x = builder.param("x", (length,), dtype)
    made = builder.emit(Call(function.op or name, (x,), frozen_attrs(dict(function.attrs))))
    return lower_fused(builder.finish([made]), Target(target), symbol)


def measured(
    session: Session, place: Place, names: Iterable[str], pieces: Iterator[Array]
) -> dict[str, Worst]:
    """The largest error of each function of the numbers in `pieces`, arrays of one length."""
    found, module = dict.fromkeys(names, Worst()), None
    symbols = {name: f"function{n}" for n, name in enumerate(found)}
    if len(symbols) == 1:  # a single kernel has the library's name
        symbols = dict.fromkeys(symbols, "functions")
    for x in pieces:
        if module is None:
            made = {
                s: kernel(name, s, x.size, x.dtype.name, place.target)
                for name, s in symbols.items()
            }
            module = session.load(build(IRModule(made), target=place.target, name="functions"))
        given, result = session.tensor(x), session.tensor(np.zeros_like(x))
        for name, symbol in symbols.items():
            module[symbol](given, result)
            worst = _worst(FUNCTIONS[name], x, result.numpy(), place.flushes)
            found[name] = max(found[name], worst, key=lambda w: w.error)
        given.close()
        result.close()
    if module is not None:
        module.close()
    return found


def flushed(x: Array) -> Array:
    """float32 numbers, the denormal ones as 0."""
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)


def _worst(function: Function, x: Array, actual: Array, flushes: bool) -> Worst:
    with np.errstate(all="ignore"):
        wanted = function.exact(x.astype(np.float64))
        off = error_of(function, x, actual, wanted)
        if flushes and x.dtype == np.float32:
            other = function.exact(flushed(x).astype(np.float64))
            off = np.minimum(off, error_of(function, flushed(x), flushed(actual), other))
            off[(np.abs(wanted) < 4 * TINY) & (actual == 0)] = 0
    at = int(off.argmax())
    return Worst(*(float(v[at]) for v in (off, x, actual, wanted)))


# ------------------------------------------------------------------------------------------ page

COLUMNS = (*(p.title for p in PLACES), "float16")
Figures = dict[str, dict[str, float]]  # by function and column


def table(figures: Figures) -> str:
    lines = [f"| function | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, row in figures.items():
        cells = " | ".join(f"{row[column]:.2f}" for column in COLUMNS)
        lines.append(f"| {name}{' *' * FUNCTIONS[name].of_argument} | {cells} |")
    return "\n".join(lines)


def written() -> Figures:
    """The page's figures."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.strip().splitlines()]
    return {
        row[0].removesuffix(" *"): dict(zip(COLUMNS, map(float, row[1:]), strict=True))
        for row in rows[2:]
    }


def figures_of(names: Iterable[str], count: int, every: bool) -> Figures:
    found: Figures = {name: dict.fromkeys(COLUMNS, 0.0) for name in names}
    for place in PLACES:
        with mlc.connect(place.board) as session:
            own = 1 << 32 if every and place is PLACES[0] else count
            for column, pieces in ((place.title, patterns(own)), ("float16", halves())):
                for name, worst in measured(session, place, found, pieces).items():
                    # rounded up, so that no figure is above the page's
                    error = math.ceil(worst.error * 100 - 1e-6) / 100
                    found[name][column] = max(found[name][column], error)
                    print(f"{place.title}, {column}: {name} {worst}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the page")
    parser.add_argument("--only", nargs="*", default=list(FUNCTIONS), help="these functions")
    parser.add_argument("--patterns", type=int, default=SAMPLE, help="of float32: a power of two")
    parser.add_argument("--all", action="store_true", help="all 2^32 patterns on this machine")
    args = parser.parse_args()
    figures = figures_of(args.only, args.patterns, args.all)
    if args.check:
        page = written()
        above = [
            f"{name}, {column}: {error:.2f} ulp, the page has {page[name][column]:.2f}"
            for name, row in figures.items()
            for column, error in row.items()
            if error > page[name][column]
        ]
        print("\n".join(above))
        return 1 if above else 0
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    made = written() | figures if "|" in rest.split(END)[0] else figures
    made = {name: made[name] for name in FUNCTIONS if name in made}
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(made)}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
