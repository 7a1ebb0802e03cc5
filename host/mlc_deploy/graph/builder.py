"""Building graph functions call by call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir import Dim, PrimFunc
from ..ir.names import Names
from ..ops import TensorType, frozen_attrs, infer_types
from .nodes import Binding, Call, CallTIR, Function, Value, Var


class BlockBuilder:
    """Collects bindings; names are made unique, types inferred.

    builder = BlockBuilder("main")
    x = builder.param("x", (1, 16))
    y = builder.emit("relu", x)
    function = builder.finish([y])
    """

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self._names = Names()
        self._params: list[Var] = []
        self._bindings: list[Binding] = []

    def param(self, name: str, shape: Sequence[Dim], dtype: str = "float32") -> Var:
        var = Var(self._names.fresh(name), TensorType(tuple(shape), dtype))
        self._params.append(var)
        return var

    def emit(self, op: str, *args: Value, name: str = "", source: str = "", **attrs: Any) -> Any:
        """A call of an operator: its output, or a tuple of them where it has several.

        Raises ValueError where the operator refuses the arguments, KeyError where there is no such
        operator.
        """
        types = infer_types(op, [a.type for a in args], attrs)
        return self._bind(Call(op, args, frozen_attrs(attrs)), types, name or op, source)

    def call_tir(self, func: PrimFunc, *args: Value, name: str = "", source: str = "") -> Any:
        """A call of a PrimFunc whose last buffers, those beyond args, are its outputs."""
        outputs = func.buffers[len(args) :]
        types = tuple(TensorType(b.shape, b.dtype) for b in outputs)
        return self._bind(CallTIR(func.name, args, types), types, name or func.name, source)

    def _bind(
        self, call: Call | CallTIR, types: Sequence[TensorType], name: str, source: str
    ) -> Any:
        outputs = tuple(Var(self._names.fresh(name), t) for t in types)
        self._bindings.append(Binding(outputs, call, source))
        return outputs[0] if len(outputs) == 1 else outputs

    def finish(self, outputs: Sequence[Value], names: Sequence[str] = ()) -> Function:
        """The function; output names default to the variables' own."""
        given = tuple(names) or tuple(v.name or f"output{n}" for n, v in enumerate(outputs))
        return Function(
            self.name, tuple(self._params), tuple(self._bindings), tuple(outputs), given
        )
