"""The graph as script, in the manner of the loop IR's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..ir.names import Names
from .nodes import Binding, Call, CallTIR, Constant, Function, TensorType, Value, Var

SHOWN_ELEMENTS = 4  # constants up to this size print their values


def script(node: Any) -> str:
    """The text of any node; a function as a whole definition."""
    match node:
        case Function():
            return "\n".join(_function(node))
        case Binding():
            return _binding(node, {})
        case Call() | CallTIR():
            return _call(node, {})
        case Var(name):
            return identifier(name)
        case Constant():
            return _constant(node)
    raise TypeError(f"cannot print {type(node).__name__}")


def identifier(name: str) -> str:
    """A model's name for a value as Python could have it: "conv1/out:0" -> "conv1_out_0"."""
    text = re.sub(r"\W", "_", name)
    return f"_{text}" if not text or text[0].isdigit() else text


def type_text(t: TensorType) -> str:
    return f'R.Tensor({_tuple([str(extent) for extent in t.shape])}, "{t.dtype}")'


def _tuple(parts: Sequence[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _constant(c: Constant) -> str:
    if c.value.size <= SHOWN_ELEMENTS:
        return f'R.const({_rounded(c.value.tolist())}, "{c.value.dtype}")'
    shape = _tuple([str(extent) for extent in c.value.shape])
    name = f', name="{c.name}"' if c.name else ""
    return f'R.const({shape}, "{c.value.dtype}"{name})'


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(v) for v in values]
    return float(f"{values:.6g}") if isinstance(values, float) else values


def _value(v: Value, names: dict[Var, str]) -> str:
    return names.get(v, identifier(v.name)) if isinstance(v, Var) else _constant(v)


def _call(call: Call | CallTIR, names: dict[Var, str]) -> str:
    args = [_value(a, names) for a in call.args]
    match call:
        case Call(op, _, attrs):
            args += [f"{key}={value!r}" for key, value in attrs.items()]
            return f"R.{op}({', '.join(args)})"
        case CallTIR(func, _, types):
            out = ", ".join(type_text(t) for t in types)
            return f"R.call_tir(cls.{identifier(func)}, {_tuple(args)}, out=[{out}])"


def _binding(b: Binding, names: dict[Var, str]) -> str:
    if len(b.outputs) == 1:
        (out,) = b.outputs
        left = f"{_value(out, names)}: {type_text(out.type)}"
    else:
        left = ", ".join(_value(v, names) for v in b.outputs)
    comment = f"  # {b.source}" if b.source else ""
    return f"{left} = {_call(b.call, names)}{comment}"


def _function(f: Function) -> Iterator[str]:
    taken = Names()
    names = {v: taken.fresh(identifier(v.name)) for v in f.params}
    for binding in f.bindings:
        for v in binding.outputs:
            names[v] = taken.fresh(identifier(v.name))
    params = ", ".join(f"{names[v]}: {type_text(v.type)}" for v in f.params)
    yield "@R.function"
    yield f"def {f.name}({params}):"
    for binding in f.bindings:
        yield f"    {_binding(binding, names)}"
    yield f"    return {', '.join(_value(v, names) for v in f.outputs)}"
