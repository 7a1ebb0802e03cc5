"""Rules that make a space of any program, block by block.

inline    cheap blocks are computed where they are needed
rfactor   a reduction in parts, where its results are too few for the vectors
tiling    loops in tiles on several levels, the innermost in registers
location  places for the remaining producers
loops     vectors, unrolled and parallel loops for blocks that no other rule took
"""

from __future__ import annotations

from collections.abc import Callable

from mlc_targets import Target

from ...schedule import Schedule
from .inline import inline
from .location import compute_location
from .loops import parallelize_vectorize_unroll
from .rfactor import add_rfactor
from .tiling import multi_level_tiling

Rule = Callable[[Schedule, str, Target], Schedule]

DEFAULT_RULES: tuple[Rule, ...] = (
    inline,
    add_rfactor,
    multi_level_tiling,
    compute_location,
    parallelize_vectorize_unroll,
)

__all__ = [
    "DEFAULT_RULES",
    "Rule",
    "add_rfactor",
    "compute_location",
    "inline",
    "multi_level_tiling",
    "parallelize_vectorize_unroll",
]
