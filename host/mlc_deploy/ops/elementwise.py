"""Operators that map one element of each input, broadcast, to one element of the output.

One line per operator: its name, its inputs' kinds of dtype, and the same function on expressions
and on arrays. Attributes arrive as keywords.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import te
from ..arith import linear
from ..ir import (
    Dim,
    Expr,
    Var,
    const,
    dtype_of,
    free_vars,
    is_const,
    numbers,
    same_dim,
    same_expr,
)
from ..te import Tensor
from .fast import fast_erf, fast_erf_array, fast_exp, fast_exp_array, fast_tanh, fast_tanh_array
from .reference import by_elements
from .registry import Array, Attrs, Operator, Trait, register, require

FLOAT = ("float",)
NUMBER = ("float", "int", "uint")
INTEGER = ("int", "uint")
SIGNED = ("float", "int")
BOOL = ("bool",)
ANY = ("float", "int", "uint", "bool")

HALF: tuple[Trait, ...] = ("follows_half",)
TAME: tuple[Trait, ...] = ("follows_half", "stays_finite")
SELECTS: tuple[Trait, ...] = ("selects",)
TWICE: tuple[Trait, ...] = ("own_inverse",)
ONCE: tuple[Trait, ...] = ("idempotent",)
POSITIVE: tuple[Trait, ...] = ("not_negative",)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """`element` on expressions and `array` on arrays compute the same thing. An operator that takes
    floats alone gives `array` float64, unless `array` decides by the dtype (not widens)."""

    name: str
    kinds: tuple[str, ...]
    element: Callable[..., Expr]
    array: Callable[..., Any]
    inputs: int = 1
    gives_bool: bool = False
    traits: tuple[Trait, ...] = ()
    numbers: tuple[str, ...] = ()
    widens: bool = True


# --------------------------------------------------------------------------------- broadcasting


def same_extent(a: Dim, b: Dim) -> bool:
    if isinstance(a, Expr) and isinstance(b, Expr):
        return same_expr(a, b) or linear(a, {}) == linear(b, {})
    return same_dim(a, b)


class UnlikeExtents(ValueError):
    """Extents `pair` that may be unequal at run time. symbols: the names in them; same: the names
    of two dimensions, "ids=mask", or a dimension and a number, if nothing else is unlike."""

    def __init__(self, what: str, a: Dim, b: Dim) -> None:
        super().__init__(what)
        self.pair = a, b
        self.symbols = sorted({v.name for e in (a, b) if isinstance(e, Expr) for v in free_vars(e)})
        plain = all(isinstance(e, (int, Var)) for e in (a, b))
        first, second = (b, a) if isinstance(a, int) else (a, b)
        self.same = f"{first}={second}" if plain else None


def broadcast_shape(op: str, shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The shape that the shapes broadcast to, as in numpy; a ValueError names op and the shapes."""
    rank = max(len(shape) for shape in shapes)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if is_const(result[axis], 1):
                result[axis] = extent
            elif not is_const(extent, 1):
                if not same_extent(result[axis], extent):
                    what = f"{op}: the shapes {_listed(shapes)} do not broadcast"
                    raise UnlikeExtents(what, result[axis], extent)
    return tuple(result)


def _listed(shapes: Sequence[tuple[Dim, ...]]) -> str:
    return " and ".join(str(list(shape)) for shape in shapes)


def element_at(tensor: Tensor, index: Sequence[Expr]) -> Expr:
    """The element that broadcasting puts at index."""
    own = index[len(index) - tensor.ndim :]
    return tensor[
        tuple(
            const(0) if isinstance(extent, int) and extent == 1 else i
            for extent, i in zip(tensor.shape, own, strict=True)
        )
    ]


# --------------------------------------------------------------------- functions of some length

# From these on, mish x rounds to x, in float16 and in others; the square of e^x is finite there.
HALF_MISH, MISH = 5, 20


def _clip(x: Expr, min: float | None = None, max: float | None = None) -> Expr:
    """A bound that is NaN is none, as in onnxruntime."""
    low = x if min is None or math.isnan(min) else te.maximum(x, const(min, x.dtype))
    return low if max is None or math.isnan(max) else te.minimum(low, const(max, x.dtype))


def _clip_array(x: Array, min: float | None = None, max: float | None = None) -> Array:
    low = x if min is None or math.isnan(min) else np.maximum(x, x.dtype.type(min))
    return low if max is None or math.isnan(max) else np.minimum(low, x.dtype.type(max))


