"""The operator library. Importing it fills the tables of operators and of tensor intrinsics."""

from . import elementwise, nn, pool, reduction, shape  # noqa: F401
from .arm_cpu import intrinsics  # noqa: F401
from .registry import (
    OPERATORS,
    Array,
    Attrs,
    Operator,
    Pattern,
    TensorType,
    compute,
    evaluate,
    frozen_attrs,
    infer_types,
    operator,
    register,
)

__all__ = [
    "OPERATORS",
    "Array",
    "Attrs",
    "Operator",
    "Pattern",
    "TensorType",
    "compute",
    "evaluate",
    "frozen_attrs",
    "infer_types",
    "operator",
    "register",
]
