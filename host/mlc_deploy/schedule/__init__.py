"""The scheduling engine: primitives on blocks and loops, each legal or refused."""

from .schedule import IS_SCHEDULED, Schedule
from .tensor_intrin import TensorIntrin, get_intrin, register_intrin, registered_intrins
from .trace import BlockRV, Instruction, LoopRV, SampledInt, Trace

__all__ = [
    "IS_SCHEDULED",
    "BlockRV",
    "Instruction",
    "LoopRV",
    "SampledInt",
    "Schedule",
    "TensorIntrin",
    "Trace",
    "get_intrin",
    "register_intrin",
    "registered_intrins",
]