def _sign(x: Expr) -> Expr:
    if dtype_of(x.dtype).kind == "uint":
        return te.minimum(x, 1)
    zero = x + x if dtype_of(x.dtype).kind == "float" else x  # or NaN; no denormal number
    below = te.select(x < 0, const(-1, x.dtype), zero)
    return te.select(x > 0, const(1, x.dtype), below)


def _softplus(x: Expr) -> Expr:
    """log(1 + e^x), without overflow."""
    return te.maximum(x, 0) + te.log1p(te.exp(-te.abs(x)))


def _mish(x: Expr) -> Expr:
    """x tanh(log(1 + e^x)), with one exponential: tanh(log u) = (u^2 - 1) / (u^2 + 1)."""
    power = te.exp(te.minimum(x, HALF_MISH if dtype_of(x.dtype).bits == 16 else MISH))
    grown = power * (power + 2)
    return x * (grown / (grown + 2))


def _mish_array(x: Array) -> Array:
    return np.asarray(x * np.tanh(_softplus_array(x)))


def _gelu(x: Expr, approximate: str = "none") -> Expr:
    if approximate == "tanh":
        inner = (x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)
        return x * 0.5 * (te.tanh(inner) + 1)
    if approximate == "fast":
        return x * 0.5 * (fast_erf(x * math.sqrt(0.5)) + 1)
    return te.gelu(x)


