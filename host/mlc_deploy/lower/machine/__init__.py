"""Passes over flat loops for one machine: the last before code generation.

An attribute of the function names the target (`bind_target`). A pass for another machine changes
nothing. codegen/ makes no such choices: it emits what it is given.
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
    transpose_loads,  # first: the next passes merge the vectors that it loads
    halve_loads,  # before pairs, which join vectors of a whole register
    pair_loads,
    broadcast_lanes,
    share_quads,
    join_phases,
    clamp_floats,
    join_packed_stores,
    follow_pointers,  # after the passes that change which vectors are loaded
    hide_pointers,
    split_strided_loads,  # after follow_pointers, which leaves strided loads alone
    choose_scheduling_model,
)
C_STEPS = (split_vectors,)

__all__ = ["C_STEPS", "LLVM_STEPS", "bind_target"]
