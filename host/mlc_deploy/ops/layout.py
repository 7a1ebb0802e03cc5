"""Layouts: a packed tensor is a plain tensor of higher rank, and a layout names its dimensions.

"OIHW8o" has the dimensions O/8, I, H, W, and 8 of O innermost: capital letters are the axes, a
number and a small letter a tile of one. Where a tile does not divide its axis the rest is zeros.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .. import te
from ..ir import Expr
from ..te import Tensor
from .registry import Array, Attrs, Operator, register, require


@dataclass(frozen=True, slots=True)
class Layout:
    """order: each dimension's axis. tiles: each tiled axis' tile sizes, outermost first."""

    text: str
    order: tuple[str, ...]
    tiles: dict[str, tuple[int, ...]]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes without tiles, in the order of their capital letters."""
        return tuple(dict.fromkeys(self.order))


@cache
def layout(text: str) -> Layout:
    """Reads a layout's name; ValueError if it is not a layout."""
    order: list[str] = []
    tiles: dict[str, tuple[int, ...]] = {}
    parts = re.findall(r"([A-Z])|([0-9]+)([a-z])", text)
    if "".join(a + n + t for a, n, t in parts) != text or not parts:
        raise ValueError(f"'{text}' is not a layout\n  try: one like NCHW, NCHW4c, OIHW8o")
    for axis, size, tile in parts:
        order.append(axis or tile.upper())
        if size:
            tiles[tile.upper()] = (*tiles.get(tile.upper(), ()), int(size))
    if any(text.count(a) != 1 for a in set(order)):
        raise ValueError(f"layout '{text}' names an axis twice, or a tile without its axis")
    return Layout(text, tuple(order), tiles)


def _parts(of: Layout) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """The parts of a layout: axis, which part of the axis it is, and the axis's tiles."""
    for place, axis in enumerate(of.order):
        yield axis, of.order[:place].count(axis), of.tiles.get(axis, ())


