"""The scalars in the lanes of vector expressions."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from .build import cast, compare, const, load, select
from .dtypes import dtype_of
from .nodes import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    For,
    Load,
    Ramp,
    Select,
    Seq,
    Shuffle,
    Var,
)
from .rewrite import once, rebuild
from .structural import same_expr

Parts = Mapping[Var, tuple[Var, ...]]  # vector variables, as one variable per lane


def at_lane(e: Expr, lane: Expr, parts: Parts | None = None) -> Expr:
    """The scalar that a vector expression has in one lane; scalars stay as they are. The lane must
    be a constant where the expression picks lanes by number."""

    @once
    def visit(m: Any) -> Any:
        if not isinstance(m, Expr) or dtype_of(m.dtype).lanes == 1:
            return m
        match m:
            case Const(value, dtype):
                return const(value, dtype_of(dtype).scalar)
            case Broadcast(value):
                return value
            case Ramp(base, stride):
                return base + stride * cast(base.dtype, lane)
            case Var():
                assert parts is not None and isinstance(lane, Const)
                return parts[m][int(lane)]
            case Load(buffer, indices):
                return load(buffer, tuple(visit(index) for index in indices))
            case Shuffle(vectors, picks):
                assert isinstance(lane, Const)
                number = picks[int(lane)]
                for vector in vectors:
                    lanes = dtype_of(vector.dtype).lanes
                    if number < lanes:
                        return at_lane(vector, const(number), parts)
                    number -= lanes
            case Call("reinterpret", (x,), dtype) if (
                dtype_of(x.dtype).lanes > dtype_of(dtype).lanes
            ):
                assert isinstance(lane, Const)
                return _joined(x, int(lane), dtype, parts)
            case Call(name, args, dtype):
                return Call(name, tuple(visit(a) for a in args), dtype_of(dtype).scalar)
        return rebuild(m, visit)

    scalar: Expr = visit(e)
    return scalar


def uniform(e: Expr) -> float | None:
    """The number that a constant has in all lanes; None for other expressions."""
    match e:
        case Const(value) | Broadcast(Const(value)):
            return float(value)
    return None


def whole(e: Expr, most: int, known: Container[Var]) -> Expr | None:
    """The int32 that e has in all lanes: a constant of at most `most` by size, one of the `known`
    variables, or the negative of one. None for other expressions."""
    match e:
        case Broadcast(value):
            return whole(value, most, known)
        case Const(number) if float(number).is_integer() and abs(number) <= most:
            return const(int(number), "int32")
        case Cast(_, Var() as v) if v in known:
            return cast("int32", v)
        case Cast(_, Binary() as negative):
            return whole(negative, most, known)
        case Binary("-", Const(0), Cast(_, Var() as v), "int32") if v in known:
            return e
    return None


def number_or(x: Expr, other: float) -> Expr:
    """x, a float; `other` where it is NaN."""
    return select(compare("==", x, x), x, const(other, x.dtype))


def guarded(e: Expr) -> Expr | None:
    """x, where e is `number_or(x, ...)`; else None."""
    match e:
        case Select(Compare("==", a, b), x, _) if same_expr(a, x) and same_expr(b, x):
            return x
    return None


def without_whole(e: Expr, most: int, known: Container[Var]) -> tuple[Expr, Expr]:
    """e without an integer that it adds or subtracts in all lanes, and that integer: 0 if there is
    none as `whole` finds."""
    match e:
        case Binary("+" | "-" as op, a, b) if (n := whole(b, most, known)) is not None:
            return a, n if op == "+" else const(0) - n
    return e, const(0)


def _joined(x: Expr, lane: int, dtype: str, parts: Parts | None) -> Expr:
    """One lane of wider integers, joined from neighbouring lanes of x, the lowest first."""
    one, wide = dtype_of(x.dtype), dtype_of(dtype)
    narrow, whole = (f"uint{k.bits}" for k in (one, wide))
    count = one.lanes // wide.lanes
    total: Expr = const(0, whole)
    for n in range(count):
        part = at_lane(x, const(lane * count + n), parts)
        if part.dtype != narrow:
            part = Call("reinterpret", (part,), narrow)
        total = total + (cast(whole, part) << const(n * one.bits, whole))
    return total if wide.scalar == whole else Call("reinterpret", (total,), wide.scalar)


def lane_by_lane(indices: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], For | None]:
    """(scalar indices, loop over the lanes) that equal the indices of a vector access. Scalar
    indices stay as they are, without a loop."""
    lanes = max((dtype_of(i.dtype).lanes for i in indices), default=1)
    if lanes == 1:
        return indices, None
    loop = For(Var("lane"), const(lanes), "vectorized", Seq(()))
    return tuple(at_lane(i, loop.var) for i in indices), loop
