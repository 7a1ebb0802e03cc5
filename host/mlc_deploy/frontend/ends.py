"""The end of an import: the outputs, and the extents in their shapes as further outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..graph.builder import BlockBuilder
from ..graph.dims import symbols
from ..graph.nodes import Function, Value
from ..ir import Var
from .extents import Extents
from .node import Node, shape_of, with_dims


class _End(Node):
    """The place of the outputs, after all nodes."""

    place, source = "the outputs", ""

    def __init__(self, builder: BlockBuilder, extents: Extents) -> None:
        self.builder, self.extents = builder, extents

    def call(self, op: str, *args: Value, **attrs: Any) -> Any:
        return self.builder.emit(op, *args, **attrs)


def finished(
    builder: BlockBuilder, extents: Extents, outputs: Sequence[Value], names: Sequence[str]
) -> Function:
    """The function with these outputs, and with the extents in their shapes as further ones."""
    if not extents.most:
        return builder.finish(outputs, names)
    end = _End(builder, extents)
    outputs = [_of_own_extent(end, value) for value in outputs]
    shown = [v.name for v in symbols([v.type for v in outputs]) if v.name not in extents.params]
    told = [extents.values[name] for name in shown]
    whole = builder.finish([*outputs, *told], [*names, *shown])
    return replace(whole, extents=tuple(extents.most.items()))


def _of_own_extent(n: Node, value: Value) -> Value:
    """The output with an extent of its own for each dimension that is an expression."""
    own = [e if isinstance(e, int | Var) else n.extents.named(n, e) for e in shape_of(value)]
    return with_dims(n, value, own)
