"""float16: the dtype of arithmetic, and how sums stay accurate.

Definitions keep sums in float32, and round a complete sum once. Kernels do so too where a target
only stores float16. Where it computes with float16, sums are float16 as well, to be fast; a long
sum is then a sum of short ones, so that errors grow with the root of its length, not with its
length (pairwise summation, in two steps).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mlc_targets import Target

from .. import te
from ..ir import Const, Dim, Expr, IterVar, Reduce, Var, all_of, substitute
from ..te import Tensor
from ..te.tensor import ComputeOp

WHOLE = 64  # products that are summed up in float16 without parts
PART = 64  # products, about, in a part of a longer sum


def sums(dtype: str) -> str:
    """The dtype that sums of numbers of a dtype are kept in."""
    return "float32" if dtype == "float16" else dtype


def rounded(total: Tensor, dtype: str) -> Tensor:
    """Sums as numbers of a dtype; a stage of its own converts them, if they have another."""
    if total.dtype == dtype:
        return total
    result: Tensor = te.compute(total.shape, lambda *i: total[i].astype(dtype), name="rounded")
    return result


def arithmetic(dtype: str, target: Target) -> str:
    """The dtype that kernels of a target compute in, and sum up in, for numbers of a dtype."""
    return dtype if target.float16 == "arithmetic" else sums(dtype)


def spare_registers(dtype: str, products: int, target: Target) -> int:
    """Vector registers that a tile leaves free, where each sum has so many products.

    ARM multiplies float16 by lanes of only half of the registers, and LLVM's allocator spills much
    where these run short. Numbers that are only stored in float16 need registers to be converted.
    """
    if dtype != "float16":
        return 0
    return 8 if arithmetic(dtype, target) == dtype and products > WHOLE else 4


def part_of(name: str) -> str:
    """The name of the stage that computes the parts of a stage's sums."""
    return f"{name}_part"


def tile_sum(
    shape: Sequence[Dim], element: Callable[..., Reduce], long: IterVar | None, name: str
) -> Tensor:
    """te.compute(shape, element, name=name); in float16, as sums of parts. A part is a sum over a
    piece of the axis `long`, and over the other axes as far as part_sizes says. Without `long`, it
    is over the innermost axes.

    The parts are a stage of their own, whose first dimensions count them (tile.py schedules it).
    """
    whole: Tensor = te.compute(shape, element, name=name)
    assert isinstance(whole.op, ComputeOp)
    spatial, (total,) = whole.op.axis, whole.op.body
    assert isinstance(total, Reduce)
    extents = [_extent(a) for a in total.axes]
    at = None if long is None else [a is long for a in total.axes].index(True)
    sizes = part_sizes(total.dtype, extents, at)
    cut = [n for n, size in enumerate(sizes) if size < extents[n]]
    if not cut:
        return whole
    counts = [-(-extents[n] // sizes[n]) for n in cut]
    pieces = [
        te.reduce_axis((0, c), f"{_name(total, n)}_piece") for n, c in zip(cut, counts, strict=True)
    ]
    within = [te.reduce_axis((0, size), _name(total, n)) for n, size in enumerate(sizes)]

    def part(*i: Expr) -> Expr:
        values: dict[Var, Expr] = {a.var: w.var for a, w in zip(total.axes, within, strict=True)}
        beyond = []
        for n, piece in zip(cut, i, strict=False):
            at = piece * sizes[n] + within[n]
            values[total.axes[n].var] = at
            beyond += [at < extents[n]] if extents[n] % sizes[n] else []
        values |= {a.var: e for a, e in zip(spatial, i[len(cut) :], strict=True)}
        inside = all_of(substitute(total.condition, values), *beyond)
        return te.sum(substitute(total.value, values), within, where=inside)

    parts = te.compute((*counts, *shape), part, name=part_of(name))
    result: Tensor = te.compute(shape, lambda *i: te.sum(parts[(*pieces, *i)], pieces), name=name)
    return result


def part_sizes(dtype: str, extents: Sequence[int], long: int | None) -> list[int]:
    """How much of each axis a part of a sum takes: all, if the sum needs no parts; else about PART
    products in total. The axis `long` is cut; if the other axes are too many, the first of them are
    cut to 1. Without `long`, a part takes as much of the innermost axes as fits."""
    sizes = list(extents)
    if dtype != "float16" or prod(extents) <= WHOLE:
        return sizes
    if long is None:
        for n in reversed(range(len(sizes))):
            sizes[n] = 1
            sizes[n] = _near(max(1, round(PART / prod(sizes[n:]))), extents[n])
        return sizes
    sizes[long] = 1
    for n in range(len(sizes)):
        if round(PART / prod(sizes)) == 0:
            sizes[n] = 1
    sizes[long] = _near(max(1, round(PART / prod(sizes))), extents[long])
    return sizes


def _near(most: int, extent: int) -> int:
    """The largest divisor of an extent up to `most`; if it is at most half of `most`, `most`
    itself."""
    divisor = max(n for n in range(1, most + 1) if extent % n == 0)
    return divisor if 2 * divisor > most else min(most, extent)


def _name(total: Reduce, axis: int) -> str:
    return str(total.axes[axis].var.name)


def _extent(axis: IterVar) -> int:
    assert isinstance(axis.extent, Const)
    return int(axis.extent)
