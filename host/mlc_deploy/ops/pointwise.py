"""The operator that a user's elementwise function becomes: a scalar expression as data.

    pointwise(x, bias, function="biased_relu",
              steps=(("+", 0, 1), ("const", "float32", "0.0"), ("max", 2, 3)))

The inputs are numbered from 0, and the steps go on counting; the last step is the output's element.
A shared part of an expression is one step.

    ("const", dtype, text)           a number, as Python writes it
    ("cast", dtype, a)
    ("call", name, dtype, a, …)      an intrinsic of the loop IR
    ("select", condition, a, b)      ("not", a)
    (op, a, b)                       an operator of the loop IR's Binary and Compare
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import te
from ..ir import Binary, Call, Cast, Compare, Const, Expr, Not, Select, dtype_of, numbers
from ..ir.dtypes import numpy_dtype
from ..ir.interp import INTRINSICS
from ..te import Tensor
from .elementwise import broadcast_shape, element_at
from .registry import Array, Attrs, Operator, register, require

NAME = "pointwise"
FUNCTION = "function"  # the attribute with the user's name for it; it has no effect
Step = tuple[Any, ...]
V = TypeVar("V")

COMPARES: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
BINARIES: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": INTRINSICS["floordiv_"], "%": INTRINSICS["floormod_"],
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift,
    "and": np.logical_and, "or": np.logical_or,
    **{op: INTRINSICS[f"{op}_"] for op in ("min", "max", "tdiv", "tmod")},
}  # fmt: skip
FUNCTIONS = (
    "exp expm1 log log1p sin cos tan tanh erf gelu sigmoid silu sqrt floor ceil nearbyint"
    " trunc".split()
)
CALLS: Mapping[str, tuple[int, Callable[..., Any]]] = {  # how many arguments each takes
    "if_then_else": (3, INTRINSICS["select_"]),
    "fma": (3, INTRINSICS["fma_"]),
    **{name: (2, INTRINSICS[f"{name}_"]) for name in ("pow", "fmod")},
    **{name: (1, INTRINSICS[f"{name}_"]) for name in (*FUNCTIONS, "abs")},
}


def step_of(e: Expr, numbers: Mapping[Expr, int]) -> Step | None:
    """A part of an expression, except a load, as a step; None where no step expresses it. numbers:
    of the parts in it."""
    match e:
        case Const(value, dtype):
            return "const", dtype, str(value)
        case Cast(dtype, a):
            return "cast", dtype, numbers[a]
        case Call(name, args, dtype) if name in CALLS:
            return "call", name, dtype, *(numbers[a] for a in args)
        case Select(condition, a, b):
            return "select", numbers[condition], numbers[a], numbers[b]
        case Not(a):
            return "not", numbers[a]
        case Binary(op, a, b) if op in BINARIES:
            return op, numbers[a], numbers[b]
        case Compare(op, a, b):
            return op, numbers[a], numbers[b]
    return None


def _followed(steps: Any, inputs: Sequence[V], visit: Callable[[Step, list[V]], V]) -> V:
    """The last step's value; visit(step, operands) gives the value of each step."""
    values = list(inputs)
    require(isinstance(steps, tuple) and len(steps) > 0, f"{NAME}: there are no steps")
    for step in steps:
        words = _words(step)
        numbers = step[words:]
        known = all(type(n) is int and 0 <= n < len(values) for n in numbers)
        require(known, f"{NAME}: {step} reads what is not there before it")
        values.append(visit(step, [values[n] for n in numbers]))
    return values[-1]


def _words(step: Any) -> int:
    """How many entries of a step stand before its operands; ValueError if it is not a step."""
    match step:
        case ("const", str(), str()):
            return 3
        case ("cast", str(), _):
            return 2
        case ("call", str(name), str(), *args) if name in CALLS and CALLS[name][0] == len(args):
            return 3
        case ("select", _, _, _) | ("not", _):
            return 1
        case (str(op), _, _) if op in BINARIES or op in COMPARES:
            return 1
    raise ValueError(f"{NAME}: {step!r:.80} is not a step")


def _number(dtype: str, text: str) -> int | float | bool:
    kind = dtype_of(dtype).kind
    if kind == "bool":
        require(text in ("True", "False"), f"{NAME}: '{text}' is not of type {dtype}")
        return text == "True"
    try:
        return float(text) if kind == "float" else int(text)
    except ValueError:
        raise ValueError(f"{NAME}: '{text}' is not of type {dtype}") from None


def _expr(step: Step, operands: list[Expr]) -> Expr:
    match step[0], operands:
        case "const", _:
            return Const(_number(step[1], step[2]), step[1])
        case "cast", [a]:
            dtype_of(step[1])
            return Cast(step[1], a)
        case "call", args:
            dtype_of(step[2])
            return Call(step[1], tuple(args), step[2])
        case "select", [condition, a, b]:
            _alike(step, a, b)
            require(condition.dtype == "bool", f"{NAME}: {step} asks for no condition")
            return Select(condition, a, b, a.dtype)
        case "not", [a]:
            return Not(a, a.dtype)
        case op, [a, b]:
            _alike(step, a, b)
            compares = op in COMPARES
            return Compare(op, a, b, "bool") if compares else Binary(op, a, b, a.dtype)
    raise AssertionError(step)


def _alike(step: Step, a: Expr, b: Expr) -> None:
    require(a.dtype == b.dtype, f"{NAME}: {step} is of {a.dtype} and {b.dtype}")


def _array(step: Step, operands: list[Array]) -> Array:
    match step[0], operands:
        case "const", _:
            return np.asarray(_number(step[1], step[2]), numpy_dtype(step[1]))
        case "cast", [a]:
            return numbers.converted(a, numpy_dtype(step[1]))
        case "call", args:
            return np.asarray(CALLS[step[1]][1](*args)).astype(numpy_dtype(step[2]))
        case "select", [condition, a, b]:
            return np.where(condition, a, b)
        case "not", [a]:
            return np.logical_not(a)
        case op, [a, b]:
            return np.asarray((COMPARES.get(op) or BINARIES[op])(a, b))
    raise AssertionError(step)


def _compute(inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    require(len(inputs) > 0, f"{NAME}: there are no inputs")
    shape = broadcast_shape(NAME, [t.shape for t in inputs])

    def element(*index: Expr) -> Expr:
        return _followed(attrs.get("steps"), [element_at(t, index) for t in inputs], _expr)

    return [te.compute(shape, element, name=NAME)]


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    return [np.broadcast_to(_followed(attrs.get("steps"), inputs, _array), shape)]


register(Operator(NAME, _compute, _evaluate, "elementwise"))
