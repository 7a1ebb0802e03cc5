"""`R`: the words of the graph's script.

R.Tensor is a type, R.const a constant, and every operator has a word: `R.relu(x)`. What these give
outside of a script is what `BlockBuilder.emit` takes. The others mean something to the parser
alone: called outside of a decorated function they raise ScriptError.
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
    "call_dps_packed",
    "call_tir",
    "const",
    "dataflow",
    "func_attr",
    "function",
    "output",
]


def __getattr__(name: str) -> Callable[..., Call]:
    return op.__getattr__(name)


def function(definition: Callable[..., Any] | None = None, *, private: bool = False) -> Any:
    """The Function that a Python function describes. Raises ScriptError, at line and column.

    One with R.func_attr({"Primitive": True}) is for others to call: its calls become one kernel.
    `private` says that nobody outside of the module calls it, which makes no difference here.
    """
    return partial(decorated, depth=1) if definition is None else decorated(definition)


def call_tir(func: str, args: Sequence[Any], out: TensorType | Sequence[TensorType]) -> CallTIR:
    """`R.call_tir(cls.f, (x, w), R.Tensor((1, 128), "float32"))`: f of the module, given args and
    then, to be written, tensors of the types `out`."""
    return CallTIR(func, tuple(args), _types(out))


def call_dps_packed(
    func: str, args: Sequence[Any], out: TensorType | Sequence[TensorType], pure: bool = True
) -> CallPacked:
    """As call_tir, of a registered Python function. It is not pure where it has side effects."""
    return CallPacked(func, tuple(args), _types(out), pure)


def _types(out: TensorType | Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (out,) if isinstance(out, TensorType) else tuple(out)


_misplaced = partial(misplaced, "@R.function")


def dataflow() -> AbstractContextManager[None]:
    """`with R.dataflow():` — calls without side effects; R.output says what they give."""
    raise _misplaced("R.dataflow")


def output(*values: Any) -> None:
    """The last line of a dataflow block: what is read after it."""
    raise _misplaced("R.output")


def func_attr(attrs: Mapping[str, Any]) -> None:
    """Attributes of the function: "global_symbol" is its name, "input_names" and "output_names" are
    those of the model."""
    raise _misplaced("R.func_attr")
