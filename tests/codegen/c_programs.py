"""Programs whose numbers in C are held against numpy's and LLVM's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy import te
from mlc_deploy.ir import PrimFunc, Var, binary, cast, const, dtype_of
from mlc_deploy.ops import compute, evaluate
from mlc_deploy.schedule import Schedule

Array = NDArray[Any]
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Program:
    """A function, its inputs, and what its outputs must be: the last parameters, in order."""

    name: str
    func: PrimFunc
    inputs: Sequence[Array]
    expected: Sequence[Array]
    scalars: Sequence[int] = field(default=())


def values(shape: Sequence[int], dtype: str, seed: int) -> Array:
    """Integers over their whole range, floats of moderate size."""
    rng = np.random.default_rng(seed)
    match dtype_of(dtype).kind:
        case "float":
            return rng.normal(0, 2, tuple(shape)).astype(dtype)
        case "bool":
            return rng.integers(0, 2, tuple(shape)).astype(bool)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, tuple(shape), dtype, endpoint=True)


def program(
    name: str,
    inputs: Sequence[Array],
    fcompute: Callable[..., Any],
    expected: Array,
    shape: Sequence[int] = (),
) -> Program:
    """fcompute(*input tensors) gives the element at the indices; it takes them after the tensors
    when it has more parameters."""
    tensors = [te.placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(inputs)]
    out = te.compute(shape or expected.shape, lambda *i: fcompute(*(t[i] for t in tensors)), "y")
    assert out.dtype == str(expected.dtype), (name, out.dtype, expected.dtype)
    return Program(name, te.create_prim_func([*tensors, out], name), inputs, [expected])


def operator(op: str, inputs: Sequence[Array], **attrs: Any) -> Program:
    """An operator of the library, against its numpy definition."""
    tensors = [te.placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(inputs)]
    func = te.create_prim_func([*tensors, *compute(op, tensors, attrs)], op)
    return Program(op, func, inputs, evaluate(op, inputs, attrs))


def arithmetic() -> list[Program]:
    found = []
    for dtype in (*INTEGERS, *FLOATS):
        a, b = values((3, 37), dtype, 1), values((3, 37), dtype, 2)
        with np.errstate(over="ignore"):
            found.append(program(f"sum_{dtype}", [a, b], lambda x, y: x * y + (x - y), a * b + (a - b)))
        smaller, larger = np.minimum(a, b), np.maximum(a, b)
        clipped = program(
            f"extremes_{dtype}", [a, b], lambda x, y: te.maximum(x, y) - te.minimum(x, y), larger - smaller
        )
        found.append(clipped)
    for dtype in INTEGERS:
        a, b = values((130,), dtype, 3), values((130,), dtype, 4)
        shift = (b & 7).astype(dtype)
        found += [
            program(f"bits_{dtype}", [a, b], lambda x, y: (x & y) ^ (x | 5), (a & b) ^ (a | a.dtype.type(5))),
            program(f"right_{dtype}", [a, shift], lambda x, y: x >> y, a >> shift),
            program(f"left_{dtype}", [a, shift], lambda x, y: x << y, a << shift),
        ]
    return found


def divisions() -> list[Program]:
    found = []
    for dtype in INTEGERS:
        a, b = values((257,), dtype, 5), values((257,), dtype, 6)
        b[(b == 0) | (b == b.dtype.type(-1 % 2**64 if b.dtype.kind == "u" else -1))] = 3
        found += [
            program(f"floordiv_{dtype}", [a, b], lambda x, y: x // y, a // b),
            program(f"floormod_{dtype}", [a, b], lambda x, y: x % y, a % b),
            program(f"truncmod_{dtype}", [a, b], te.truncmod, np.fmod(a, b)),
            program(f"truncdiv_{dtype}", [a, b], te.truncdiv, ((a - np.fmod(a, b)) // b).astype(dtype)),
            program(f"constant_{dtype}", [a], lambda x: x // 7 + x % 7, a // a.dtype.type(7) + a % a.dtype.type(7)),
        ]
    return found
