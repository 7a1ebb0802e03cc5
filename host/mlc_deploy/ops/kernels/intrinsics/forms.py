"""Operand forms: which element along k, and which weight, each lane of a microkernel takes.

Data come in blocks of eight along k, the eight of a row side by side, on every machine: two rows
are an operand of `smmla`, and of four `sdot` by lane; one is an operand of `smull`, and of four
`pmaddwd`, two elements at a time, widened to int16. Weights are packed in the order in which a tile
reads them.

Sums are stated as a stage in the kernel's form, and where that has no vectors of columns, as such
vectors in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .... import te
from ....ir import Expr, const
from ....te import IterVar
from ...quantize import BLOCK
from .microkernels import Microkernel

TILE, VECTORS = "int8_tile", "int8_vectors"  # the names of the stages
SPATIAL = {"squares": 4, "quads": 3, "pairs": 2, "windows": 3}  # dimensions of a tile in TILE


@dataclass(frozen=True, slots=True)
class Place:
    """Of one product: the row; which of the kernel's `depth` elements along k; the tile of weights,
    of those for a block of columns, and where in it the weight is."""

    row: Expr
    k: Expr
    tile: Expr
    weight: tuple[Expr, ...]


def compute_sums(
    kernel: Microkernel,
    lead: Sequence[int],
    rows: int,
    product: Callable[[Sequence[Expr], Place], Expr],
    over: Sequence[IterVar],
) -> Callable[..., Any]:
    """The sums, int32 [*lead, rows, BLOCK], as a function of an index.

    product(index in lead, place): one product. over: what is summed up over beside the `depth`
    elements that the kernel takes.
    """
    n = len(lead)
    groups = -(-rows // kernel.rows)

    def tile(shape: Sequence[int], at: Callable[..., Place], *inner: IterVar) -> te.Tensor:
        """Sums of which `at` says the place by an index behind lead, and by `inner` reductions."""

        def element(*i: Expr) -> Expr:
            return te.sum(product(i[:n], at(*i[n:])), (*over, *inner))

        found: te.Tensor = te.compute((*lead, *shape), element, name=TILE)
        return found

    match kernel.form:
        case "quads":
            k, half = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, 2), "half")

            def quad(group: Expr, row: Expr, column: Expr) -> Place:
                weight = (half.var, column, k.var)
                return Place(group * kernel.rows + row, half * 4 + k, const(0), weight)

            quads = tile((groups, kernel.rows, BLOCK), quad, half, k)
            return lambda *i: quads[(*i[:n], i[n] // kernel.rows, i[n] % kernel.rows, i[-1])]
        case "pairs":
            pair, k = te.reduce_axis((0, BLOCK // 2), "pair"), te.reduce_axis((0, 2), "k")

            def of_pairs(row: Expr, column: Expr) -> Place:
                return Place(row, pair * 2 + k, const(0), (pair.var, column, k.var))

            pairs = tile((rows, BLOCK), of_pairs, pair, k)
            return lambda *i: pairs[i]
        case "squares":
            k = te.reduce_axis((0, BLOCK), "k")

            def square(group: Expr, pair: Expr, row: Expr, column: Expr) -> Place:
                return Place(group * 2 + row, k.var, const(0), (pair * 2 + column, k.var))

            squares = tile((groups, BLOCK // 2, 2, 2), square, k)

            def vector(*i: Expr) -> Any:
                group, row, pair, column = i[n:]
                return squares[(*i[:n], group, pair, row, column)]

            vectors = te.compute((*lead, groups, 2, BLOCK // 2, 2), vector, name=VECTORS)
            return lambda *i: vectors[(*i[:n], i[n] // 2, i[n] % 2, i[-1] // 2, i[-1] % 2)]
    eights, half = te.reduce_axis((0, kernel.depth // 8), "eights"), te.reduce_axis((0, 2), "half")

    def part(row: Expr, four: Expr, column: Expr, p: Expr) -> Place:
        k = eights * 8 + p * 2 + half
        return Place(row, k, four, (column, k))

    parts = tile((rows, BLOCK // 4, 4, 4), part, eights, half)
    p = te.reduce_axis((0, 4), "p")
    fours = te.compute(
        (*lead, rows, BLOCK // 4, 4), lambda *i: te.sum(parts[(*i, p)], p), name=VECTORS
    )
    return lambda *i: fours[(*i[:-1], i[-1] // 4, i[-1] % 4)]
