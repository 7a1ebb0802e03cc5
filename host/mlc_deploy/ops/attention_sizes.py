"""The sizes of a call of attention (ops/attention.py), and the order of its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..arith import simplify_expr
from ..ir import Dim, const, dtype_of, free_vars, substitute
from ..ir.nodes import dim
from ..te import Tensor
from .convolution import OPEN
from .elementwise import same_extent
from .registry import Attrs, TensorType, require

NAME = "attention"
HEADS_FIRST = (True, True, True, True)


@dataclass(frozen=True, slots=True)
class Sizes:
    """B, H, K, S, L, D and E of a call, as ops/attention.py names them."""

    batch: Dim
    heads: int
    kept: int
    count: Dim
    length: Dim
    width: int
    values: int

    @property
    def group(self) -> int:
        return self.heads // self.kept

    @property
    def rows(self) -> Dim:
        """Queries that share a head of keys."""
        return self.group * self.count


def sizes_of(types: Sequence[TensorType | Tensor], attrs: Attrs) -> Sizes:
    """Raises ValueError for inputs that do not fit together."""
    listed = ", ".join(f"{t.dtype}{list(t.shape)}" for t in types)
    q, k, v = types[:3]
    require(all(len(t.shape) == 4 for t in types), f"{NAME}: {listed}")
    scaled = types[len(types) - 2 :] if attrs.get("scaled") else ()
    bytes_ = [t.dtype == "int8" for t in (k, v)]
    floats = (q, *types[3:], *(() if scaled else (k, v)))
    takes = all(dtype_of(t.dtype).kind == "float" for t in floats)
    takes = takes and (not scaled or (len(types) > 4 and all(bytes_)))
    require(takes, f"{NAME}: does not take {listed}")
    first = attrs.get("heads_first", HEADS_FIRST)
    (b, heads, count, width), (bk, kept, most, wk), (bv, kv, mv, values) = (
        in_order(t.shape, f) for t, f in zip((q, k, v), first, strict=False)
    )
    alike = ((b, bk), (b, bv), (kept, kv), (most, mv), (width, wk))
    whole = all(isinstance(n, int) for n in (heads, kept, width, values))
    fits = whole and heads % kept == 0 and all(same_extent(m, n) for m, n in alike)
    require(fits, f"{NAME}: {listed}")
    length = attrs["rows"] if attrs.get("rows") is not None else most
    for scale in scaled:
        fits = all(same_extent(n, m) for n, m in zip(scale.shape, (b, kept, most, 1), strict=True))
        require(fits and scale.dtype == "float32" and first[1] and first[2], f"{NAME}: {listed}")
    biases = types[3 : len(types) - len(scaled)]
    for bias in biases:
        wanted = (b, heads, count, length)
        fits = all(
            same_extent(n, m) or (isinstance(n, int) and n == 1)
            for n, m in zip(bias.shape, wanted, strict=True)
        )
        require(fits and len(biases) == 1, f"{NAME}: {listed}")
    return Sizes(b, heads, kept, count, length, width, values)


def counted(extent: Dim) -> int:
    """An extent as a number, to compare costs; a symbol in it counts as OPEN."""
    if isinstance(extent, int):
        return extent
    known = {v: const(OPEN, v.dtype) for v in free_vars(extent)}
    found = dim(simplify_expr(substitute(extent, known), {}))
    assert isinstance(found, int)
    return found


def in_order(shape: Sequence[Any], heads_first: bool) -> tuple[Any, Any, Any, Any]:
    """A shape or an index in the operator's own order of heads and rows, or back."""
    b, x, y, d = shape
    return (b, x, y, d) if heads_first else (b, y, x, d)
