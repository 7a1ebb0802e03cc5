"""Integer reasoning: a normal form, bounds, simplification, and the regions that loops touch."""

from .linear import Bounds, Linear, Ranges, bounds, expr_bounds, linear, to_expr
from .simplify import equal, loop_ranges, simplify, simplify_expr
