"""Which layouts a database knows for a model's convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from mlc_targets import Target

from ..graph import Function
from ..graph.nodes import AnyCall, Binding, Call, CallFused, Constant, Value
from .database import Database

Layouts = Mapping[str, str]  # layer -> layout, as in graph.layouts


def digest(reference: Function, precision: str = "float32") -> str:
    """Equal for models that have the same plans: the values of their weights do not matter."""
    numbers: dict[Value, str] = {}

    def name(value: Value) -> str:
        return numbers.setdefault(value, f"v{len(numbers)}")

    def line(binding: Binding) -> str:
        args = [f"{a.type}" if isinstance(a, Constant) else name(a) for a in binding.call.args]
        outputs = [f"{name(v)}: {v.type}" for v in binding.outputs]
        return f"{binding.source}: {outputs} = {_said(binding.call)} {args}"

    params = [f"{name(p)}: {p.type}" for p in reference.params]
    text = "\n".join([precision, *params, *map(line, reference.bindings)])
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _said(call: AnyCall) -> str:
    match call:
        case Call(op, _, attrs):
            return f"{op} {sorted(attrs.items())}"
        case CallFused(function):
            return function.name
        case _:
            return call.func


def known_layouts(
    database: Database, reference: Function, target: Target, precision: str = "float32"
) -> Layouts:
    """The layouts of the plan that a database has for a model and a target; none where it has
    none: the target's own."""
    found = database.plan(digest(reference, precision), str(target))
    return {} if found is None else found.layouts
