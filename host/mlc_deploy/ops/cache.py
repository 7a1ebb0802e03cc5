"""The memory of a decoder: rows appended after the earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

from .. import te
from ..ir import Expr, If, Stmt, Var, not_, seq
from ..te import Tensor
from .elementwise import same_extent
from .indices import OutsideError, failed
from .loops import nest, number, put
from .registry import Array, Attrs, Operator, register, require


def _compute_append_rows(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """Writes `rows` [lead, count, width] into a cache [lead, most, width], after the first `kept`
    rows, int64[], of each of `lead`. With a fourth input `dropped`, int64[], the first `kept` rows
    become those that are `dropped` rows further on.

    The output is the first argument's memory (graph/views.py): the kernel moves the kept rows in
    it, writes `rows`, and touches nothing else. Numbers that lead out of the cache end the kernel
    with MLC_BAD_INDEX. attrs: owned, whether the memory is known to be the
    call's own.
    """
    cache, rows, kept, *dropped = inputs
    same = cache.ndim == rows.ndim == 3 and cache.dtype == rows.dtype
    fits = same and all(same_extent(cache.shape[d], rows.shape[d]) for d in (0, 2))
    require(fits, f"append_rows: {list(rows.shape)} {rows.dtype} to {list(cache.shape)}")
    for given in (kept, *dropped):
        whole = given.dtype == "int64" and given.ndim == 0
        require(whole, f"append_rows: a number of rows that is {given.dtype}, {given.ndim}-D")
    lead, count, width = rows.shape

    def body(ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Stmt:
        (made,) = outs
        _, own, behind, *further = ins

        def moved(index: tuple[Var, ...]) -> Stmt:
            at, row, column = index
            return put(made, (at, row, column), made[at, row + number(further[0]), column])

        def written(index: tuple[Var, ...]) -> Stmt:
            at, row, column = index
            return put(made, (at, row + number(behind), column), own[index])

        most, first = cache.shape[1], behind[()]
        refused = [If(not_(te.all_of(first >= 0, first <= most - count)), failed())]
        new = nest((lead, count, width), written)
        if not further:
            return seq((*refused, new))
        away = further[0][()]
        # Both are bounded before they are added: a pass may move terms from side to side.
        refused.append(If(away > most, failed()))
        refused.append(If(te.all_of(away > 0, away + first > most), failed()))
        turns: Expr = te.select(away > 0, number(behind), 0)
        return seq((*refused, nest((lead, turns, width), moved, "m"), new))

    return [te.extern(cache.shape, list(inputs), body, name="append_rows", dtype=cache.dtype)]


def _evaluate_append_rows(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    cache, rows, kept, *dropped = inputs
    made, begin, most = cache.copy(), int(kept), cache.shape[1]
    if not 0 <= begin <= most - rows.shape[1]:
        raise OutsideError(f"{rows.shape[1]} rows after {begin}, in a cache of {most}")
    if dropped and dropped[0] > most - begin:
        raise OutsideError(f"{begin} rows {dropped[0]} further on, in a cache of {most}")
    if dropped and dropped[0] > 0:
        made[:, :begin] = cache[:, int(dropped[0]) : int(dropped[0]) + begin]
    made[:, begin : begin + rows.shape[1]] = rows
    return [made]


register(
    Operator("append_rows", _compute_append_rows, _evaluate_append_rows, "opaque", ("updates",))
)
