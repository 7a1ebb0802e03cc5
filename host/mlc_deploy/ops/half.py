"""float16: what numbers are computed in, and how their sums stay right.

Definitions keep sums in float32, and round once, when they are complete. Kernels do so too where a
target only stores float16. Where it computes with float16, sums are of float16 as well, since that
is what makes it fast; a long one is then a sum of short ones, whose errors grow with the root of
its length rather than with the length (pairwise summation, in two steps).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mlc_targets import Target

from .. import te
from ..ir import Const, Dim, Expr, IterVar, Reduce, all_of, substitute
from ..te import Tensor
from ..te.tensor import ComputeOp

WHOLE = 64  # products that are summed up in float16 without parts
PART = 64  # about how many of them make a part of a longer sum


def sums(dtype: str) -> str:
    """The dtype that sums of numbers of a dtype are kept in."""
    return "float32" if dtype == "float16" else dtype


def rounded(total: Tensor, dtype: str) -> Tensor:
    """Sums as numbers of a dtype: where that is another one, by a stage of its own."""
    if total.dtype == dtype:
        return total
    result: Tensor = te.compute(total.shape, lambda *i: total[i].astype(dtype), name="rounded")
    return result


def arithmetic(dtype: str, target: Target) -> str:
    """The dtype that kernels of a target compute in, and sum up in, for numbers of a dtype."""
    return dtype if target.float16 == "arithmetic" else sums(dtype)


def spare_registers(dtype: str, products: int, target: Target) -> int:
    """Vector registers that a tile of sums of so many products had better leave free, as counted.

    ARM multiplies float16 by lanes of half of the registers only, and LLVM's allocator spills much
    where that gets tight; numbers that are only stored in float16 are converted.
    """
    if dtype != "float16":
        return 0
    return 8 if arithmetic(dtype, target) == dtype and products > WHOLE else 4


def part_of(name: str) -> str:
    """The name of the stage that computes the parts of a stage's sums."""
    return f"{name}_part"


def tile_sum(
    shape: Sequence[Dim], element: Callable[..., Reduce], long: IterVar, name: str
) -> Tensor:
    """te.compute(shape, element, name=name); of float16 as sums of parts, each of which is over a
    piece of the axis `long`, and over the reduction's other axes.

    The parts are a stage of their own, whose first dimension counts them (tile.py schedules it).
    """
    whole: Tensor = te.compute(shape, element, name=name)
    assert isinstance(whole.op, ComputeOp)
    axis, (total,) = whole.op.axis, whole.op.body
    assert isinstance(total, Reduce)
    extent = _extent(long)
    size = part_size(total.dtype, extent, prod(_extent(a) for a in total.axes if a is not long))
    if size == extent:
        return whole
    pieces = te.reduce_axis((0, -(-extent // size)), f"{long.var.name}_piece")
    within = te.reduce_axis((0, size), long.var.name)
    axes = [within if a is long else a for a in total.axes]

    def part(piece: Expr, *i: Expr) -> Expr:
        at = piece * size + within
        values = {long.var: at, **{a.var: e for a, e in zip(axis, i, strict=True)}}
        inside = all_of(
            substitute(total.condition, values), *((at < extent,) if extent % size else ())
        )
        return te.sum(substitute(total.value, values), axes, where=inside)

    count = -(-extent // size)
    parts = te.compute((count, *shape), part, name=part_of(name))
    result: Tensor = te.compute(shape, lambda *i: te.sum(parts[(pieces, *i)], pieces), name=name)
    return result


def part_size(dtype: str, extent: int, beside: int) -> int:
    """How much of an axis a part of a sum takes, all of it where it needs no parts; each of its
    elements stands for `beside` products."""
    if dtype != "float16" or beside * extent <= WHOLE:
        return extent
    most = max(1, PART // beside)
    whole = max(n for n in range(1, most + 1) if extent % n == 0)
    return whole if 2 * whole > most else min(most, extent)


def _extent(axis: IterVar) -> int:
    assert isinstance(axis.extent, Const)
    return int(axis.extent)
