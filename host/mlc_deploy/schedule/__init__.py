"""The scheduling engine: primitives on blocks and loops, each legal or refused."""

from .schedule import IS_SCHEDULED, Schedule
from .trace import BlockRV, Instruction, LoopRV, SampledInt, Trace

__all__ = [
    "IS_SCHEDULED",
    "BlockRV",
    "Instruction",
    "LoopRV",
    "SampledInt",
    "Schedule",
    "Trace",
]
