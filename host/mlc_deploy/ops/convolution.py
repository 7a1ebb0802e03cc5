"""Convolutions and their windows in plain numbers, for all kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import te
from ..ir import Expr, const
from ..te import Tensor
from .nn import window_extent
from .registry import Attrs, TensorType

OPEN = 64  # stands for an extent known only at run time, to choose tiles and compare costs


@dataclass(frozen=True, slots=True)
class Window:
    """The element of the data that a result reads, for each tap of a kernel. pads: at the
    beginnings, then at the ends."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    def tap(
        self, at: Sequence[Expr], kernel: Sequence[te.IterVar], size: Sequence[Any]
    ) -> tuple[list[Expr], Expr]:
        """The index that a tap of the window at `at` reads, and whether it lies inside data of
        `size`."""
        place: list[Expr] = []
        inside: list[Expr] = []
        for n, (o, k) in enumerate(zip(at, kernel, strict=True)):
            i = o * self.strides[n] + k.var * self.dilations[n] - self.pads[n]
            place.append(i)
            inside += [i >= 0] if self.pads[n] else []
            inside += [i < size[n]] if self.pads[len(size) + n] else []
        return place, te.all_of(*inside)


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A convolution of two dimensions. border: the value around the data. batch and size are
    expressions where they are known only at run time."""

    dtype: str
    batch: int
    channels: int
    size: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]
    groups: int
    border: int

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        top, left, bottom, right = self.pads
        padded = (self.size[0] + top + bottom, self.size[1] + left + right)
        steps = zip(padded, self.kernel, self.strides, self.dilations, strict=True)
        height, width = (window_extent(*step) for step in steps)
        return height, width

    @property
    def usual(self) -> ConvShape:
        """With numbers for extents known only at run time, to choose tiles and compare costs: sizes
        that give OPEN pixels of the result."""
        batch = 1 if isinstance(self.batch, Expr) else self.batch
        height, width = (
            (OPEN - 1) * self.strides[d]
            + (self.kernel[d] - 1) * self.dilations[d]
            + 1 - self.pads[d] - self.pads[2 + d]
            if isinstance(n, Expr) else n
            for d, n in enumerate(self.size)
        )  # fmt: skip
        return replace(self, batch=batch, size=(height, width))

    @property
    def window(self) -> Window:
        return Window(self.strides, self.dilations, self.pads)

    @property
    def inner(self) -> Window:
        """The window over data that have their border."""
        return replace(self.window, pads=(0, 0, 0, 0))

    @property
    def pointwise(self) -> bool:
        """Whether every pixel of the result needs only the pixel at the same place."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not any(self.pads)

    @property
    def flat(self) -> bool:
        """Whether the pixels of all rows are one dimension: the convolution is pointwise, and its
        size is known."""
        return self.pointwise and not is_open(self.size)

    @property
    def depthwise(self) -> bool:
        """Whether every channel has a filter of its own, and one result."""
        return self.groups == self.channels == self.out_channels

    @property
    def per_group(self) -> int:
        """Input channels of a group."""
        return self.channels // self.groups


