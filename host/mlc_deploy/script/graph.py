"""`R`: the words of the graph's script.

R.Tensor is a type, R.const a constant, and every operator has a word: `R.relu(x)`. Outside of a
script these make arguments of `BlockBuilder.emit`. Only the parser understands the other words:
called outside of a decorated function they raise ScriptError.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ..graph import CallPacked, CallTIR, TensorType, const, relax, tensor_type
from ..graph.dims import parsed
from ..ir import Dim
from .graph_function import decorated
from .graph_words import Form
from .source import misplaced

__all__ = [
    "Callable",
    "Object",
    "Prim",
    "Shape",
    "Tensor",
    "Tuple",
    "branch",
    "call_dps_packed",
    "call_packed",
    "call_pure_packed",
    "call_tir",
    "const",
    "dataflow",
    "dim",
    "dtype",
    "func_attr",
    "function",
    "loop",
    "match_cast",
    "output",
    "prim_value",
    "shape",
    "shape_of",
    "str",
    "tuple",
]


def Tensor(
    shape: Sequence[Dim | builtins.str] | None = None,
    dtype: builtins.str = "float32",
    vdevice: Any = None,
    ndim: int = -1,
) -> Any:
    """A type: `R.Tensor((1, "m"), "float32")`. A script may leave the shape out. A parameter then
    gets its own dimensions, and an annotation gives only the dtype. vdevice is TVM's and has no
    effect: there is one device."""
    return Form(None, dtype, ndim) if shape is None else tensor_type(shape, dtype)


def Tuple(*types: Any) -> builtins.tuple[Any, ...]:
    """The type of several values: `-> R.Tuple(R.Tensor((4,)), R.Tensor((8,)))`."""
    return types


def tuple(*values: Any) -> Any:
    """Several values as one: `R.call_tir(cls.f, R.tuple(x, w), ...)`, or `(x, w)`."""
    raise _misplaced("R.tuple")


def _kind(name: builtins.str) -> Callable[..., Any]:
    """TVM's type of values that are not tensors. The parser refuses parameters of it."""

    def kind(*args: Any, **named: Any) -> Any:
        return None

    kind.__name__ = kind.__qualname__ = name
    return kind


Callable_, Object, Prim, Shape = map(_kind, ("Callable", "Object", "Prim", "Shape"))


def match_cast(value: Any, of: Any) -> Any:
    """`y = R.match_cast(x, R.Tensor((n, 16)))`: x, whose dimensions give n its meaning."""
    raise _misplaced("R.match_cast")


def shape_of(value: Any) -> Any:
    """The shape of a tensor, as R.shape gives it."""
    raise _misplaced("R.shape_of")


def prim_value(value: Any) -> Any:
    """A number, as it is."""
    return value


def str(value: builtins.str) -> builtins.str:
    """A text, as it is."""
    return value


def dtype(value: builtins.str) -> builtins.str:
    """The name of a dtype, as it is."""
    return value


def __getattr__(name: builtins.str) -> Any:
    """An operator by the graph's or by TVM's name: `R.relu(x)`, `R.nn.conv2d(x, w, padding=1)`."""
    if name == "Callable":
        return Callable_
    return getattr(relax.op, name)


def function(definition: Callable[..., Any] | None = None, *, private: bool = False) -> Any:
    """The Function that a Python function describes. Raises ScriptError, at line and column.

    A call of a function with R.func_attr({"Primitive": True}) becomes one kernel. R.loop and
    R.branch run functions with "Body". `private` is TVM's and has no effect.
    """
    return partial(decorated, depth=1) if definition is None else decorated(definition)


def call_tir(
    func: builtins.str,
    args: Sequence[Any],
    out: TensorType | Sequence[TensorType],
    tir_vars: Sequence[Dim] = (),
) -> CallTIR:
    """`R.call_tir(cls.f, (x, w), R.Tensor((1, 128), "float32"))` calls f of the module with args
    and with tensors of the types `out`, which f writes. tir_vars: f's integer parameters."""
    return CallTIR(func, builtins.tuple(args), _types(out), shape(tir_vars))


def shape(dims: Sequence[Dim | builtins.str]) -> builtins.tuple[Dim, ...]:
    """`tir_vars=R.shape([n, 16])`: the integers of a call. "n" is a dimension."""
    return tensor_type(dims).shape


def dim(text: builtins.str) -> Dim:
    """A dimension as an operator's attribute: R.dim("n * 2")."""
    return parsed(text)


def call_dps_packed(
    func: builtins.str,
    args: Sequence[Any],
    out: TensorType | Sequence[TensorType],
    pure: bool = True,
) -> CallPacked:
    """Like call_tir, for a registered Python function. pure: it has no side effects."""
    return CallPacked(func, builtins.tuple(args), _types(out), pure)


def call_pure_packed(func: builtins.str, *args: Any, sinfo_args: Any) -> CallPacked:
    """`R.call_pure_packed("f", x, sinfo_args=R.Tensor((4,), "float32"))` calls a registered
    function. The types of its results must be known."""
    return CallPacked(func, args, _types(sinfo_args), True)


def call_packed(func: builtins.str, *args: Any, sinfo_args: Any) -> CallPacked:
    """Like call_pure_packed, of a function that has side effects."""
    return CallPacked(func, args, _types(sinfo_args), False)


def _types(out: TensorType | Sequence[TensorType]) -> builtins.tuple[TensorType, ...]:
    return (out,) if isinstance(out, TensorType) else builtins.tuple(out)


_misplaced = partial(misplaced, "@R.function")


def dataflow() -> AbstractContextManager[None]:
    """`with R.dataflow():` — calls without side effects. R.output names their results."""
    raise _misplaced("R.dataflow")


def output(*values: Any) -> None:
    """The last line of a dataflow block. It names the values that later statements read."""
    raise _misplaced("R.output")


def func_attr(attrs: Mapping[builtins.str, Any]) -> None:
    """Attributes of the function: its name "global_symbol", and the model's "input_names" and
    "output_names"."""
    raise _misplaced("R.func_attr")


def loop(body: Any, args: Sequence[Any], **options: Any) -> Any:
    """`R.loop(cls.step, (state, xs, w), turns=10, states=1, read=[False], written=[False])` runs a
    body iteration by iteration. graph.CallLoop explains the parts."""
    raise _misplaced("R.loop")


def branch(condition: Any, then: Any, otherwise: Any, args: Sequence[Any]) -> Any:
    """`R.branch(condition, cls.then, cls.otherwise, (x,))` runs one of two bodies on args."""
    raise _misplaced("R.branch")