def packed_shape(to: Layout, sizes: Mapping[str, Any]) -> tuple[Any, ...]:
    """The shape in a layout of a tensor with these sizes by axis. Sizes of tiled axes are
    numbers."""
    shape: list[Any] = []
    for axis, number, tiles in _parts(to):
        if number:
            shape.append(tiles[number - 1])
        elif tiles:
            shape.append(-(-sizes[axis] // int(np.prod(tiles, dtype=np.int64))))
        else:
            shape.append(sizes[axis])
    return tuple(shape)


def packed_index(to: Layout, at: dict[str, Expr]) -> tuple[Expr, ...]:
    """The index in a layout of the element with these coordinates by axis."""
    indices: list[Expr] = []
    for axis, number, tiles in _parts(to):
        below = int(np.prod(tiles[number:], dtype=np.int64))
        index = at[axis] // below
        indices.append(index if number == 0 else index % tiles[number - 1])
    return tuple(indices)


def pack(array: Array, source: str, to: str) -> Array:
    """An array from a plain layout (no tiles) to another; zeros fill up the tiles."""
    plain, target = layout(source), layout(to)
    sizes = dict(zip(plain.order, array.shape, strict=True))
    spread: list[int] = []
    places: list[tuple[str, int]] = []
    padding = []
    for axis in plain.order:
        tiles = target.tiles.get(axis, ())
        whole = int(np.prod(tiles, dtype=np.int64))
        outer = -(-sizes[axis] // whole)
        padding.append((0, outer * whole - sizes[axis]))
        spread += [outer, *tiles]
        places += [(axis, n) for n in range(len(tiles) + 1)]
    seen: dict[str, int] = {}
    order = []
    for axis in target.order:
        order.append(places.index((axis, seen.get(axis, 0))))
        seen[axis] = seen.get(axis, 0) + 1
    if any(after for _, after in padding):  # np.pad copies in any case
        array = np.pad(array, padding)
    return np.ascontiguousarray(array.reshape(spread).transpose(order))


def unpack(array: Array, source: str, to: str, sizes: Sequence[int]) -> Array:
    """The inverse of pack: from a tiled layout to a plain one whose axes have these sizes."""
    packed, plain = layout(source), layout(to)
    seen: dict[str, int] = {}
    places: list[tuple[str, int]] = []
    for axis in packed.order:
        places.append((axis, seen.get(axis, 0)))
        seen[axis] = seen.get(axis, 0) + 1
    order = [places.index((a, n)) for a in plain.order for n in range(seen[a])]
    spread = array.transpose(order)
    whole = spread.reshape(
        [
            int(np.prod([array.shape[places.index((a, n))] for n in range(seen[a])]))
            for a in plain.order
        ]
    )
    return whole[tuple(slice(0, size) for size in sizes)]


def unpacked_index(source: Layout, i: Sequence[Expr]) -> dict[str, Expr]:
    """The coordinates, by axis, of the element at index i of a layout."""
    at: dict[str, Expr] = {}
    seen: dict[str, int] = {}
    for axis, index in zip(source.order, i, strict=True):
        number = seen.get(axis, 0)
        seen[axis] = number + 1
        scale = int(np.prod(source.tiles.get(axis, ())[number:], dtype=np.int64))
        at[axis] = at.get(axis, 0) + index * scale
    return at


def plain_sizes(source: Layout, shape: Sequence[Any]) -> dict[str, Any]:
    """The sizes, by axis, of a tensor in a layout whose tiles divide them."""
    sizes: dict[str, Any] = {}
    for axis, extent in zip(source.order, shape, strict=True):
        sizes[axis] = sizes[axis] * extent if axis in sizes else extent
    return sizes


def in_layout(to: Layout, sizes: Sequence[Any], element: Callable[..., Any], name: str) -> Tensor:
    """The tensor of element(*coordinates), with these sizes by axis, in a layout."""
    if not to.tiles:
        plain: Tensor = te.compute(sizes, element, name=name)
        return plain
    shape = packed_shape(to, dict(zip(to.axes, sizes, strict=True)))

    def at(*i: Expr) -> Any:
        return element(*unpacked_index(to, i).values())

    tiled: Tensor = te.compute(shape, at, name=name)
    return tiled


Compute = Callable[[Sequence[Tensor], Attrs], Sequence[Tensor]]
Evaluate = Callable[[Sequence[Array], Attrs], Sequence[Array]]


def in_any_layout(compute: Compute, evaluate: Evaluate) -> tuple[Compute, Evaluate]:
    """An operator's two definitions, of one input and on plain data, with an attribute `layout` for
    data and results."""

    def computed(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
        if "layout" not in attrs:
            return compute(inputs, attrs)
        (x,) = inputs
        given = layout(attrs["layout"])
        require(x.ndim == len(given.order), f"{given.text} of {x.ndim} dimensions")
        sizes = tuple(plain_sizes(given, x.shape).values())
        plain = te.compute(
            sizes, lambda *i: x[packed_index(given, dict(zip(given.axes, i, strict=True)))]
        )
        return [
            in_layout(given, result.shape, lambda *i, result=result: result[i], "blocks")
            for result in compute([plain], attrs)
        ]

    def evaluated(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
        if "layout" not in attrs:
            return evaluate(inputs, attrs)
        given = layout(attrs["layout"])
        plain = "".join(given.axes)
        sizes = list(plain_sizes(given, inputs[0].shape).values())
        results = evaluate([unpack(inputs[0], given.text, plain, sizes)], attrs)
        return [pack(result, plain, given.text) for result in results]

    return computed, evaluated


def _compute(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    (x,) = inputs
    source, to = layout(attrs["source"]), layout(attrs["to"])
    fits = set(source.order) == set(to.order) and x.ndim == len(source.order)
    require(fits, f"layout_transform: {source.text} to {to.text} of {x.ndim} dimensions")
    sizes = plain_sizes(source, x.shape)

    def element(*i: Expr) -> Expr:
        at = unpacked_index(to, i)
        inside = [at[a] < sizes[a] for a in to.tiles if sizes[a] % np.prod(to.tiles[a])]
        value = x[packed_index(source, at)]
        return te.if_then_else(te.all_of(*inside), value, 0) if inside else value

    return [te.compute(packed_shape(to, sizes), element, name="layout_transform")]


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (x,) = inputs
    source = layout(attrs["source"])
    plain = "".join(source.axes)
    whole = unpack(x, source.text, plain, list(plain_sizes(source, x.shape).values()))
    return [pack(whole, plain, attrs["to"])]


register(Operator("layout_transform", _compute, _evaluate, "injective", ("follows_half",)))
