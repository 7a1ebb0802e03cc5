"""The layouts that a database has for a model's convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b

from mlc_targets import Target

from ..graph import Function
from ..graph.nodes import (
    AnyCall,
    Binding,
    Call,
    CallBranch,
    CallFused,
    CallLoop,
    CallPacked,
    CallTIR,
    Constant,
    Value,
    bodies,
)
from .database import Database

Layouts = Mapping[str, str]  # layer -> layout, as in graph.layouts


def digest(reference: Function, precision: str = "float32") -> str:
    """A digest, equal for models with the same plans: the values of weights do not matter."""
    numbers: dict[Value, str] = {}

    def name(value: Value) -> str:
        return numbers.setdefault(value, f"v{len(numbers)}")

    def line(binding: Binding) -> str:
        args = [f"{a.type}" if isinstance(a, Constant) else name(a) for a in binding.call.args]
        outputs = [f"{name(v)}: {v.type}" for v in binding.outputs]
        return f"{binding.source}: {outputs} = {_call_text(binding.call)} {args}"

    def lines(function: Function) -> Iterator[str]:
        yield from (f"{name(p)}: {p.type}" for p in function.params)
        for binding in function.bindings:
            yield line(binding)
            for body in bodies(binding.call):
                yield from lines(body)

    text = "\n".join([precision, *lines(reference)])
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _call_text(call: AnyCall) -> str:
    match call:
        case Call(op, _, attrs):
            return f"{op} {sorted(attrs.items())}"
        case CallFused(function):
            return function.name
        case CallTIR(func) | CallPacked(func):
            return func
        case CallLoop():
            return f"loop {call.turns} {call.states} {call.read} {call.written}"
        case CallBranch():
            return "branch"


def known_layouts(
    database: Database, reference: Function, target: Target, precision: str = "float32"
) -> Layouts:
    """The layouts of a database's plan for a model and a target; none without a plan, which means
    the target's own."""
    found = database.plan(digest(reference, precision), str(target))
    return {} if found is None else found.layouts
