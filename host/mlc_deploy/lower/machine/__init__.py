"""Passes over flat loops that serve one machine: the last before code is emitted.

The target stands in the function's attributes (`bind_target`); a pass whose machine it is not
leaves the function as it is. Emission (codegen/) makes no such choices: it spells what it is given.
"""

from .lanes import broadcast_lanes, halve_loads, pair_loads, share_quads
from .models import choose_scheduling_model
from .packs import join_packed_stores
from .phases import join_phases
from .pointers import follow_pointers, hide_pointers
from .quantized import clamp_floats
from .scalars import split_vectors
from .strided import split_strided_loads
from .target import bind_target
from .transposes import transpose_loads

LLVM_STEPS = (
    transpose_loads,  # first: the rows that it loads are vectors, as others are
    halve_loads,  # before pairs, which take two vectors for a register each
    pair_loads,
    broadcast_lanes,
    share_quads,
    join_phases,
    clamp_floats,
    join_packed_stores,
    follow_pointers,  # after all that changes which vectors are loaded where
    hide_pointers,
    split_strided_loads,  # after pointers: they follow no loads with a stride
    choose_scheduling_model,
)
C_STEPS = (split_vectors,)

__all__ = ["C_STEPS", "LLVM_STEPS", "bind_target"]
