"""Tensor expressions: what to compute, without saying how; `create_prim_func` makes loops of it."""

from typing import Any

import mlc_deploy

from ..ir import IterVar, address_of, call_extern
from ..ir.build import all_of, any_of, if_then_else, not_, select
from ..ir.build import all_of as all
from ..ir.build import any_of as any
from ..ir.build import number as const
from .intrinsics import (
    abs,
    ceil,
    cos,
    erf,
    exp,
    floor,
    fma,
    fmod,
    gelu,
    log,
    nearbyint,
    pow,
    round,
    rsqrt,
    sigmoid,
    silu,
    sin,
    sqrt,
    tan,
    tanh,
    trunc,
    truncdiv,
    truncmod,
)
from .program import create_prim_func
from .stage import Stage
from .stage_schedule import StageSchedule, create_schedule
from .tensor import (
    ComputeOp,
    ExternOp,
    PlaceholderOp,
    Tensor,
    compute,
    extern,
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
from .tensor_intrin import (
    DeclaredIntrin,
    call_llvm_pure_intrin,
    decl_buffer,
    decl_tensor_intrin,
    ir_builder,
    vector_const,
    vectorhigh,
    vectorlow,
)
from .threads import ThreadAxis, thread_axis

__all__ = [
    "ComputeOp",
    "DeclaredIntrin",
    "ExternOp",
    "IterVar",
    "PlaceholderOp",
    "Stage",
    "StageSchedule",
    "Tensor",
    "ThreadAxis",
    "abs",
    "address_of",
    "all",
    "all_of",
    "any",
    "any_of",
    "call_extern",
    "call_llvm_pure_intrin",
    "ceil",
    "compute",
    "const",
    "cos",
    "create_prim_func",
    "create_schedule",
    "decl_buffer",
    "decl_tensor_intrin",
    "erf",
    "exp",
    "extern",
    "floor",
    "fma",
    "fmod",
    "gelu",
    "if_then_else",
    "ir_builder",
    "log",
    "max",
    "max_value",
    "maximum",
    "min",
    "min_value",
    "minimum",
    "nearbyint",
    "not_",
    "placeholder",
    "pow",
    "reduce",
    "reduce_axis",
    "round",
    "rsqrt",
    "select",
    "sigmoid",
    "silu",
    "sin",
    "sqrt",
    "sum",
    "tan",
    "tanh",
    "thread_axis",
    "trunc",
    "truncdiv",
    "truncmod",
    "var",
    "vector_const",
    "vectorhigh",
    "vectorlow",
]


def __getattr__(name: str) -> Any:
    """te.lower and te.build are those of mlc_deploy."""
    if name in ("build", "lower"):
        return getattr(mlc_deploy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