def _gelu_array(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        inner = (x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)
        return np.asarray(0.5 * x * (np.tanh(inner) + 1))
    if approximate == "fast":
        return np.asarray(0.5 * x * (fast_erf_array(x * math.sqrt(0.5)) + 1))
    return np.where(np.isneginf(x), -0.0, 0.5 * x * (erf_array(x * math.sqrt(0.5)) + 1))


def _silu_array(x: Array) -> Array:
    return np.where(np.isneginf(x), -0.0, x / (1 + np.exp(-x)))


def erf_array(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(x.dtype)


def _elu(x: Expr, alpha: float) -> Expr:
    return te.select(x < 0, te.expm1(te.minimum(x, 0)) * alpha, x)


def _selu(x: Expr, alpha: float, gamma: float) -> Expr:
    return te.select(x > 0, x, te.expm1(te.minimum(x, 0)) * alpha) * gamma


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return te.minimum(te.maximum(x * alpha + beta, 0), 1)


def _divide(a: Expr, b: Expr) -> Expr:
    return a / b if dtype_of(a.dtype).kind == "float" else te.truncdiv(a, b)


def divide_array(a: Array, b: Array) -> Array:
    """Integers are divided towards zero; x / 0 gives 0."""
    return np.asarray(a / b if a.dtype.kind == "f" else numbers.quotient(a, b))


def _mod(a: Expr, b: Expr, truncated: bool) -> Expr:
    """The remainder with a's sign where truncated, else with b's."""
    if dtype_of(a.dtype).kind != "float":
        return te.truncmod(a, b) if truncated else a % b
    rest = te.fmod(a, b)
    if truncated:
        return rest
    other_side = te.any_of(te.all_of(rest < 0, b > 0), te.all_of(rest > 0, b < 0))
    return te.select(other_side, rest + b, rest)


def _mod_array(a: Array, b: Array, truncated: bool) -> Array:
    if a.dtype.kind == "f":
        return np.fmod(a, b) if truncated else np.mod(a, b)
    rest = numbers.remainder(a, b) if truncated else numbers.floor_remainder(a, b)
    return np.asarray(rest)


def _cast(x: Expr, dtype: str) -> Expr:
    if dtype == "bool" and x.dtype != "bool":
        return te.not_(x.equal(0))
    return x.astype(dtype)


def _logical(op: str) -> Callable[[Expr, Expr], Expr]:
    def combine(a: Expr, b: Expr) -> Expr:
        match op:
            case "and":
                return te.all_of(a, b)
            case "or":
                return te.any_of(a, b)
        return te.any_of(te.all_of(a, te.not_(b)), te.all_of(te.not_(a), b))

    return combine


def _softplus_array(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _exactly(exact: Callable[[Array], Array], fast: Callable[[Array], Array]) -> Any:
    """The function on arrays of an approximation; float64 is computed exactly."""
    return lambda x: exact(x) if x.dtype == np.float64 else fast(x)


# ------------------------------------------------------------------------------------ the table

TABLE = (
    # one input
    Elementwise("copy", ANY, lambda x: x, lambda x: x, traits=TAME),
    Elementwise(
        "relu",
        NUMBER,
        lambda x: te.maximum(x, 0),
        lambda x: np.maximum(x, 0),
        traits=(*TAME, *ONCE, *POSITIVE),
    ),
    Elementwise(
        "clip", NUMBER, _clip, _clip_array, traits=(*TAME, *SELECTS), numbers=("min", "max")
    ),
    Elementwise(
        "sigmoid", FLOAT, te.sigmoid, lambda x: 1 / (1 + np.exp(-x)), traits=(*TAME, *POSITIVE)
    ),
    Elementwise("tanh", FLOAT, te.tanh, np.tanh, traits=TAME),
    Elementwise("exp", FLOAT, te.exp, np.exp, traits=POSITIVE),
    Elementwise("log", FLOAT, te.log, np.log),
    Elementwise("sqrt", FLOAT, te.sqrt, np.sqrt, traits=(*HALF, *POSITIVE)),
    Elementwise("erf", FLOAT, te.erf, erf_array, traits=TAME),
    Elementwise(
        "fast_exp", FLOAT, fast_exp, _exactly(np.exp, fast_exp_array), traits=POSITIVE, widens=False
    ),
    Elementwise(
        "fast_tanh", FLOAT, fast_tanh, _exactly(np.tanh, fast_tanh_array), traits=TAME, widens=False
    ),
    Elementwise(
        "fast_erf", FLOAT, fast_erf, _exactly(erf_array, fast_erf_array), traits=TAME, widens=False
    ),
    Elementwise("sin", FLOAT, te.sin, np.sin),
    Elementwise("cos", FLOAT, te.cos, np.cos),
    Elementwise("tan", FLOAT, te.tan, np.tan),
    Elementwise("floor", FLOAT, te.floor, np.floor, traits=ONCE),
    Elementwise("ceil", FLOAT, te.ceil, np.ceil, traits=ONCE),
    Elementwise("round", FLOAT, te.nearbyint, np.round, traits=ONCE),
    Elementwise("reciprocal", FLOAT, lambda x: 1 / x, lambda x: 1 / x),
    Elementwise("abs", NUMBER, te.abs, np.abs, traits=(*TAME, *ONCE, *POSITIVE)),
    Elementwise("negative", SIGNED, lambda x: -x, np.negative, traits=(*TAME, *TWICE)),
    Elementwise("sign", NUMBER, _sign, np.sign, traits=(*TAME, *ONCE)),
    Elementwise("logical_not", BOOL, te.not_, np.logical_not, traits=TWICE),
    Elementwise("softplus", FLOAT, _softplus, _softplus_array, traits=POSITIVE),
    Elementwise(
        "softsign", FLOAT, lambda x: x / (te.abs(x) + 1), lambda x: x / (np.abs(x) + 1), traits=TAME
    ),
    Elementwise("mish", FLOAT, _mish, _mish_array, traits=TAME),
    Elementwise("gelu", FLOAT, _gelu, _gelu_array, traits=TAME),
    Elementwise("silu", FLOAT, te.silu, _silu_array, traits=TAME),
    Elementwise(
        "hard_swish",
        FLOAT,
        lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5),
        lambda x: x * np.clip(x * (1 / 6) + 0.5, 0, 1),
        traits=TAME,
    ),
    Elementwise(
        "leaky_relu",
        FLOAT,
        lambda x, alpha: te.select(x < 0, x * alpha, x),
        lambda x, alpha: np.where(x < 0, x * alpha, x),
        traits=TAME,
    ),
    Elementwise(
        "thresholded_relu",
        FLOAT,
        lambda x, alpha: te.select(x > alpha, x, const(0, x.dtype)),
        lambda x, alpha: np.where(x > alpha, x, 0),
        traits=TAME,
    ),
    Elementwise(
        "elu", FLOAT, _elu, lambda x, alpha: np.where(x < 0, np.expm1(x) * alpha, x), traits=TAME
    ),
    Elementwise(
        "selu",
        FLOAT,
        _selu,
        lambda x, alpha, gamma: np.where(x > 0, x, np.expm1(x) * alpha) * gamma,
        traits=TAME,
    ),
    Elementwise(
        "hard_sigmoid",
        FLOAT,
        _hard_sigmoid,
        lambda x, alpha, beta: np.clip(x * alpha + beta, 0, 1),
        traits=(*TAME, *POSITIVE),
    ),
    # two inputs of one dtype
    Elementwise("add", NUMBER, lambda a, b: a + b, np.add, 2, traits=TAME),
    Elementwise("subtract", NUMBER, lambda a, b: a - b, np.subtract, 2, traits=TAME),
    Elementwise("multiply", NUMBER, lambda a, b: a * b, np.multiply, 2, traits=TAME),
    Elementwise("divide", NUMBER, _divide, divide_array, 2),
    Elementwise("mod", NUMBER, _mod, _mod_array, 2),
    Elementwise("power", FLOAT, te.pow, np.power, 2),
    Elementwise("minimum", NUMBER, te.minimum, np.minimum, 2, traits=(*TAME, *SELECTS)),
    Elementwise("maximum", NUMBER, te.maximum, np.maximum, 2, traits=(*TAME, *SELECTS)),
    Elementwise("equal", ANY, lambda a, b: a.equal(b), np.equal, 2, True),
    Elementwise("less", NUMBER, lambda a, b: a < b, np.less, 2, True),
    Elementwise("less_equal", NUMBER, lambda a, b: a <= b, np.less_equal, 2, True),
    Elementwise("greater", NUMBER, lambda a, b: a > b, np.greater, 2, True),
    Elementwise("greater_equal", NUMBER, lambda a, b: a >= b, np.greater_equal, 2, True),
    Elementwise("logical_and", BOOL, _logical("and"), np.logical_and, 2),
    Elementwise("logical_or", BOOL, _logical("or"), np.logical_or, 2),
    Elementwise("logical_xor", BOOL, _logical("xor"), np.logical_xor, 2),
)


def elementwise_operator(entry: Elementwise) -> Operator:
    """The operator of a table's line: its inputs broadcast, and have one dtype."""

    def check(dtypes: Sequence[str]) -> None:
        name, taken = entry.name, len(dtypes)
        require(taken == entry.inputs, f"{name}: takes {entry.inputs} inputs, was given {taken}")
        kind = dtype_of(dtypes[0]).kind
        require(kind in entry.kinds, f"{name}: does not take {dtypes[0]}")
        same = all(dtype == dtypes[0] for dtype in dtypes)
        require(same, f"{name}: inputs of different dtypes, {' and '.join(dtypes)}")

    def compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
        check([t.dtype for t in inputs])
        shape = broadcast_shape(entry.name, [t.shape for t in inputs])
        return [
            te.compute(
                shape,
                lambda *i: entry.element(*(element_at(t, i) for t in inputs), **attrs),
                name=entry.name,
            )
        ]

    def evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
        dtype = np.dtype(bool) if entry.gives_bool else inputs[0].dtype
        if entry.kinds == FLOAT and entry.widens and not entry.gives_bool:
            return [by_elements(partial(entry.array, **attrs), *inputs)]
        return [np.asarray(entry.array(*inputs, **attrs)).astype(dtype, copy=False)]

    return Operator(
        entry.name, compute, evaluate, "elementwise", entry.traits, numbers=entry.numbers
    )


for _entry in TABLE:
    register(elementwise_operator(_entry))


def _compute_cast(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    (x,) = inputs
    return [te.compute(x.shape, lambda *i: _cast(x[i], attrs["dtype"]), name="cast")]


def _evaluate_cast(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    return [numbers.converted(inputs[0], attrs["dtype"])]


def _compute_where(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    test, a, b = inputs
    require(test.dtype == "bool", f"where: the condition is {test.dtype}, not bool")
    require(a.dtype == b.dtype, f"where: inputs of different dtypes, {a.dtype} and {b.dtype}")
    shape = broadcast_shape("where", [t.shape for t in inputs])
    return [
        te.compute(
            shape,
            lambda *i: te.select(element_at(test, i), element_at(a, i), element_at(b, i)),
            name="where",
        )
    ]


register(Operator("cast", _compute_cast, _evaluate_cast, "elementwise"))
register(
    Operator(
        "where",
        _compute_where,
        lambda x, _: [np.where(x[0], x[1], x[2])],
        "elementwise",
        TAME,
    )
)
