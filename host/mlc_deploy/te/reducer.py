"""Reductions by a function of the user's: sums of one's own, and argmax, which keeps two values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ir import Binary, Expr, ExprLike, IterVar, Reduce, Var, cast, expr
from ..ir.nodes import TRUE, Combiner
from .tensor import reduction_axes

COMMUTE = ("+", "*", "min", "max")  # operators that primitives know as reductions


def comm_reducer(
    fcombine: Callable[..., Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Callable[..., Any]:
    """A reduction: fcombine(x, y) combines two values, fidentity(dtype) is the neutral one.

    For several values at once, as of argmax, both get and give tuples: fcombine((i, v), (j, w)),
    and fidentity(dtype_i, dtype_v). The order of steps is open, so fcombine must be commutative and
    associative. The result is called with a value or a tuple, axis= and where=; with two values in
    place of an axis it combines these.
    """

    def reducer(
        value: Any, axis: Any, where: ExprLike | None = None, init: Any = None, *more: Any
    ) -> Any:
        if init is not None:
            raise TypeError(f"{name}: init is not taken\n  try: combine the result with it")
        if not isinstance(axis, (IterVar, list, tuple)):
            result = fcombine(value, axis)
            for another in more:
                result = fcombine(result, another)
            return result
        several = isinstance(value, (tuple, list))
        values = tuple(expr(v) for v in (value if several else (value,)))
        axes = reduction_axes(axis)
        condition = TRUE if where is None else expr(where)
        left = tuple(Var(f"x{n}", v.dtype) for n, v in enumerate(values))
        right = tuple(Var(f"y{n}", v.dtype) for n, v in enumerate(values))
        made = fcombine(left, right) if several else fcombine(left[0], right[0])
        start = fidentity(*(v.dtype for v in values))
        results, identities = (_tuple(name, e, values, several) for e in (made, start))
        combine: str | Combiner = Combiner(left, right, results)
        match results:
            case (Binary(op, a, b),) if op in COMMUTE and {a, b} == {left[0], right[0]}:
                combine = op
        reduced = tuple(
            Reduce(combine, v, axes, condition, i, v.dtype)
            for v, i in zip(values, identities, strict=True)
        )
        return reduced if several else reduced[0]

    reducer.__name__ = name
    return reducer


def _tuple(name: str, made: Any, values: Sequence[Expr], several: bool) -> tuple[Expr, ...]:
    """What a function of the user's gave, in the dtypes of the values."""
    given = tuple(made) if several and isinstance(made, (tuple, list)) else (made,)
    if len(given) != len(values):
        raise TypeError(f"{name}: {len(given)} results of {len(values)} values")
    return tuple(cast(v.dtype, e) for e, v in zip(given, values, strict=True))
