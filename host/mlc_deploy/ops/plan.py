"""Plans: how a target computes one call of an operator, decided once and carried as a value.

An implementation makes a plan from plain types and attributes. The plan says what it costs, in
which layouts it wants data and weights, and then states the operator in stages and schedules them.
It is frozen and compares by value; equal plans make equal kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mlc_targets import Target

from ..ir import PrimFunc, dtype_of
from ..te import Tensor
from .block_scaled import packed_numbers, packed_type, unpacked_bytes
from .layout import layout, pack, packed_shape
from .nn import rows_shifted, taps_as_channels
from .registry import Array, Attrs, TensorType, frozen_attrs
from .winograd import KERNEL, MOST_WHOLE, points_dtype, transformed_weights

WEIGHTS = 1  # the place of weights among an operator's arguments
SHARED = "shared_weights"  # an attribute: weights packed as a layer of many rows has them
NARROW, SMALL = "narrow_weights", "small_sums"  # attributes: see known_of_weights
MOST_DATUM = 128  # of int8
PIECE = 4096  # columns that are packed together: a multiple of every layout's tile


@dataclass(frozen=True, slots=True)
class Packing:
    """How constant weights are laid out at compile time: from the plain layout `source` to the
    layout `to`. taps: the width of a row of taps that replaces input channels, if any
    (nn.taps_as_channels). shifts: of the rows of taps, repeated in `high` rows for each shift, if
    any (nn.rows_shifted). tile: Winograd's tile, for which weights are transformed, if any; their
    rows, too, if `rows` (winograd.py). bits:
    of numbers in blocks of bytes, if any. halves: the dimension of `to` that counts the halves of a
    byte (block_scaled.py). floats: the dtype that floats become, if any."""

    source: str
    to: str
    taps: int = 0
    shifts: tuple[int, ...] = ()
    high: int = 0
    tile: int = 0
    rows: bool = True
    bits: int = 0
    halves: int = 0
    floats: str = ""

    def prepared(self, w: Array) -> Array:
        """Plain weights in the form that `to` lays out."""
        if self.shifts:
            return rows_shifted(w, self.shifts, self.high)
        return taps_as_channels(w, self.taps) if self.taps else w

    def __call__(self, w: Array) -> Array:
        if self.bits:
            return self._of_few_bits(w)
        if self.floats and w.dtype.kind == "f":
            w = w.astype(self.floats)
        packed = pack(self.prepared(w), self.source, self.to)
        if self.tile:  # after packing: transformed weights are up to seven times as many
            height = layout(self.to).order.index("H")
            return transformed_weights(packed, self.tile, height, self.rows)
        return packed

    def _of_few_bits(self, w: Array) -> Array:
        """Packs pieces of columns, since on the way a number takes a byte or more."""
        found = self.type(TensorType(w.shape, str(w.dtype)))
        packed, at = np.empty(found.sizes, found.dtype), 0
        for begin in range(0, len(w), PIECE):
            numbers = unpacked_bytes(w[begin : begin + PIECE], self.bits)
            piece = packed_numbers(numbers, self.to, self.halves)
            packed[at : at + len(piece)] = piece
            at += len(piece)
        return packed

    def type(self, w: TensorType) -> TensorType:
        """The type of weights laid out, from the type of plain ones."""
        sizes, dtype = w.sizes, w.dtype
        if self.bits:
            columns, blocks, stored = sizes
            depth = blocks * stored * 8 // self.bits
            return packed_type((columns, depth), self.to, self.halves)
        if self.floats and dtype_of(dtype).kind == "float":
            dtype = self.floats
        if self.tile:
            points = self.tile + KERNEL - 1
            sizes = (*sizes[:2], points, points if self.rows else KERNEL)
            dtype = points_dtype(dtype)
        elif self.taps:
            sizes = (sizes[0], sizes[1] * self.taps, sizes[2], 1)
        elif self.shifts:
            sizes = (*sizes[:2], len(self.shifts) * self.high, sizes[3])
        return laid_out(TensorType(sizes, dtype), self.source, self.to)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """How one call is computed. Subclasses add fields for what was decided.

    types: of the plain arguments. op and stated: the operator and the attributes that state the
    call in the plan's layouts. data: the layout of the first argument, and result the layout of the
    result; "" for plain ones. packing: of constant weights; None to take them as they are. beside:
    of the constants that follow the weights. cost: about how many instructions one call executes; 0
    where that is not known.
    """

    name: ClassVar[str]

    types: tuple[TensorType, ...]
    op: str
    stated: tuple[tuple[str, Any], ...]
    target: Target = field(repr=False)
    data: str = ""
    result: str = ""
    packing: Packing | None = None
    beside: Packing | None = None
    cost: float = 0.0

    @property
    def attrs(self) -> dict[str, Any]:
        return dict(self.stated)

    @property
    def arguments(self) -> tuple[TensorType, ...]:
        """The types of the arguments in the plan's layouts."""
        found = list(self.types)
        if self.data:
            found[0] = laid_out(found[0], "".join(layout(self.data).axes), self.data)
        if self.packing is not None:
            found[WEIGHTS] = self.packing.type(found[WEIGHTS])
        if self.beside is not None:
            found[WEIGHTS + 1 :] = map(self.beside.type, found[WEIGHTS + 1 :])
        return tuple(found)

    @property
    def saved(self) -> float:
        """Instructions saved by weights that grow when packed; 0 where they do not grow."""
        return 0.0

    def lighter(self) -> Sequence[Plan]:
        """Other plans of the call, whose weights grow less."""
        return ()

    def packed(self, constants: Sequence[Array]) -> list[Array]:
        """The weights, and the constants that follow them, as the plan takes them."""
        found = list(constants)
        if self.packing is not None:
            found[0] = self.packing(found[0])
        if self.beside is not None:
            found[1:] = map(self.beside, found[1:])
        return found

    @abstractmethod
    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The operator's stages, as `schedule` expects them."""

    @abstractmethod
    def schedule(self, func: PrimFunc) -> PrimFunc:
        """Schedules `func`. Its parameters begin with the operator's inputs, its stages with the
        plan's; elementwise stages may follow."""


