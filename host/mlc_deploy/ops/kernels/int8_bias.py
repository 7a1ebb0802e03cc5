"""A bias as what sums of int8 begin with, rather than an addition after them."""

from __future__ import annotations

from collections.abc import Mapping

from ...schedule import Schedule
from ..quantize import BLOCK
from .int8 import TILE, VECTORS, Level


def begin_with_bias(sch: Schedule, result: str, level: Level, channels: Mapping[int, str]) -> None:
    """Schedule.fuse_reduction_epilogue for a bias that depends on the output channel alone.

    channels: by number, the iterations of block `result` that are "block", "lane" (the block of
    output channels, and which of it) or "channel" (both in one). int32 wraps, so the order of
    additions does not matter. Sums that are kept in parts begin with zeros: a bias in one of the
    parts costs as much as adding it.
    """
    if level.form == "parts":
        return
    iters = sch.block(TILE).iters
    spatial = [n for n, i in enumerate(iters) if i.kind == "spatial"]
    inner = {"squares": 4, "quads": 3, "pairs": 2, "windows": 3}[level.form]
    block = spatial[1] if len(spatial) - inner > 1 else spatial[0]
    lane = [spatial[-3], 2, spatial[-1], 1] if level.form == "squares" else [spatial[-1], 1]
    is_what = {"block": [block, 1], "lane": lane, "channel": [block, BLOCK, *lane]}
    sch.fuse_reduction_epilogue(
        TILE,
        result,
        VECTORS if level.vectors else None,
        [[n, *is_what[what]] for n, what in channels.items()],
    )
