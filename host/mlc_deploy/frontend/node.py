"""Nodes of a model as converters see them, in every front end. A node emits our operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ImporterError
from ..files.limits import MADE_ELEMENTS
from ..graph.builder import BlockBuilder
from ..graph.nodes import Constant, Value
from ..graph.rewrite import fold_call
from ..ir import Dim, Expr, is_const, same_dim, same_shape
from ..ir import Var as Symbol
from ..ops import frozen_attrs
from ..ops.elementwise import UnlikeExtents, same_extent
from .extents import Extents, product

MOST_TURNS = 1000  # of a loop that is unrolled; each adds its nodes to the graph


# Step: an iteration of a loop, from its number, the states and the elements of sequences to the
# next states and the elements of results. Branch: emits one of two branches and returns its
# results.
Step = Callable[[Value, list[Value], list[Value]], tuple[Sequence[Value], Sequence[Value]]]
Branch = Callable[[], Sequence[Value]]


if TYPE_CHECKING:

    class Extent(int):
        """A number for most converters. A dynamic one is an expression: arithmetic on it makes
        expressions, and counting to it raises an error, which refuses the node. Questions are asked
        with `is_const` and `same_dim`, since `==` of expressions makes expressions."""

        def __add__(self, other: int) -> Extent: ...
        def __radd__(self, other: int) -> Extent: ...
        def __sub__(self, other: int) -> Extent: ...
        def __rsub__(self, other: int) -> Extent: ...
        def __mul__(self, other: int) -> Extent: ...
        def __rmul__(self, other: int) -> Extent: ...
        def __floordiv__(self, other: int) -> Extent: ...
        def __mod__(self, other: int) -> Extent: ...

else:
    Extent = int


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

        Calls on constants are computed at once: later nodes may need them as shapes.
        """
        args = tuple(map(_known_if_empty, args))
        folded = fold_call(op, args, frozen_attrs(attrs))
        if folded is None:
            try:
                result: Value = self.call(op, *args, **attrs)
            except UnlikeExtents as error:
                alike = _alike(self, args, *error.pair)
                if alike is None:
                    raise
                return self.emit(op, *alike, **attrs)
            self.extents.follow(op, args, attrs, result)
            return result
        several: Any = folded
        return folded[0] if len(folded) == 1 else several

    def emit_several(self, op: str, *args: Value, **attrs: Any) -> tuple[Value, ...]:
        """The outputs of an operator that has several."""
        several: Any = self.emit(op, *args, **attrs)
        return tuple(several)

    def emit_loop(
        self,
        turns: Dim,
        states: Sequence[Value],
        step: Step,
        *,
        read: Sequence[tuple[Value, bool]] = (),
        written: Sequence[bool] = (),
        conditional: bool = False,
    ) -> tuple[list[Value], list[Value]]:
        """The last states and the results of a loop, as BlockBuilder.emit_loop gives them. step may
        convert nodes. If the elements' shape is known only at run time, each gets the space of the
        largest, so that every iteration finds its own at a known place."""
        given: list[list[Sequence[Dim]]] = []  # the shapes of the elements of results

        def turn(
            number: Value, own: list[Value], elements: list[Value]
        ) -> tuple[Sequence[Value], Sequence[Value]]:
            with self.extents.within():
                seen = [
                    _close(self, x, shape_of(whole)[1:])
                    for x, (whole, _) in zip(elements, read, strict=True)
                ]
                after, results = step(number, own, seen)
                given.append([shape_of(x) for x in results])
                return after, [_apart(self, x, 0) for x in results]

        extent = turns if isinstance(turns, int | Symbol) else self.extents.named(self, turns)
        apart = [(_apart(self, of_extent(self, x, extent), 1), back) for x, back in read]
        ends, results = self.builder.emit_loop(
            extent,
            states,
            turn,
            read=apart,
            written=written,
            conditional=conditional,
            source=self.source,
        )
        shapes = [self._outside(shape) for shape in given[-1]]
        dense = [_dense(self, x, e) for x, e in zip(results, shapes, strict=True)]
        return list(ends), [of_extent(self, x, turns) for x in dense]

    def _outside(self, shape: Sequence[Dim]) -> list[Dim]:
        """The shape of an iteration's result, by the extents known outside the loop."""
        found: list[Dim] = []
        for extent in shape:
            known = self.extents.outside(extent)
            if known is None:
                raise self.refuse(
                    f"each iteration gives as many elements as its own '{extent}' says"
                )
            found.append(self.extents.own(self, known))
        return found

    def emit_branch(self, condition: Value, then: Branch, otherwise: Branch) -> list[Value]:
        """The results of a branch, as BlockBuilder.emit_branch gives them."""

        def of(branch: Branch) -> Sequence[Value]:
            with self.extents.within():
                return branch()

        both = partial(of, then), partial(of, otherwise)
        return list(self.builder.emit_branch(condition, *both, source=self.source))

    def constant(self, value: Any, dtype: str) -> Constant:
        return Constant(np.asarray(value, dtype))

    def cast(self, value: Value, dtype: str) -> Value:
        return value if value.type.dtype == dtype else self.emit("cast", value, dtype=dtype)

    def refuse(self, what: str, mend: str = "") -> ImporterError:
        """The error for a node that cannot be converted."""
        return ImporterError(what, where=self.place, mend=mend)


