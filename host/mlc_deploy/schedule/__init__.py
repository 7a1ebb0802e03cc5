"""The scheduling engine: primitives on blocks and loops, each legal or refused."""

from .schedule import IS_SCHEDULED, BlockRV, LoopRV, Schedule

__all__ = [
    "IS_SCHEDULED",
    "BlockRV",
    "LoopRV",
    "Schedule",
]
