"""A bias as what sums of int8 begin with, rather than an addition after them."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import Block, Expr, PrimFunc, Store, statements
from ..bias import moved_into
from .int8 import BLOCK, TILE, VECTORS, Level


def begin_with_bias(
    func: PrimFunc, result: str, level: Level, channels: Mapping[int, str]
) -> PrimFunc:
    """sums = 0 + products; result = f(sums + bias)   =>   sums = bias + products; result = f(sums)

    for a bias that depends on the output channel alone. channels: by number, the iterations of
    block `result` that are "block", "lane" (the block of output channels, and which of it) or
    "channel" (both in one). int32 wraps, so the order of additions does not matter. Sums that are
    kept in parts begin with zeros: a bias in one of the parts costs as much as adding it.
    """
    blocks = {s.name: s for s in statements(func.body) if isinstance(s, Block)}
    last, tile = blocks[result], blocks[TILE]
    if level.form == "parts" or not isinstance(last.body, Store):
        return func
    assert isinstance(tile.init, Store)
    spatial = [i.var for i in tile.iters if i.kind == "spatial"]
    inner = {"squares": 4, "quads": 3, "pairs": 2}[level.form]
    block = spatial[1] if len(spatial) - inner > 1 else spatial[0]
    lane: Expr = spatial[-3] * 2 + spatial[-1] if level.form == "squares" else spatial[-1]
    is_what: dict[str, Expr] = {"block": block, "lane": lane, "channel": block * BLOCK + lane}
    given = {last.iters[n].var: is_what[what] for n, what in channels.items()}
    sums = (blocks[VECTORS] if level.vectors else tile).writes[0].buffer
    return moved_into(func, tile, last, sums, given)
