"""Random kernels whose results are exact, so that every machine must give the same bits.

Integers are of all dtypes and over their whole ranges, divided and shifted by anything. Floats that
are added and multiplied are small multiples of 1/4; those of any size, infinite and NaN, are only
compared and converted. Shapes are static, or have a dynamic dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy import te
from mlc_deploy.ir import (
    MOST,
    Expr,
    PrimFunc,
    Var,
    binary,
    cast,
    const,
    dtype_of,
    substitute,
    with_fields,
)
from mlc_deploy.ir.interp import run
from mlc_deploy.ir.nodes import dim
from tests.backends.programs import Case

Array = NDArray[Any]
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DIVISIONS = ("//", "%", "tdiv", "tmod")
BITS = ("&", "|", "^", "<<", ">>")
PLAIN = ("+", "-", "*", "min", "max")
DEPTH = 3
SIZES = (0, 1, 2, 3, 7, 8, 17)  # of a dynamic dimension


@dataclass(frozen=True)
class RandomKernel:
    func: PrimFunc
    case: Case
    expected: list[Array]


@dataclass
class Draw:
    """The inputs of a kernel so far: every one is read at the element that is computed."""

    rng: Random
    shape: tuple[Any, ...]
    sizes: tuple[int, ...]
    tensors: list[te.Tensor] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)

    def read(self, dtype: str, at: Sequence[Expr], wild: bool = False) -> Expr:
        known = [t for t in self.tensors if t.dtype == dtype and not wild]
        if known and self.rng.random() < 0.4:
            return self.rng.choice(known)[tuple(at)]
        numbers = np.random.default_rng(self.rng.randrange(1 << 30))
        tensor = te.placeholder(self.shape, dtype, f"x{len(self.tensors)}")
        self.arrays.append(elements(numbers, self.sizes, dtype, wild))
        self.tensors.append(tensor)
        return tensor[tuple(at)]


def elements(rng: np.random.Generator, shape: Sequence[int], dtype: str, wild: bool) -> Array:
    """Edges often, and what lies between them."""
    kind = dtype_of(dtype).kind
    if kind == "bool":
        return rng.integers(0, 2, tuple(shape)).astype(bool)
    if kind == "float":
        small = (rng.integers(-12, 13, tuple(shape)) / 4).astype(dtype)
        if not wild:
            return small
        edges = [np.nan, np.inf, 1e30, 2.0**31, 2.0**32, 2.0**63, 2.0**64, 127.5, 255.5, 3e9, 0.5]
        with np.errstate(over="ignore"):
            every = np.array([*edges, *(-e for e in edges)]).astype(dtype)
        return np.asarray(np.where(rng.random(shape) < 0.6, rng.choice(every, shape), small))
    info = np.iinfo(dtype)
    some = [0, 1, 2, 7, info.max, info.min, info.max - 1, info.min + 1, info.bits, info.bits - 1]
    edges_ = np.array([*some, *(-1, -2, -7) * (info.min < 0)], dtype)
    whole = rng.integers(info.min, info.max, tuple(shape), dtype, endpoint=True)
    return np.asarray(np.where(rng.random(shape) < 0.6, rng.choice(edges_, shape), whole))


def integer(d: Draw, at: Sequence[Expr], dtype: str, depth: int) -> Expr:
    rng = d.rng
    if depth == 0 or rng.random() < 0.1:
        if rng.random() < 0.3:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            return const(rng.choice([0, 1, 2, 3, 5, 8, low, high, rng.randint(low, high)]), dtype)
        return d.read(dtype, at)
    match rng.randrange(8):
        case 0 | 1:
            op = rng.choice(DIVISIONS)
        case 2:
            op = rng.choice(BITS)
        case 3:
            other = rng.choice(INTEGERS)
            return cast(dtype, integer(d, at, other, depth - 1))
        case 4:
            return cast(dtype, anything(d, at, rng.choice(("float32", "float64", "float16"))))
        case 5:
            sides = (integer(d, at, dtype, depth - 1) for _ in range(2))
            choose: Callable[..., Expr] = rng.choice((te.select, te.if_then_else))
            return choose(condition(d, at, depth - 1), *sides)
        case _:
            op = rng.choice(PLAIN)
    return binary(op, integer(d, at, dtype, depth - 1), integer(d, at, dtype, depth - 1))


def anything(d: Draw, at: Sequence[Expr], dtype: str) -> Expr:
    """A float of any size; clamped sometimes, as quantization does."""
    x = d.read(dtype, at, wild=True)
    if d.rng.random() < 0.3:
        x = te.round(x)
    if d.rng.random() < 0.3:
        low, high = d.rng.choice(((-128, 127), (0, 255), (-40000, 40000)))
        x = te.minimum(te.maximum(x, low), high)
    return x


def real(d: Draw, at: Sequence[Expr], dtype: str, depth: int) -> Expr:
    """A float that is exact on every machine: a small multiple of a power of 2."""
    rng = d.rng
    if depth == 0 or rng.random() < 0.1:
        if rng.random() < 0.3:
            return const(rng.randint(-8, 8) / 4, dtype)
        return d.read(dtype, at)
    match rng.randrange(6):
        case 0:
            name = rng.choice(("floor", "ceil", "trunc", "round", "abs"))
            stepped: Expr = getattr(te, name)(real(d, at, dtype, depth - 1))
            return stepped
        case 1:
            small = rng.choice(("int8", "uint8", "int16"))
            whole = integer(d, at, small, depth - 1)
            return cast(dtype, binary("%", whole, const(16, small)))
        case 2:
            sides = (real(d, at, dtype, depth - 1) for _ in range(2))
            return te.select(condition(d, at, depth - 1), *sides)
        case 3:
            other = "float64" if dtype == "float32" else "float32"
            return cast(dtype, real(d, at, other, depth - 1))
    op = rng.choice(PLAIN)
    return binary(op, real(d, at, dtype, depth - 1), real(d, at, dtype, depth - 1))


def condition(d: Draw, at: Sequence[Expr], depth: int) -> Expr:
    rng = d.rng
    if rng.random() < 0.2:
        return d.read("bool", at)
    if rng.random() < 0.3:
        a, b = (anything(d, at, "float32") for _ in range(2))
    else:
        dtype = rng.choice(INTEGERS)
        a, b = (integer(d, at, dtype, max(depth, 0)) for _ in range(2))
    return rng.choice((a < b, a <= b, a.equal(b), te.not_(a.equal(b))))


def element(d: Draw, at: Sequence[Expr], dtype: str) -> Expr:
    if dtype_of(dtype).kind == "float":
        return real(d, at, dtype, DEPTH)
    return condition(d, at, DEPTH) if dtype == "bool" else integer(d, at, dtype, DEPTH)


def kernel(seed: int) -> RandomKernel:
    """Elementwise, or a sum of rows, or a transposed or shifted read of a stage before it."""
    rng = Random(seed)
    dynamic = rng.random() < 0.6
    size = rng.choice(SIZES if dynamic else (1, 5, 16, 33))
    n: Any = te.var("n") if dynamic else size
    more = rng.choice(((), (rng.choice((1, 3, 8)),), (2, 5)))
    place = rng.randrange(len(more) + 1)
    shape: tuple[Any, ...] = (*more[:place], n, *more[place:])
    sizes = (*more[:place], size, *more[place:])
    d = Draw(rng, shape, sizes)
    dtype = rng.choice((*INTEGERS, "float32", "float64", "bool"))
    first = te.compute(shape, lambda *i: element(d, i, dtype), "first")
    out = first
    kind = rng.choice(("plain", "plain", "rows", "turned", "fused"))
    number = dtype_of(dtype).kind != "bool"
    if kind == "rows" and number and len(shape) > 1:
        k = te.reduce_axis((0, shape[-1]), "k")
        combine = rng.choice((te.sum, te.max, te.min))
        out = te.compute(shape[:-1], lambda *i: combine(first[(*i, k)], axis=k), "out")
    elif kind == "turned" and len(shape) > 1:
        out = te.compute(shape[::-1], lambda *i: first[i[::-1]], "out")
    elif kind == "fused" and len(shape) > 1:
        rest = shape[1]
        total = (shape[0] * rest, *shape[2:])
        out = te.compute(total, lambda j, *i: first[(j // rest, j % rest, *i)], "out")
    if not d.tensors:  # a constant: something must say the shape
        d.read("int8", [const(0)] * len(shape))
        return kernel(seed + (1 << 32))
    func = te.create_prim_func([*d.tensors, out], f"kernel_{seed}")
    if dynamic:
        func = with_fields(func, attrs={**func.attrs, MOST: {"n": max(SIZES)}})
    return _finished(func, d, size if dynamic else None, n)


def _finished(func: PrimFunc, d: Draw, size: int | None, n: Any) -> RandomKernel:
    known = {v: size for v in (n,) if isinstance(v, Var)}
    buffer = func.buffers[-1]
    shape = [_number(extent, known) for extent in buffer.shape]
    like = np.zeros(shape, np.dtype(dtype_of(buffer.dtype).scalar))
    fill = np.frombuffer(b"\x55" * like.nbytes, like.dtype).reshape(like.shape)
    if buffer.dtype == "bool":
        fill = np.ones_like(like)
    given = [*d.arrays, fill.copy()]
    expected = [a.copy() for a in given]
    status = run(func, *expected)
    assert status == 0
    scalars = {"n": size} if size is not None else {}
    return RandomKernel(func, Case(given, scalars), expected)


def _number(extent: Any, known: dict[Var, Any]) -> int:
    if isinstance(extent, int):
        return extent
    found = dim(substitute(extent, {v: const(x) for v, x in known.items()}))
    assert isinstance(found, int)
    return found
