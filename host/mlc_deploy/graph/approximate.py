"""Fast math: cheaper expressions, whose results differ slightly."""

from __future__ import annotations

import math

import numpy as np

from ..passes.context import optional
from .constants import is_float, is_static, same_dtype, shape_of, uniform
from .nodes import Call, Constant, Function, Value, Var
from .rewrite import Rewriting, Rule, rewrite


@optional(level=4)
def fast_math(function: Function) -> Function:
    """Expressions   =>   cheaper ones

    Divisions and powers differ in the last bits. exp, tanh and erf of float32 are off by 2e-5 of
    the result at most (ops/fast.py); softmax by 3e-5; gelu by 5e-6 of its argument.
    """
    return rewrite(function, RULES)


def _division(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """x / c   =>   x * (1 / c);  x / y, y broadcast   =>   x * (1 / y), with fewer divisions"""
    match call:
        case Call("divide", (x, Constant(c, name))) if is_float(x) and c.all():
            with np.errstate(all="ignore"):
                inverse = same_dtype(1 / c, c)
            finite = bool(np.isfinite(inverse).all())
            return graph.emit("multiply", x, Constant(inverse, name)) if finite else None
        case Call("divide", (x, y)) if is_float(x) and is_static(x) and is_static(y):
            if math.prod(shape_of(y)) < math.prod(shape_of(out)):
                return graph.emit("multiply", x, graph.emit("reciprocal", y))
    return None


def _functions(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """exp, tanh, erf, softmax   =>   fast_exp …;  gelu   =>   gelu by fast_erf"""
    match call:
        case Call("exp" | "tanh" | "erf" | "softmax" as op, (x,), attrs) if _has_fast(x):
            return graph.emit(f"fast_{op}", x, **attrs)
        case Call("gelu", (x,), attrs) if attrs["approximate"] == "none" and _has_fast(x):
            return graph.emit("gelu", x, approximate="fast")
    return None


def _has_fast(x: Value) -> bool:
    return x.type.dtype in ("float16", "float32")


def _power(graph: Rewriting, out: Var, call: Call) -> Value | None:
    """x ^ 3   =>   x * x * x;  x ^ 4   =>   (x * x) * (x * x);  x ^ -0.5   =>   1 / sqrt(x)"""
    match call:
        case Call("power", (x, exponent)) if x.type == out.type:
            match uniform(exponent):
                case 3.0:
                    return graph.emit("multiply", graph.emit("multiply", x, x), x)
                case 4.0:
                    square = graph.emit("multiply", x, x)
                    return graph.emit("multiply", square, square)
                case -0.5:
                    return graph.emit("reciprocal", graph.emit("sqrt", x))
    return None


RULES: tuple[Rule, ...] = (_division, _functions, _power)
