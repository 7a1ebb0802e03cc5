"""Graph IR: the representation between a model's file and the loop IR.

A Function is a list of bindings. Each binding is a call of an operator (ops/), of a PrimFunc of the
same IRModule, of a registered Python function, or of operators fused into one kernel; or it is a
loop or branch, whose bodies are Functions. Nodes are values, rebuilt and never edited. Variables
and constants compare by identity. `str` prints any node as script.

Only a CallPacked that is not pure has side effects. A dataflow block is a maximal run of calls
without side effects. It has no node: builder, printer and parser show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import is_
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..ir import Dim
from ..ir.names import Names
from ..ops import TensorType
from ..ops.plan import Plan
from .definition import Definition

__all__ = [
    "AnyCall",
    "Binding",
    "Call",
    "CallBranch",
    "CallFused",
    "CallLoop",
    "CallPacked",
    "CallTIR",
    "Constant",
    "Deferred",
    "Function",
    "TensorType",
    "Value",
    "Var",
    "bodies",
    "const",
    "in_bodies",
    "is_pure",
    "substitute",
    "uses",
]


class Node:
    __slots__ = ()
    printed: ClassVar[Callable[[Node], str]]  # set in __init__.py, since printer.py imports nodes

    def __str__(self) -> str:
        return self.printed()


@dataclass(frozen=True, slots=True, eq=False)
class Var(Node):
    """A parameter, or an output of a binding. Names are unique within a function."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Deferred:
    """A tensor of `type` that make(*args) computes at each access: large weights need not all be in
    memory at once."""

    type: TensorType
    make: Callable[..., NDArray[Any]]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Node):
    """A known tensor, such as weights. `name` is for people, and may be empty."""

    held: NDArray[Any] | Deferred
    name: str = ""

    __match_args__ = ("value", "name")

    @property
    def value(self) -> NDArray[Any]:
        held = self.held
        return held.make(*held.args) if isinstance(held, Deferred) else held

    @property
    def type(self) -> TensorType:
        held = self.held
        if isinstance(held, Deferred):
            return held.type
        return TensorType(held.shape, _name(held.dtype))


@cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype)  # cached: numpy builds the text at each call


Value = Var | Constant


def const(value: Any, dtype: str | None = None, name: str = "") -> Constant:
    """A constant of anything numpy takes. Python numbers become float32, int32 or bool."""
    if dtype is None and not hasattr(value, "dtype"):
        array = np.asarray(value)
        dtype = {"f": "float32", "i": "int32"}.get(array.dtype.kind, array.dtype.name)
    return Constant(np.asarray(value, dtype), name)


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    """A call of an operator of ops.OPERATORS. attrs hold numbers, strings, and tuples of them. plan
    is the target's way to compute it, once chosen."""

    op: str
    args: tuple[Value, ...]
    attrs: Mapping[str, Any]
    plan: Plan | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CallTIR(Node):
    """A call of the PrimFunc `func` of the module: with args, then outputs of `types` to write,
    then the integers `tir_vars`. A board gets no tir_vars: they become part of the function.
    definition is what the function computes, if known."""

    func: str
    args: tuple[Value, ...]
    types: tuple[TensorType, ...]
    tir_vars: tuple[Dim, ...] = ()
    definition: Definition | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CallPacked(Node):
    """A call of the registered function `func`: with args, then outputs of `types` to write.

    If it is not pure, it has effects besides its outputs, and no pass drops, repeats or moves it.
    """

    func: str
    args: tuple[Value, ...]
    types: tuple[TensorType, ...]
    pure: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class CallFused(Node):
    """A call of `function` with args, computed by one kernel.

    The function's bindings are Calls, and CallTIRs with definitions. Its constants are scalars,
    which become part of the kernel.
    """

    function: Function
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CallLoop(Node):
    """Runs `body` for `turns` iterations. Each iteration begins with the states that the one before
    left.

    args are first the `states` before the first iteration, then a sequence for each of `read`, then
    values that every iteration sees whole. Iteration t sees element t of a sequence's dimension 0,
    counted from the end where `read` is True. body takes the iteration's number, int64[], and then
    the iteration's part of args. It returns the states after the iteration, and for each of
    `written` an element of a result. A result has its elements along a dimension 0 of `turns`, from
    the end on where `written` is True.

    conditional: the first state is bool[], and the loop ends when it is false. Elements of results
    that no iteration wrote are then undefined. owned: the states lie in the loop's own memory,
    where it leaves the last ones.

    turns may be a dimension known only at run time. counted: the last of args, int64[], is the
    number of iterations, and `turns` is the maximum.

    trailing: (state, result), by number: states without memory of their own. An iteration finds
    such a state where the iteration before wrote its element of the result. The first iteration
    finds it beside the result. The memory plan sets these (graph/plan.py)."""

    body: Function
    args: tuple[Value, ...]
    turns: Dim
    states: int
    read: tuple[bool, ...] = ()
    written: tuple[bool, ...] = ()
    conditional: bool = False
    owned: bool = False
    counted: bool = False
    trailing: tuple[tuple[int, int], ...] = ()

    @property
    def sequences(self) -> tuple[Value, ...]:
        return self.args[self.states : self.states + len(self.read)]


