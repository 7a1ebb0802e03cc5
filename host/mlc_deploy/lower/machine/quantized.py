"""Floats that are quantized and at once dequantized stay floats."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ...arith import simplify_expr
from ...ir import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Expr,
    PrimFunc,
    Select,
    Var,
    cast,
    compare,
    const,
    contents,
    dtype_of,
    is_const,
    once,
    rebuild,
    value_range,
)
from ...ir.lanes import guarded, uniform, without_whole
from ...ir.outlines import MOST_WHOLE, whole_parameters
from ...passes.context import optional
from ..bodies import with_body
from .target import target_of


@optional(level=1)
def clamp_floats(func: PrimFunc) -> PrimFunc:
    """Cast("float32", Cast("int32", Cast("int8", min(max(nearbyint(x) + zero, -128), 127))) - zero)
    =>   min(max(nearbyint(x), -128 - zero), 127 - zero)

    where the machine has instructions that round floats: AArch64, and x86-64 with AVX2. Narrowing,
    widening and converting take twice as many instructions. Integers this small are exact in
    float32; the sign of a zero may differ.
    """
    target = target_of(func)
    if target is None or "nearbyint" not in contents(func.body).calls:
        return func
    if target.arch != "aarch64" and not (target.arch == "x86_64" and target.has("avx2")):
        return func

    zeros = whole_parameters(func)

    @once
    def visit(m: Any) -> Any:
        m = rebuild(m, visit)
        found = _clamped(m, zeros) if isinstance(m, Cast) else None
        return m if found is None else found

    return with_body(func, visit(func.body))


def _clamped(e: Cast, zeros: Container[Var]) -> Expr | None:
    """The clamped floats that equal a cast of such integers; None for other casts."""
    if dtype_of(e.dtype).scalar != "float32":
        return None
    inner, apart = without_whole(e.a, MOST_WHOLE, zeros)
    match inner:
        case Cast(wide, Cast(small, Binary("min", Binary("max", value, least), most))) if (
            dtype_of(wide).scalar == "int32" and dtype_of(small).bits == 8
        ):
            number = guarded(value)
            rounded, zero = without_whole(value if number is None else number, MOST_WHOLE, zeros)
            ends = value_range(dtype_of(small).scalar)
            if (uniform(least), uniform(most)) != ends:
                return None
            if not isinstance(rounded, Call) or rounded.name != "nearbyint":
                return None
            if rounded.dtype != e.dtype:
                return None
            low, high = (_like(e, const(int(end)) - zero) for end in ends)
            kept: Expr = rounded
            if number is not None:
                kept = Select(compare("==", rounded, rounded), rounded, low, e.dtype)
            clamp = Binary("min", Binary("max", kept, low, e.dtype), high, e.dtype)
            rest = simplify_expr(zero + apart, {})
            return clamp if is_const(rest, 0) else Binary("+", clamp, _like(e, rest), e.dtype)
    return None


def _like(e: Expr, value: Expr) -> Expr:
    one, lanes = cast("float32", value), dtype_of(e.dtype).lanes
    return one if lanes == 1 else Broadcast(one, lanes, e.dtype)
