"""Tensor expressions: what to compute, without saying how; `create_prim_func` makes loops of it."""

from .intrinsics import (
    abs,
    ceil,
    cos,
    erf,
    exp,
    floor,
    fma,
    fmod,
    log,
    pow,
    round,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    tan,
    tanh,
    trunc,
    truncdiv,
    truncmod,
)
from ..ir.build import all_of, any_of, if_then_else, not_, select
from .program import create_prim_func
from .tensor import (
    ComputeOp,
    IterVar,
    PlaceholderOp,
    Tensor,
    compute,
    max,
    max_value,
    maximum,
    min,
    min_value,
    minimum,
    placeholder,
    reduce,
    reduce_axis,
    sum,
    var,
)