def known_of_weights(w: Array) -> dict[str, Any]:
    """Attributes that tell plans about constant int8 weights. NARROW: they are within ±127, so that
    int16 holds the sum of two products. SMALL: they are 3 x 3 filters, and Winograd's filtering
    gives their sums with any data exactly."""
    if w.dtype != np.int8:
        return {}
    known = {NARROW: True} if w.min(initial=0) >= -127 else {}
    if w.shape[2:] == (KERNEL, KERNEL):
        largest = np.abs(w, dtype=np.int64).sum(axis=(1, 2, 3)).max(initial=0)
        known |= {SMALL: True} if MOST_DATUM * largest < MOST_WHOLE else {}
    return known


def stated(attrs: Attrs, **more: Any) -> tuple[tuple[str, Any], ...]:
    """Attributes as a plan keeps them."""
    return tuple(frozen_attrs({**attrs, **more}).items())


def fields(
    op: str,
    types: Sequence[TensorType],
    attrs: Attrs,
    target: Target,
    packing: Packing | None = None,
    data: str = "",
    result: str = "",
    **more: Any,
) -> dict[str, Any]:
    """The fields that every plan has; `more` are attributes that state the call, too."""
    if packing is not None:
        more |= {"kernel_layout": packing.to, "source_layout": packing.source}
    return {
        "op": op,
        "types": tuple(types),
        "stated": stated(attrs, **more),
        "target": target,
        "packing": packing,
        "data": data,
        "result": result,
    }


def laid_out(of: TensorType, source: str, to: str) -> TensorType:
    """A type in plain layout `source`, in layout `to`."""
    sizes = dict(zip(layout(source).axes, of.shape, strict=True))
    return TensorType(packed_shape(layout(to), sizes), of.dtype)
