"""tvm.topi: functions from tensors to tensors that scripts use most."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..ops import OPERATORS
from ..ops import compute as _compute
from . import absent

_ELEMENTWISE = (
    "abs", "add", "ceil", "cos", "divide", "erf", "exp", "floor", "log", "maximum", "minimum",
    "multiply", "negative", "power", "sigmoid", "sin", "sqrt", "subtract", "tan", "tanh",
)  # fmt: skip
_REDUCTIONS = ("max", "min", "prod", "sum")
__all__ = ["broadcast_to", "matmul", "nn", "reshape", "transpose", *_ELEMENTWISE, *_REDUCTIONS]


def _one(op: str, *tensors: Any, **attrs: Any) -> Any:
    (made,) = _compute(op, tensors, attrs)
    return made


def _reduced(op: str, data: Any, axis: Any = None, keepdims: bool = False) -> Any:
    axes = range(data.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    return _one(op, data, axes=tuple(a % data.ndim for a in axes), keepdims=keepdims)


def matmul(a: Any, b: Any, transp_a: bool = False, transp_b: bool = False) -> Any:
    a = transpose(a) if transp_a else a
    return _one("matmul", a, transpose(b) if transp_b else b)


def transpose(a: Any, axes: Any = None) -> Any:
    return _one("transpose", a, axes=tuple(reversed(range(a.ndim))) if axes is None else axes)


def reshape(a: Any, newshape: Any) -> Any:
    return _one("reshape", a, shape=tuple(newshape))


def broadcast_to(data: Any, shape: Any) -> Any:
    return _one("broadcast_to", data, shape=tuple(shape))


class nn:
    """Layers."""

    @staticmethod
    def relu(x: Any) -> Any:
        return _one("relu", x)

    @staticmethod
    def softmax(x: Any, axis: int = -1) -> Any:
        return _one("softmax", x, axis=axis % x.ndim)

    @staticmethod
    def dense(data: Any, weight: Any, bias: Any = None) -> Any:
        made = _one("dense", data, weight, transpose_b=True)
        return made if bias is None else _one("add", made, bias)


def __getattr__(name: str) -> Callable[..., Any]:
    if name in _ELEMENTWISE and name in OPERATORS:
        return partial(_one, name)
    if name in _REDUCTIONS:
        return partial(_reduced, name)
    raise absent.error(f"tvm.topi.{name}", __all__)
