"""Functions of one 8-bit tensor become tables: the compiler computes all 256 values.

Between integer layers stand chains of elementwise float operators, from dequantize to quantize:
activations, GELU in its parts, x * sigmoid(x), a change of scale. A chain that reads only one 8-bit
tensor and constants per tensor becomes a table. It is exact, since the evaluator computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from mlc_targets import Target

from ..ir import same_shape
from ..ops import Array, TensorType, evaluate, infer_types, operator
from ..ops.lookup import BYTES, ROWS, all_values
from ..ops.strategy import plain_plan
from ..passes.context import optional
from .constants import is_static, shape_of
from .nodes import Binding, Call, Constant, Function, Value, Var, with_bindings
from .rewrite import Rewriting, rewrite


@optional(level=1)
def tabulate(function: Function) -> Function:
    """quantize(f(dequantize(x)))   =>   lookup(x, table), for any elementwise f"""
    return rewrite(function, (_tabulated,))


def _tabulated(graph: Rewriting, out: Var, call: Call) -> Value | None:
    if out.type.dtype not in BYTES or not is_static(out) or call.op == "lookup":
        return None
    if all(a.type.dtype in BYTES and graph.call(a, "lookup") is None for a in call.args):
        return None  # the call costs no more than a lookup
    x = _source_of_call(graph, out, call, {})
    if x is None:
        return None
    rank = len(shape_of(x))
    values = {x: all_values(x.type.dtype).reshape((1,) * (rank - 1) + (-1,))}
    table = _evaluated(graph, call, values).reshape(-1)
    return graph.emit("lookup", x, Constant(table))


def _source(graph: Rewriting, value: Value, known: dict[Value, Value | None]) -> Value | None:
    """The earliest 8-bit value that alone determines `value`, element by element; None if there is
    none."""
    if value not in known:
        made = graph.binding(value)
        found = None
        if made is not None and isinstance(made.call, Call) and len(made.outputs) == 1:
            found = _source_of_call(graph, value, made.call, known)
        if found is None and value.type.dtype in BYTES and shape_of(value):
            found = value
        known[value] = found
    return known[value]


def _source_of_call(
    graph: Rewriting, out: Value, call: Call, known: dict[Value, Value | None]
) -> Value | None:
    """Like _source, for the call that computes `out`."""
    if call.op != "lookup" and operator(call.op).pattern != "elementwise":
        return None
    found: set[Value | None] = set()
    for arg in call.args:
        if _is_number(graph, arg) or (call.op == "lookup" and isinstance(arg, Constant)):
            continue
        if isinstance(arg, Constant) or not same_shape(arg.type.shape, out.type.shape):
            return None
        found.add(_source(graph, arg, known))
    return found.pop() if len(found) == 1 else None


def _is_number(graph: Rewriting, value: Value) -> bool:
    """Whether a value is one known number: a constant, or a dequantized constant."""
    if set(value.type.shape) - {1}:
        return False
    made = graph.call(value, "dequantize")
    return isinstance(value, Constant) or (
        made is not None and all(isinstance(a, Constant) for a in made.args)
    )


def _evaluated(graph: Rewriting, call: Call, values: dict[Value, Array]) -> Array:
    """The output of a call, computed from `values` and from the calls that compute other
    arguments."""
    for arg in call.args:
        if isinstance(arg, Constant):
            values[arg] = arg.value
        elif arg not in values:
            made = graph.binding(arg)
            assert made is not None and isinstance(made.call, Call)
            values[arg] = _evaluated(graph, made.call, values)
    (output,) = evaluate(call.op, [values[a] for a in call.args], call.attrs)
    return output


@optional(level=1)
def rows_of_lookups(target: Target) -> Callable[[Function], Function]:
    """lookup(x, table)   =>   reshape(lookup(reshape(x), table)), in rows of one vector, where the
    target looks up whole vectors. A lookup is elementwise, so any layout may be reshaped."""

    def rows_of_lookups(function: Function) -> Function:
        bindings = [n for b in function.bindings for n in _in_rows(b, target)]
        return with_bindings(function, bindings)

    return rows_of_lookups


def _in_rows(binding: Binding, target: Target) -> tuple[Binding, ...]:
    call = binding.call
    if not isinstance(call, Call) or call.op != "lookup" or not is_static(call.args[0]):
        return (binding,)
    (x, table), (out,) = call.args, binding.outputs
    elements = prod(shape_of(x))
    lanes = next((n for n in ROWS if elements and elements % n == 0), 0)
    if not lanes or shape_of(x) == (elements // lanes, lanes):
        return (binding,)
    rows_type = TensorType((elements // lanes, lanes), x.type.dtype)
    if plain_plan("lookup", [rows_type, table.type], call.attrs, target) is None:
        return (binding,)
    bindings: list[Binding] = []

    def emit(name: str, op: str, *args: Value, **attrs: object) -> Var:
        (type_,) = infer_types(op, [a.type for a in args], attrs)
        made = Var(name, type_)
        bindings.append(Binding((made,), Call(op, args, attrs), binding.source))
        return made

    rows = emit(f"{out.name}.rows", "reshape", x, shape=(elements // lanes, lanes))
    found = emit(f"{out.name}.found", "lookup", rows, table)
    whole = Call("reshape", (found,), {"shape": shape_of(out)})
    return (*bindings, Binding((out,), whole, binding.source))
