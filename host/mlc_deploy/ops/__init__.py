"""The operator library. Importing it fills the table of operators."""

from . import elementwise, nn, pool, reduction, shape  # noqa: F401
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
