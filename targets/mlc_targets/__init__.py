"""Machines: targets, CPU features, boards. Pure data and parsing."""

from .boards import Board, Cluster, board, board_names
from .errors import TargetError, nearest
from .levels import BASE, MAX_LEVELS, best_level, levels_of
from .qemu import qemu_cpu
from .resolve import register_tag
from .target import Target

__all__ = [
    "BASE",
    "MAX_LEVELS",
    "Board",
    "Cluster",
    "Target",
    "TargetError",
    "best_level",
    "board",
    "board_names",
    "levels_of",
    "nearest",
    "qemu_cpu",
    "register_tag",
]
