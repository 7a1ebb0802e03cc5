"""One kernel per operator and dtype: what generated code must compute, element by element.

The operands leave out what is undefined: division by zero, shifts by the width and more, floats
that do not fit the integer they are cast to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy import te
from mlc_deploy.ir import Expr, PrimFunc, binary, cast, compare, dtype_of, numpy_dtype, value_range

Array = NDArray[Any]

FLOATS = ("float16", "float32", "float64")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = (*FLOATS, *INTEGERS, "bool")
NUMBERS = 261  # no multiple of any vector


@dataclass(frozen=True, slots=True)
class Case:
    """`element` of the inputs' elements; `ulps` is how far the result may be from the reference."""

    name: str
    inputs: tuple[str, ...]
    element: Callable[..., Expr]
    operands: Callable[[], list[Array]]
    ulps: float = 0

    def program(self, length: int = NUMBERS) -> PrimFunc:
        sources = [te.placeholder((length,), d, f"x{n}") for n, d in enumerate(self.inputs)]
        out = te.compute((length,), lambda i: self.element(*(x[i] for x in sources)), name="out")
        return te.create_prim_func([*sources, out], self.name)


def drawn(dtype: str, seed: int) -> Array:
    """Numbers of every size and sign, the extremes among them; floats with inf, nan and zeros."""
    rng = np.random.default_rng(seed)
    kind = dtype_of(dtype)
    if kind.kind == "bool":
        return rng.integers(0, 2, NUMBERS).astype(bool)
    if kind.kind == "float":
        scale = 10.0 ** rng.uniform(-3, 3, NUMBERS)
        values = (rng.standard_normal(NUMBERS) * scale).astype(numpy_dtype(dtype))
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1.0]
        values[: len(special)] = special
        rng.shuffle(values)
        return values
    low, high = (int(v) for v in value_range(dtype))
    values = rng.integers(low, high, NUMBERS, numpy_dtype(dtype).type, endpoint=True)
    values[: NUMBERS // 2] = rng.integers(max(low, -9), 10, NUMBERS // 2)
    values[:2] = low, high
    rng.shuffle(values)
    return values


def single(dtype: str) -> list[Array]:
    return [drawn(dtype, 1)]


def pair(dtype: str) -> list[Array]:
    return [drawn(dtype, 1), drawn(dtype, 2)]


def triple(dtype: str) -> list[Array]:
    return [drawn(dtype, 1), drawn(dtype, 2), drawn(dtype, 4)]


def chosen(dtype: str) -> list[Array]:
    return [drawn("bool", 3), *pair(dtype)]


def division(dtype: str) -> list[Array]:
    """Divisors that are not 0, and not -1 (which overflows on the smallest number)."""
    a, b = pair(dtype)
    b[(b == 0) | (b == np.array(-1).astype(b.dtype))] = 7
    return [a, b]


def shift(dtype: str) -> list[Array]:
    a, b = pair(dtype)
    return [a, np.abs(b.astype(np.int64) % dtype_of(dtype).bits).astype(a.dtype)]


def castable(source: str, to: str) -> list[Array]:
    (values,) = [drawn(source, 3)]
    if dtype_of(source).kind == "float" and dtype_of(to).is_integer:
        low, high = value_range(to)
        bound = min(float(high), float(value_range(source)[1])) / 2
        values = np.clip(
            np.nan_to_num(values, nan=3.5, posinf=9, neginf=0), max(low, -bound), bound
        )
    return [values.astype(numpy_dtype(source))]


def binary_cases() -> Iterator[Case]:
    for dtype in (*FLOATS, *INTEGERS):
        floating = dtype in FLOATS
        for op in ("+", "-", "*", "/") if floating else ("+", "-", "*", "&", "|", "^"):
            yield _binary(op, dtype, pair)
        for op in () if floating else ("//", "%", "tdiv", "tmod"):
            yield _binary(op, dtype, division)
        for op in () if floating else ("<<", ">>"):
            yield _binary(op, dtype, shift)
        for op in ("min", "max"):
            yield _binary(op, dtype, pair)
    for op in ("&", "|", "^", "and", "or"):
        yield _binary(op, "bool", pair)


def _binary(op: str, dtype: str, operands: Callable[[str], list[Array]]) -> Case:
    names = {"+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod"}
    names |= {"&": "and_bits", "|": "or_bits", "^": "xor", "<<": "shl", ">>": "shr"}
    return Case(
        f"{names.get(op, op)}_{dtype}",
        (dtype, dtype),
        partial(binary, op),
        partial(operands, dtype),
    )


def compare_cases() -> Iterator[Case]:
    names = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
    for dtype in DTYPES:
        for op in names if dtype != "bool" else ("==", "!="):
            yield Case(
                f"{names[op]}_{dtype}",
                (dtype, dtype),
                partial(compare, op),
                partial(pair, dtype),
            )


def select_cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield Case(
            f"select_{dtype}",
            ("bool", dtype, dtype),
            te.select,
            partial(chosen, dtype),
        )
        yield Case(
            f"if_then_else_{dtype}",
            ("bool", dtype, dtype),
            te.if_then_else,
            partial(chosen, dtype),
        )
    yield Case("not_bool", ("bool",), te.not_, partial(single, "bool"))


def cast_cases() -> Iterator[Case]:
    for source in DTYPES:
        for to in DTYPES:
            if source != to:
                yield Case(
                    f"cast_{source}_{to}",
                    (source,),
                    partial(cast, to),
                    partial(castable, source, to),
                )


# The largest error in units in the last place, by function; other dtypes than float32 go through
# libm, or through float32.
ULPS = {"exp": 3, "expm1": 3, "log": 2, "log1p": 3, "tanh": 3, "sigmoid": 4, "erf": 3}
ULPS |= {"sin": 3, "cos": 3, "tan": 4}
POWER_ULPS = 2 * 745  # of float64, whose exponent is ln of the result: operators.py
EXACT = ("sqrt", "floor", "ceil", "round", "trunc", "abs")


def call_cases() -> Iterator[Case]:
    for dtype in FLOATS:
        for name in (*EXACT, *ULPS):
            function: Callable[[Expr], Expr] = getattr(te, name)
            yield Case(
                f"{name}_{dtype}",
                (dtype,),
                function,
                partial(single, dtype),
                0 if name in EXACT else ULPS.get(name, 2),
            )
        for name in ("pow", "fmod"):
            yield Case(
                f"{name}_{dtype}",
                (dtype, dtype),
                getattr(te, name),
                partial(pair, dtype),
                {"pow": POWER_ULPS if dtype == "float64" else 2}.get(name, 0),
            )
        yield Case(
            f"fma_{dtype}",
            (dtype,) * 3,
            te.fma,
            partial(triple, dtype),
            1,
        )
    for dtype in ("int8", "int32"):
        yield Case(f"abs_{dtype}", (dtype,), te.abs, partial(single, dtype))


def all_cases() -> list[Case]:
    return [*binary_cases(), *compare_cases(), *select_cases(), *cast_cases(), *call_cases()]