class NumberedNode(Node):
    """A node of a file, whose inputs have numbers."""

    inputs: list[Any]

    @abstractmethod
    def optional(self, number: int) -> Value | None:
        """An input; None if it is left out."""

    @abstractmethod
    def known(self, number: int, what: str) -> NDArray[Any]:
        """The value of an input that decides about shapes or axes. Raises ImporterError unless it
        is constant."""

    def input(self, number: int) -> Value:
        """An input. Raises ValueError if it is missing."""
        value = self.optional(number)
        if value is None:
            raise ValueError(f"input {number} is missing")
        return value

    def every(self) -> list[Value]:
        """All inputs. Raises ValueError if one is missing."""
        return [self.input(number) for number in range(len(self.inputs))]

    def shape(self, number: int = 0) -> tuple[Extent, ...]:
        return shape_of(self.input(number))

    def dtype(self, number: int = 0) -> str:
        return self.input(number).type.dtype

    def whole(self, number: int, what: str) -> int:
        """As `known`, a whole number."""
        return int(self.known(number, what).item())


def shape_of(value: Value) -> tuple[Extent, ...]:
    return value.type.shape  # type: ignore[return-value]


def of_extent(n: Node, x: Value, extent: Dim) -> Value:
    """x with dimension 0 written as another, equal expression."""
    if same_dim(shape_of(x)[0], extent):
        return x
    return n.emit("first", x, n.extents.value(n, extent), extent=extent)


def with_dims(n: Node, x: Value, shape: Sequence[Dim]) -> Value:
    """x with its dimensions written as other, equal expressions."""
    if same_shape(shape_of(x), shape):
        return x
    flat = n.emit("reshape", x, shape=(product(shape_of(x)),))
    return n.emit("reshape", of_extent(n, flat, product(shape)), shape=tuple(shape))


def _alike(n: Node, args: Sequence[Value], a: Dim, b: Dim) -> list[Value] | None:
    """Arguments in which two extents that are equal in every run are one; None if they may be
    unlike, or are one. An axis of min(b, 1) elements beside one of b is one of a single element,
    which is zero, and of no use, where there is none."""
    if isinstance(a, int) or (isinstance(a, Symbol) and not isinstance(b, Symbol | int)):
        a, b = b, a  # a number stays, or else a name
    for rare, kept in ((a, b), (b, a)):
        if n.extents.is_first_of(rare, kept):
            return _rewritten(args, rare, lambda x, axis: n.emit("grow", x, axis=axis, extent=1))
    if n.extents.are_equal(a, b):
        return _rewritten(args, a, lambda x, axis: along(n, x, axis, b))
    return None


def _rewritten(
    args: Sequence[Value], extent: Dim, change: Callable[[Value, int], Value]
) -> list[Value] | None:
    """Arguments after a change of each axis that has an extent; None if none has it."""
    found = list(args)
    for k, x in enumerate(args):
        for axis, own in enumerate(shape_of(x)):
            if own is extent or same_extent(own, extent):
                found[k] = change(found[k], axis)
    return None if all(a is b for a, b in zip(found, args, strict=True)) else found


def along(n: Node, x: Value, axis: int, extent: Dim) -> Value:
    """x with one dimension written as another, equal expression."""
    shape = list(shape_of(x))
    return with_dims(n, x, [*shape[:axis], extent, *shape[axis + 1 :]])


def _apart(n: Node, x: Value, first: int) -> Value:
    """x with its dimensions from `first` on joined to one and padded to the largest size; x itself
    if they are known."""
    front, element = shape_of(x)[:first], shape_of(x)[first:]
    if not any(isinstance(extent, Expr) for extent in element):
        return x
    count = product(element)
    flat = n.emit("reshape", x, shape=(*front, count))
    return n.emit("grow", flat, axis=first, extent=n.extents.largest(count))


def _close(n: Node, x: Value, element: Sequence[Dim]) -> Value:
    """The element before _apart padded it."""
    count = product(element)
    if isinstance(count, int):
        return x
    own = n.emit("first", x, n.extents.value(n, count), extent=count)
    return n.emit("reshape", own, shape=tuple(element))


def _dense(n: Node, x: Value, element: Sequence[Dim]) -> Value:
    """The elements without the padding of _apart."""
    count = product(element)
    if isinstance(count, int):
        return x
    turns = shape_of(x)[0]
    own = n.emit("slice", x, begin=(0, 0), step=(1, 1), shape=(turns, count))
    return n.emit("reshape", own, shape=(turns, *element))


def _known_if_empty(value: Value) -> Value:
    """A constant for a tensor of a known shape without elements; other values unchanged."""
    shape = shape_of(value)
    known = all(isinstance(extent, int) for extent in shape)
    empty = any(is_const(extent, 0) for extent in shape)
    if isinstance(value, Constant) or not empty or not known:
        return value
    return Constant(np.zeros(shape, value.type.dtype))


def limited(count: int, what: str) -> int:
    """count. Raises ValueError if a table of so many elements is too large."""
    if count > MADE_ELEMENTS.most:
        raise ValueError(f"{what} of {count} elements is too large")
    return count
