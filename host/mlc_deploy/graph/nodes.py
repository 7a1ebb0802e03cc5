"""Graph IR: what stands between a model's file and the loop IR.

A Function is a list of bindings, each a call without side effects of an operator (ops/) or of a
PrimFunc of the same IRModule. Nodes are values, rebuilt and never edited; variables and constants
compare by identity. `str` prints any of them as script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from ..ops import TensorType

__all__ = [
    "Binding",
    "Call",
    "CallTIR",
    "Constant",
    "Function",
    "TensorType",
    "Value",
    "Var",
    "substitute",
    "uses",
]


class Node:
    __slots__ = ()

    def __str__(self) -> str:
        from .printer import script

        return script(self)


@dataclass(frozen=True, slots=True, eq=False)
class Var(Node):
    """A parameter, or what a binding computes. Names are unique within a function."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Node):
    """A tensor that is known, such as weights. `name` is for people, and may be empty."""

    value: NDArray[Any]
    name: str = ""

    @property
    def type(self) -> TensorType:
        return TensorType(self.value.shape, str(self.value.dtype))


Value = Var | Constant


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    """An operator of ops.OPERATORS on values; attrs hold numbers, strings, and tuples of them."""

    op: str
    args: tuple[Value, ...]
    attrs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class CallTIR(Node):
    """The PrimFunc `func` of the module, given args and then, to be written, `types` as outputs."""

    func: str
    args: tuple[Value, ...]
    types: tuple[TensorType, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Binding(Node):
    """outputs = call. `source` is the layer it comes from: the name of the model's node."""

    outputs: tuple[Var, ...]
    call: Call | CallTIR
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Function(Node):
    name: str
    params: tuple[Var, ...]
    bindings: tuple[Binding, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...]

    def script(self) -> str:
        return str(self)


def uses(function: Function) -> Counter[Value]:
    """How often each value is read, by calls and as an output."""
    counts: Counter[Value] = Counter(function.outputs)
    for binding in function.bindings:
        counts.update(binding.call.args)
    return counts


def substitute(
    function: Function,
    rewrite: Callable[[Binding, tuple[Value, ...]], Mapping[Var, Value] | Binding | None],
) -> Function:
    """function with bindings rewritten, first to last; function itself when nothing changed.

    rewrite gets a binding and its call's arguments as they are by then. It answers with another
    binding, with values that stand for the outputs from here on, or None to keep what it was given.
    """
    values: dict[Value, Value] = {}
    bindings: list[Binding] = []
    for binding in function.bindings:
        args = tuple(values.get(a, a) for a in binding.call.args)
        answer = rewrite(binding, args)
        match answer:
            case None if args == binding.call.args:
                bindings.append(binding)
            case None:
                bindings.append(replace(binding, call=replace(binding.call, args=args)))
            case Binding(others):
                bindings.append(answer)
                values.update(zip(binding.outputs, others, strict=True))
            case _:
                values.update(answer.items())
    outputs = tuple(values.get(v, v) for v in function.outputs)
    if outputs == function.outputs and tuple(bindings) == function.bindings:
        return function
    return replace(function, bindings=tuple(bindings), outputs=outputs)