@dataclass(frozen=True, slots=True)
class Phases:
    """A copy of the data of a convolution with strides, where neighbouring results read
    neighbouring elements: element e of phase p in a row is the row's element e * stride + p, and
    zeros lie around. Rows are the data's. Where a kernel is one element high or wide, only the rows
    or elements that it reads are copied."""

    conv: ConvShape

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, phases and elements of a phase, of a channel."""
        (kh, kw), (height, width) = self.conv.kernel, self.conv.out_size
        stride, reach = self.conv.strides[1], (kw - 1) * self.conv.dilations[1]
        rows, phases = self.conv.size[0] if kh > 1 else height, stride if kw > 1 else 1
        return rows, phases, width + (self._first + reach) // stride

    @property
    def _before(self) -> int:
        """Elements of each phase before the row's own."""
        return -(-self.conv.pads[1] // self.conv.strides[1])

    @property
    def _left(self) -> int:
        """Elements before the row, of all phases."""
        whole = self._before * self.conv.strides[1]
        return whole if self.conv.kernel[1] > 1 else self.conv.pads[1]

    @property
    def _first(self) -> int:
        """Where the first window begins, among the elements of all phases."""
        return self._left - self.conv.pads[1]

    def of(self, x: Tensor) -> Tensor:
        """The copy [N, C, rows, phases, elements, ...] of data [N, C, H, W, ...]."""
        (height, width), stride, rest = self.conv.size, self.conv.strides[1], x.shape[4:]
        rows, phases, elements = self.shape
        step, above = (
            (1, 0) if self.conv.kernel[0] > 1 else (self.conv.strides[0], self.conv.pads[0])
        )
        below = (rows - 1) * step - above >= height
        right = (elements - 1) * stride + phases - 1 - self._left >= width

        def element(b: Expr, c: Expr, y: Expr, p: Expr, e: Expr, *lane: Expr) -> Expr:
            row, column = y * step - above, e * stride + p - self._left
            inside = [row >= 0] if above else []
            inside += [row < height] if below else []
            inside += [e >= self._before] if self._before else []
            inside += [column < width] if right else []
            value = x[(b, c, row, column, *lane)]
            return te.if_then_else(te.all_of(*inside), value, 0) if inside else value

        shape = (*x.shape[:2], rows, phases, elements, *rest)
        copy: Tensor = te.compute(shape, element, name="phases")
        return copy

    def tap(self, at: Sequence[Expr], kernel: Sequence[te.IterVar]) -> tuple[list[Expr], Expr]:
        """The index [row, phase, element] that a tap of the window at `at` reads, and whether it
        lies inside the data."""
        (y, q), (ky, kx), conv = at, kernel, self.conv
        inside: list[Expr] = []
        if (high := conv.kernel[0]) > 1:
            (down, by), above = (conv.strides[0], conv.dilations[0]), conv.pads[0]
            y = y * down + ky.var * by - above
            last = (conv.out_size[0] - 1) * down + (high - 1) * by - above
            inside += [y >= 0] if above else []
            inside += [y < conv.size[0]] if last >= conv.size[0] else []
        if conv.kernel[1] == 1:
            return [y, const(0), q], te.all_of(*inside)
        tap, stride = kx.var * conv.dilations[1] + self._first, conv.strides[1]
        return [y, tap % stride, q + tap // stride], te.all_of(*inside)


def in_border(
    x: Tensor, window: Window, kernel: Sequence[int], rows: Sequence[Any], value: float
) -> Tensor:
    """A copy of data [N, C, H, W, ...] with a border of `value`, as far as windows of `rows`
    results (height, width) read: without a guard, where no window reads beyond it."""
    size, rest = x.shape[2:4], x.shape[4:]
    read = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(rows, window.strides, kernel, window.dilations, strict=True)
    ]
    top, left, *_ = window.pads

    def element(b: Expr, c: Expr, y: Expr, q: Expr, *lane: Expr) -> Expr:
        y, q = y - top, q - left
        inside = te.all_of(y >= 0, y < size[0], q >= 0, q < size[1])
        return te.if_then_else(inside, x[(b, c, y, q, *lane)], const(value, x.dtype))

    copy: Tensor = te.compute((*x.shape[:2], *read, *rest), element, name="pad")
    return copy


def whole_tiles(width: Any, pixels: int) -> Any:
    """A width, rounded up to tiles of so many pixels."""
    return (width + pixels - 1) // pixels * pixels


def usual(size: Sequence[Any]) -> tuple[int, ...]:
    """Extents of a result as numbers: OPEN for those known only at run time."""
    return tuple(n if isinstance(n, int) else OPEN for n in size)


def is_open(size: Sequence[Any]) -> bool:
    """Whether some extent is known only at run time."""
    return any(isinstance(n, Expr) for n in size)


def static(*types: Any) -> bool:
    return all(isinstance(n, int) for t in types for n in t.shape)


def any_batch(of: TensorType) -> bool:
    """Whether all extents but the first are known."""
    return all(isinstance(n, int) for n in of.shape[1:])


def conv_shape(
    types: Sequence[TensorType], attrs: Attrs, any_size: bool = False
) -> ConvShape | None:
    """The convolution of plain data and weights; None if sizes are unknown, or it has a layout
    already. The batch may be unknown; any_size: height and width, too."""
    x, w = types[:2]
    if not static(w) or "kernel_layout" in attrs or "data_layout" in attrs:
        return None
    if not (any_batch(x) or (any_size and isinstance(x.shape[1], int))):
        return None
    batch, channels, *size = x.shape
    out_channels, _, *kernel = w.sizes
    strides, dilations, pads = (tuple(attrs[key]) for key in ("strides", "dilations", "pads"))
    return ConvShape(
        x.dtype,
        batch,  # type: ignore[arg-type]
        channels,  # type: ignore[arg-type]
        (size[0], size[1]),  # type: ignore[arg-type]
        out_channels,
        (kernel[0], kernel[1]),
        strides,
        dilations,
        pads,
        attrs["groups"],
        attrs.get("pad_value", 0),
    )
