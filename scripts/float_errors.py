"""Measures the largest error of every function of one number, and writes the table of
docs/reference/numbers.md.

    python scripts/float_errors.py [--check] [--only NAME ...] [--patterns N] [--all]

Each function runs as a compiled kernel on this machine (x86-64) and on emulated boards (AArch64,
ARMv7), for N patterns of float32, evenly spread over all 2^32, and for the ends; --all takes every
pattern on this machine. float16 and bfloat16 are taken whole. Errors are distances from float64
results, in units in the last place (ulp) of the nearest number of the dtype. With --check nothing
is written: the exit status is 1 where a figure is above the page's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.driver.build import build
from mlc_deploy.graph import BlockBuilder
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ops import frozen_attrs
from mlc_targets import Target

if TYPE_CHECKING:
    from mlc_rpc import Session

Array = NDArray[Any]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "numbers.md"
BEGIN, END = "<!-- scripts/float_errors.py writes this table -->", "<!-- end of the table -->"
SAMPLE = 1 << 22
CHUNK = 1 << 22
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
    return np.where(x < 0, power, 1.0) / (1 + power)


def product(x: Array, factor: Array) -> Array:
    """x * factor, 0 where x is -inf: what the product tends to."""
    return np.where(np.isneginf(x), -0.0, x * factor)


def gelu_tanh(x: Array) -> Array:
    """x * (1 + tanh u) / 2 is x * sigmoid(2 u)."""
    return x * (sigmoid(2 * math.sqrt(2 / math.pi) * (x * x * x * 0.044715 + x)))


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
        attrs={"approximate": "none"},
        of_argument=True,
    ),
    "gelu (tanh)": Function(gelu_tanh, attrs={"approximate": "tanh"}, op="gelu", of_argument=True),
    "hard_sigmoid": Function(
        lambda x: np.clip(x * float(np.float32(0.2)) + 0.5, 0, 1),
        attrs={"alpha": float(np.float32(0.2)), "beta": 0.5},
    ),
    "hard_swish": Function(
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1), of_argument=True
    ),
    "leaky_relu": Function(
        lambda x: np.where(x < 0, x * 0.125, x), attrs={"alpha": 0.125}
    ),
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
    "softsign": Function(
        lambda x: x / (1 + np.abs(x))
    ),
    "sqrt": Function(np.sqrt, 0),
    "tan": Function(np.tan),
    "tanh": Function(np.tanh),
    "thresholded_relu": Function(lambda x: np.where(x > 1, x, 0), 0, {"alpha": 1.0}),
}


# ------------------------------------------------------------------------------------- patterns


def ends() -> Array:
    """Infinities, NaN, zeros, the ends of normal and denormal numbers, and where functions bend,
    with their neighbours."""
    bends = [0.0, 2.0**-149, TINY, 2.0**-24, 0.25, 0.41421356, 0.5, 0.625, 0.70710678, 1, 1.5, 2]
    bends += [2.4142136, 4, 4.6, 5, 6, 9.1, 16.6, 17, 20, 80, 87, 87.33655, 87.68312, 88, 88.72284]
    bends += [89, 89.415985, 89.5, 103.27893, 103.97208, 104, 104.2, 150, 12800, 2.0**23, 2.0**24]
    bends += [2.0**31, 2.0**32, 2.0**63, 1.8446743e19, 2.0**64, 1e20, 3.4028235e38, np.inf, np.nan]
    middle = np.array(bends, np.float32)
    with np.errstate(all="ignore"):
        around = [np.nextafter(middle, np.float32(t)) for t in (-np.inf, np.inf)]
    close = np.concatenate([middle, *around])
    quarters = (np.arange(-4096, 4096) * (np.pi / 2)).astype(np.float32)
    return np.concatenate([close, -close, quarters])


def patterns(count: int) -> Iterator[Array]:
    """float32 numbers in pieces: `count` patterns, one of each stretch of all of them, then the
    ends."""
    rng = np.random.default_rng(7)
    step = (1 << 32) // count
    for first in range(0, count, CHUNK):
        size = min(CHUNK, count - first)
        bits = (np.arange(first, first + size, dtype=np.uint64) * step).astype(np.uint32)
        if step > 1:
            bits += rng.integers(0, step, size, np.uint32)
        yield bits.view(np.float32)
    if count < 1 << 32:
        last = ends()
        yield np.concatenate([last, np.ones(-len(last) % 64 + 5, np.float32)])


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
            most = np.finfo(dtype).max
            step = np.spacing(np.minimum(np.abs(unit[off].astype(dtype)), most)).astype(np.float64)
            near = np.abs(actual[off].astype(np.float64) - wanted[off]) / step
            result[off] = np.where(np.isnan(near), np.inf, near)
    return result


def flushed(x: Array) -> Array:
    """Denormal numbers as 0, as 32-bit ARM takes them."""
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels run."""

    title: str
    board: str
    target: str
    flushes: bool = False


PLACES = (
    Place("x86-64", "local://", "host"),
    Place("AArch64", "qemu://cortex-a72", "aarch64"),
    Place("ARMv7", "qemu://cortex-a7", "armv7a", flushes=True),
)


def kernel(name: str, count: int, dtype: str, target: str) -> Any:
    function = FUNCTIONS[name]
    builder = BlockBuilder("function")
    x = builder.param("x", (count,), dtype)
    made = builder.emit(Call(function.op or name, (x,), frozen_attrs(dict(function.attrs))))
    func = lower_fused(builder.finish([made]), Target(target), "function")
    return build(func, target=target, name="function")


@dataclass(frozen=True, slots=True)
class Worst:
    error: float
    x: float
    actual: float
    wanted: float

    def __str__(self) -> str:
        return f"{self.error:.2f} at {self.x!r}: {self.actual!r}, not {self.wanted!r}"


def worst(
    session: Session, place: Place, name: str, pieces: Iterator[Array]
) -> Worst:
    """The largest error of a function of the numbers in `pieces`."""
    function, modules = FUNCTIONS[name], dict[int, Any]()
    found = Worst(0.0, 0.0, 0.0, 0.0)
    for x in pieces:
        if x.size not in modules:
            modules[x.size] = session.load(kernel(name, x.size, x.dtype.name, place.target))
        given, result = session.tensor(x), session.tensor(np.zeros_like(x))
        modules[x.size]["function"](given, result)
        actual = result.numpy()
        given.close(), result.close()
        with np.errstate(all="ignore"):
            wanted = function.exact(x.astype(np.float64))
            off = error_of(function, x, actual, wanted)
            if place.flushes:
                zero = flushed(x)
                other = function.exact(zero.astype(np.float64))
                off = np.minimum(off, error_of(function, zero, actual, other))
                off[(np.abs(wanted) < 4 * TINY) & (actual == 0)] = 0
        at = int(off.argmax())
        if off[at] > found.error:
            found = Worst(*(float(v[at]) for v in (off, x, actual, wanted)))
    for module in modules.values():
        module.close()
    return found


def error_of(function: Function, x: Array, actual: Array, wanted: Array) -> Array:
    """Of each result, in ulp: of itself, or of the argument where that is larger."""
    unit = np.maximum(np.abs(wanted), np.abs(x)) if function.of_argument else wanted
    return distances(actual, wanted, unit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(FUNCTIONS))
    parser.add_argument("--patterns", type=int, default=SAMPLE)
    parser.add_argument("--places", nargs="*", default=[p.title for p in PLACES])
    args = parser.parse_args()
    for place in PLACES:
        if place.title in args.places:
            with mlc.connect(place.board) as session:
                for name in args.only:
                    print(place.title, name, worst(session, place, name, patterns(args.patterns)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