@dataclass(frozen=True, slots=True, eq=False)
class CallBranch(Node):
    """Runs `then` if args[0], bool[], is true, else `otherwise`. Each takes the other args.

    states: (output, argument), by number: the argument is the branch's own memory, where it leaves
    the output. The memory plan sets these (graph/plan.py).
    """

    then: Function
    otherwise: Function
    args: tuple[Value, ...]
    states: tuple[tuple[int, int], ...] = ()


AnyCall = Call | CallTIR | CallPacked | CallFused | CallLoop | CallBranch


@dataclass(frozen=True, slots=True, eq=False)
class Binding(Node):
    """outputs = call. `source` is the name of the model's node it comes from, its layer."""

    outputs: tuple[Var, ...]
    call: AnyCall
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Function(Node):
    """`states`: names of parameters, each with the output that holds its next value
    (graph/states.py). `extents`: symbolic dimensions known only at run time, by name, each with
    the most it can be (graph/extents.py)."""

    name: str
    params: tuple[Var, ...]
    bindings: tuple[Binding, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...]
    states: tuple[tuple[str, str], ...] = ()
    extents: tuple[tuple[str, int], ...] = ()

    # Prints the function within a module: printer.module_lines.
    module_lines: ClassVar[Callable[[Function, str, Mapping[str, str], Names], Iterator[str]]]

    def script(self) -> str:
        return str(self)


def bodies(call: AnyCall) -> tuple[Function, ...]:
    """The functions that a loop or branch runs; none for other calls."""
    match call:
        case CallLoop(body):
            return (body,)
        case CallBranch(then, otherwise):
            return then, otherwise
    return ()


def is_pure(binding: Binding) -> bool:
    """Whether a binding's call has no effect but its outputs."""
    call = binding.call
    if isinstance(call, CallPacked):
        return call.pure
    return all(is_pure(b) for body in bodies(call) for b in body.bindings)


def in_bodies(function: Function, change: Callable[[Function], Function]) -> Function:
    """function with changed bodies of loops and branches; itself if none changed."""
    bindings: list[Binding] = []
    for binding in function.bindings:
        call = binding.call
        match call:
            case CallLoop(body):
                changed = change(body)
                same = changed is body
                call = call if same else replace(call, body=changed)
            case CallBranch(then, otherwise):
                one, other = change(then), change(otherwise)
                same = one is then and other is otherwise
                call = call if same else replace(call, then=one, otherwise=other)
        bindings.append(binding if call is binding.call else replace(binding, call=call))
    return with_bindings(function, bindings)


def with_bindings(function: Function, bindings: Sequence[Binding]) -> Function:
    """The function with these bindings; itself if they are its own."""
    same = len(bindings) == len(function.bindings) and all(map(is_, bindings, function.bindings))
    return function if same else replace(function, bindings=tuple(bindings))


def uses(function: Function) -> Counter[Value]:
    """The number of times each value is read, by calls and as an output."""
    counts: Counter[Value] = Counter(function.outputs)
    for binding in function.bindings:
        counts.update(binding.call.args)
    return counts


def taken_names(function: Function) -> Names:
    """The names of a function's parameters and of the values that its calls compute."""
    made = (v for b in function.bindings for v in b.outputs)
    return Names(v.name for v in (*function.params, *made))


def with_values(function: Function, values: Mapping[Value, Value]) -> Function:
    """The function with other values in place of some, wherever they are read."""
    bindings = tuple(
        replace(b, call=replace(b.call, args=tuple(values.get(a, a) for a in b.call.args)))
        for b in function.bindings
    )
    outputs = tuple(values.get(v, v) for v in function.outputs)
    return replace(function, bindings=bindings, outputs=outputs)


def substitute(
    function: Function,
    rewrite: Callable[[Binding, tuple[Value, ...]], Mapping[Var, Value] | Binding | None],
) -> Function:
    """function with bindings rewritten, first to last; function itself if nothing changed.

    rewrite gets a binding and the rewritten arguments of its call. It returns another binding, or
    values that replace the outputs from here on, or None to keep the call with these arguments.
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
