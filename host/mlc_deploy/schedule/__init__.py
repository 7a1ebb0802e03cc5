"""The scheduling engine: primitives on blocks and loops, each legal or refused."""

from .schedule import BlockRV, LoopRV, Schedule
