"""What is known about machines: targets, CPU features, boards. Pure data and parsing."""

from .boards import Board, Cluster, board, board_names
from .errors import TargetError, nearest
from .qemu import qemu_cpu
from .target import Target

__all__ = [
    "Board",
    "Cluster",
    "Target",
    "TargetError",
    "board",
    "board_names",
    "nearest",
    "qemu_cpu",
]
