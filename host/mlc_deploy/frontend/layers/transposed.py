"""Transposed convolutions: each element of the data adds a kernel to the result, a stride apart.

Results that are a stride apart, a phase, read the data as a convolution does, by every stride-th
element of the kernel. depth_to_space puts the phases side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ...graph.nodes import Constant, Value
from ...ir import Expr, is_const, same_dim, same_shape
from ..node import Node, shape_of
from .shapes import reshape
from .windows import Window, biased, conv

MOST_PHASES = 16  # each is a convolution of its own, where they are not one


def transposed_extents(
    extents: Sequence[int], kernel: Sequence[int], strides: Any, dilations: Any, more: Any
) -> list[int]:
    """The spatial extents of a transposed convolution before its pads are cut off. `more` are
    elements added at the ends."""
    dimensions = zip(extents, kernel, strides, dilations, more, strict=True)
    return [s * (extent - 1) + d * (k - 1) + 1 + m for extent, k, s, d, m in dimensions]


def conv_transpose(
    n: Node,
    x: Value,
    w: Value,
    window: Window,
    groups: int,
    more: Sequence[int],
    bias: Value | None = None,
) -> Value:
    """Weights [inputs, outputs / groups, kernel …]. Negative pads are zeros around the result.

    By phases where one convolution computes all of them, or a few do; else a matrix product makes
    the outputs of each input element, and col2im adds up those that overlap.
    """
    batch, channels, *extents = shape_of(x)
    inputs, share, *kernel = shape_of(w)
    if not same_dim(channels, inputs) or channels % groups:
        raise ValueError(f"{channels} channels, weights {list(shape_of(w))}, {groups} groups")
    if not any(isinstance(extent, Expr) for extent in extents):
        if (y := _by_phases(n, x, w, window, groups, more, bias)) is not None:
            return y
    columns, places, rank = share * math.prod(kernel), math.prod(extents), len(kernel)
    grouped = (groups, channels // groups)
    weights = n.emit("transpose", reshape(n, w, (*grouped, columns)), axes=(0, 2, 1))
    y = n.emit("matmul", weights, reshape(n, x, (batch, *grouped, places)))
    y = reshape(n, y, (batch, groups * columns, places))
    whole = transposed_extents(extents, kernel, window.strides, window.dilations, more)
    cut = [max(pad, 0) for pad in window.pads]
    shape = [extent - cut[d] - cut[rank + d] for d, extent in enumerate(whole)]
    moves = window.moves | {"pads": cut}
    y = n.emit("col2im", y, shape=shape, kernel=kernel, **moves)
    around = [c - pad for c, pad in zip(cut, window.pads, strict=True)]
    if any(around):
        pads = [0, 0, *around[:rank], 0, 0, *around[rank:]]
        y = n.emit("pad", y, pads=pads, mode="constant", value=0)
    return biased(n, y, bias)


def _by_phases(
    n: Node,
    x: Value,
    w: Value,
    window: Window,
    groups: int,
    more: Sequence[int],
    bias: Value | None,
) -> Value | None:
    """None where the result is wider than the phases, or these are too many."""
    strides, kernel, rank = window.strides, window.kernel, len(window.kernel)
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    sizes = zip(kernel, strides, taps, more, strict=True)
    fits = all(k >= s and k + m <= s * t for k, s, t, m in sizes)
    if rank > 2 or max(window.dilations) > 1 or min(window.pads) < 0 or not fits:
        return None
    whole = all(k % s == 0 for k, s in zip(kernel, strides, strict=True))
    if groups == 1 and whole:
        y = _of_all_phases(n, x, w, strides, taps, bias)
    elif isinstance(w, Constant) and math.prod(strides) <= MOST_PHASES:
        y = _phase_by_phase(n, x, w, strides, taps, groups, bias)
    else:
        return None
    y = n.emit("depth_to_space", y, block=tuple(strides))
    _, _, *extents = shape_of(x)
    had = transposed_extents(extents, kernel, strides, window.dilations, more)
    before, after = window.pads[:rank], window.pads[rank:]
    shape = [h - b - a for h, b, a in zip(had, before, after, strict=True)]
    found = list(shape_of(y))
    if same_shape(found[2:], shape):
        return y
    return n.emit(
        "slice", y, begin=(0, 0, *before), step=(1,) * len(found), shape=(*found[:2], *shape)
    )


def _of_all_phases(
    n: Node, x: Value, w: Value, strides: Sequence[int], taps: Sequence[int], bias: Value | None
) -> Value:
    """[N, phases * outputs, …]: one convolution, whose kernel has the taps of each phase."""
    inputs, share, *_ = shape_of(w)
    rank, many = len(strides), math.prod(strides)
    parts = [part for pair in zip(taps, strides, strict=True) for part in pair]
    w = _turned(n, reshape(n, w, (inputs, share, *parts)), range(2, 2 + 2 * rank, 2))
    phases, own = range(3, 3 + 2 * rank, 2), range(2, 2 + 2 * rank, 2)
    w = reshape(
        n, n.emit("transpose", w, axes=(*phases, 1, 0, *own)), (many * share, inputs, *taps)
    )
    every = None if bias is None else n.emit("tile", bias, reps=(many,))
    around = [t - 1 for t in taps]
    ones = [1] * rank
    return conv(n, x, w, Window(taps, ones, ones, around * 2), every, groups=1)


def _phase_by_phase(
    n: Node,
    x: Value,
    w: Value,
    strides: Sequence[int],
    taps: Sequence[int],
    groups: int,
    bias: Value | None,
) -> Value:
    """[N, phases * outputs, …]: a convolution for each phase, with the taps that it has."""
    inputs, share, *kernel = shape_of(w)
    ones = [1] * len(strides)
    phases: list[Value] = []
    for phase in itertools.product(*map(range, strides)):
        own = [-(-(k - r) // s) for k, r, s in zip(kernel, phase, strides, strict=True)]
        part = n.emit(
            "slice", w, begin=(0, 0, *phase), step=(1, 1, *strides), shape=(inputs, share, *own)
        )
        part = _turned(n, part, range(2, 2 + len(own)))
        part = reshape(n, part, (groups, inputs // groups, share, *own))
        part = n.emit("transpose", part, axes=(0, 2, 1, *range(3, 3 + len(own))))
        part = reshape(n, part, (groups * share, inputs // groups, *own))
        pads = [*(t - 1 for t in own), *(t - 1 for t in taps)]
        phases.append(conv(n, x, part, Window(own, ones, ones, pads), bias, groups=groups))
    return n.emit("concatenate", *phases, axis=1)


def _turned(n: Node, w: Value, axes: Sequence[int]) -> Value:
    """w with its elements along some axes in reverse."""
    shape = shape_of(w)
    if all(is_const(shape[a], 1) for a in axes):
        return w
    begin = [extent - 1 if a in axes else 0 for a, extent in enumerate(shape)]
    step = [-1 if a in axes else 1 for a in range(len(shape))]
    return n.emit("slice", w, begin=begin, step=step, shape=shape)
