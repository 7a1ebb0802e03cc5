"""Integer reasoning: a normal form, bounds, simplification, and the regions that loops touch."""

from .linear import Bounds, Known, Linear, Ranges, to_expr
from .normalize import bounds, expr_bounds, linear, simplify_expr
from .simplify import equal, loop_ranges, simplify, turn_range

__all__ = [
    "Bounds",
    "Known",
    "Linear",
    "Ranges",
    "bounds",
    "equal",
    "expr_bounds",
    "linear",
    "loop_ranges",
    "simplify",
    "simplify_expr",
    "to_expr",
    "turn_range",
]
