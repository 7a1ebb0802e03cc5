"""`R`: the words of the graph's script.

R.Tensor is a type, R.const a constant, and every operator has a word: `R.relu(x)`. Outside of a
script these make arguments of `BlockBuilder.emit`. Only the parser understands the other words:
called outside of a decorated function they raise ScriptError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ..graph import Call, CallPacked, CallTIR, TensorType, const, op
from ..graph import tensor_type as Tensor
from .graph_function import decorated
from .source import misplaced

__all__ = [
    "Tensor",
    "branch",
    "call_dps_packed",
    "call_tir",
    "const",
    "dataflow",
    "func_attr",
    "function",
    "loop",
    "output",
]


def __getattr__(name: str) -> Callable[..., Call]:
    return op.__getattr__(name)


def function(definition: Callable[..., Any] | None = None, *, private: bool = False) -> Any:
    """The Function that a Python function describes. Raises ScriptError, at line and column.

    A call of a function with R.func_attr({"Primitive": True}) becomes one kernel; one with "Body"
    is what R.loop or R.branch runs. `private` is TVM's and has no effect.
    """
    return partial(decorated, depth=1) if definition is None else decorated(definition)


def call_tir(func: str, args: Sequence[Any], out: TensorType | Sequence[TensorType]) -> CallTIR:
    """`R.call_tir(cls.f, (x, w), R.Tensor((1, 128), "float32"))` calls f of the module with args
    and with tensors of the types `out`, which f writes."""
    return CallTIR(func, tuple(args), _types(out))


def call_dps_packed(
    func: str, args: Sequence[Any], out: TensorType | Sequence[TensorType], pure: bool = True
) -> CallPacked:
    """As call_tir, for a registered Python function. pure: it has no side effects."""
    return CallPacked(func, tuple(args), _types(out), pure)


def _types(out: TensorType | Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (out,) if isinstance(out, TensorType) else tuple(out)


_misplaced = partial(misplaced, "@R.function")


def dataflow() -> AbstractContextManager[None]:
    """`with R.dataflow():` — calls without side effects. R.output names their results."""
    raise _misplaced("R.dataflow")


def output(*values: Any) -> None:
    """The last line of a dataflow block. It names the values that later statements read."""
    raise _misplaced("R.output")


def func_attr(attrs: Mapping[str, Any]) -> None:
    """Attributes of the function: its name "global_symbol", and the model's "input_names" and
    "output_names"."""
    raise _misplaced("R.func_attr")


def loop(body: Any, args: Sequence[Any], **said: Any) -> Any:
    """`R.loop(cls.step, (state, xs, w), turns=10, states=1, read=[False], written=[False])` runs a
    body turn after turn. graph.CallLoop says what its parts mean."""
    raise _misplaced("R.loop")


def branch(condition: Any, then: Any, otherwise: Any, args: Sequence[Any]) -> Any:
    """`R.branch(condition, cls.then, cls.otherwise, (x,))` runs one of two bodies on args."""
    raise _misplaced("R.branch")
