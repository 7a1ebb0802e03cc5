"""Collects calls of operators that a pass adds to a function."""

from __future__ import annotations

from typing import Any

from ..ops import TensorType, infer_types
from .nodes import Binding, Call, Function, Value, Var, taken_names


class Emitter:
    """Collects bindings, with names that differ from a function's own. source: of all of them;
    else each has its name as source."""

    def __init__(self, function: Function, source: str = "") -> None:
        self.names = taken_names(function)
        self.source = source
        self.bindings: list[Binding] = []

    def param(self, name: str, t: TensorType) -> Var:
        return Var(self.names.fresh(name), t)

    def emit(self, op: str, *args: Value, name: str, source: str = "", **attrs: Any) -> Var:
        (t,) = infer_types(op, [a.type for a in args], attrs)
        out = Var(self.names.fresh(name), t)
        self.bindings.append(Binding((out,), Call(op, args, attrs), source or self.source or name))
        return out
