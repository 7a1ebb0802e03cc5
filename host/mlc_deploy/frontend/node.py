"""Nodes of a model, as the converters of every front end see them: they emit our operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ImporterError
from ..graph.builder import BlockBuilder
from ..graph.nodes import Constant, Value
from ..graph.rewrite import fold_call
from ..ops import frozen_attrs
from .extents import Extents

MOST_CONSTANTS = 1 << 28  # elements of a table that the front end makes
MOST_TURNS = 1000  # of a loop that is unrolled; each adds its nodes to the graph


# A turn of a loop: from its number, the states and the elements of sequences to the next states and
# the elements of results. And what one of two branches emits and gives.
Step = Callable[[Value, list[Value], list[Value]], tuple[Sequence[Value], Sequence[Value]]]
Branch = Callable[[], Sequence[Value]]


class Node(ABC):
    """`place` says where the node stands: the model, the node's name and its operator."""

    place: str
    builder: BlockBuilder
    extents: Extents
    source: str  # the layer that its calls come from

    @abstractmethod
    def call(self, op: str, *args: Value, **attrs: Any) -> Any:
        """The output of a call of one of our operators, or a tuple of them. Calls on constants are
        not computed: quantized weights stay quantized."""

    def emit(self, op: str, *args: Value, **attrs: Any) -> Value:
        """The output of a call of one of our operators (a tuple where it has several).

        Calls on constants are computed at once: nodes behind may need them as shapes.
        """
        args = tuple(map(_known_if_empty, args))
        folded = fold_call(op, args, frozen_attrs(attrs))
        if folded is None:
            result: Value = self.call(op, *args, **attrs)
            self.extents.follow(op, args, attrs, result)
            return result
        several: Any = folded
        return folded[0] if len(folded) == 1 else several

    def emit_several(self, op: str, *args: Value, **attrs: Any) -> tuple[Value, ...]:
        """The outputs of an operator that has several."""
        several: Any = self.emit(op, *args, **attrs)
        return tuple(several)

    def emit_loop(
        self, turns: int, states: Sequence[Value], step: Step, **parts: Any
    ) -> tuple[list[Value], list[Value]]:
        """The last states and the results of a loop, as BlockBuilder.emit_loop has it. Nodes are
        converted in step as anywhere."""
        ends, results = self.builder.emit_loop(turns, states, step, **parts, source=self.source)
        return list(ends), list(results)

    def emit_branch(self, condition: Value, then: Branch, otherwise: Branch) -> list[Value]:
        """What a branch gives, as BlockBuilder.emit_branch has it."""
        return list(self.builder.emit_branch(condition, then, otherwise, source=self.source))

    def constant(self, value: Any, dtype: str) -> Constant:
        return Constant(np.asarray(value, dtype))

    def cast(self, value: Value, dtype: str) -> Value:
        return value if value.type.dtype == dtype else self.emit("cast", value, dtype=dtype)

    def refuse(self, what: str, mend: str = "") -> ImporterError:
        """The error for a node that cannot be converted."""
        return ImporterError(what, where=self.place, mend=mend)


def shape_of(value: Value) -> tuple[int, ...]:
    """The extents. One that a run decides is an expression; a converter that compares it with
    another, or counts to it, refuses the node (TypeError)."""
    return value.type.shape  # type: ignore[return-value]


def _known_if_empty(value: Value) -> Value:
    """A tensor without elements is a constant, whatever computes it."""
    shape = shape_of(value)
    if isinstance(value, Constant) or 0 not in shape:
        return value
    return Constant(np.zeros(shape, value.type.dtype))


def limited(count: int, what: str) -> int:
    """count. Raises ValueError if a table of so many elements is too large."""
    if count > MOST_CONSTANTS:
        raise ValueError(f"{what} of {count} elements is too large")
    return count
