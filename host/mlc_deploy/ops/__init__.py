"""The operator library. Importing it fills the tables of operators and of tensor intrinsics."""

from ..schedule.tensor_intrin import register_intrin
from . import (  # noqa: F401
    attention,
    block_scaled,
    cache,
    decided,
    draw,
    einsum,
    elementwise,
    indexing,
    indices,
    lookup,
    nn,
    norm,
    pointwise,
    pool,
    quantize,
    reduction,
    sampling,
    shape,
    special,
    windows,
    winograd,
)
from .kernels import OWN_IMPLEMENTATIONS
from .kernels.intrinsics import INTRINS
from .plan import Plan
from .registry import (
    OPERATORS,
    Array,
    Attrs,
    Operator,
    Pattern,
    TensorType,
    Trait,
    compute,
    evaluate,
    frozen_attrs,
    has,
    infer_types,
    operator,
    register,
)
from .strategy import register_implementation

__all__ = [
    "OPERATORS",
    "OWN_IMPLEMENTATIONS",
    "OWN_INTRINS",
    "OWN_OPERATORS",
    "Array",
    "Attrs",
    "Operator",
    "Pattern",
    "Plan",
    "TensorType",
    "Trait",
    "compute",
    "evaluate",
    "frozen_attrs",
    "has",
    "infer_types",
    "operator",
    "register",
    "register_implementation",
]

# Users may register more.
OWN_OPERATORS = frozenset(OPERATORS)
# A test checks them, rather than every start of a process.
OWN_INTRINS = frozenset(register_intrin(intrin, checked=True) for intrin in INTRINS)
