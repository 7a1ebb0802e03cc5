"""lookup: any function of one 8-bit number, as a table of its 256 values.

The table is in the order of the numbers' bits, as uint8 counts them: 0 to 127, then for int8 -128
to -1. Its values are 8-bit numbers, signed or not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import te
from ..ir import Expr, same_shape
from ..te import Tensor
from .registry import Array, Attrs, Operator, register, require

VALUES = 256
BYTES = ("int8", "uint8")
ROWS = (16, 8)  # numbers of a row, for kernels that look up a row at once; the best first


def all_values(dtype: str) -> Array:
    """Every number of an 8-bit dtype, in the order of a table."""
    return np.arange(VALUES, dtype=np.uint8).view(dtype)


def place(q: Expr) -> Expr:
    """The index of a number's value in a table."""
    return q.astype("uint8").astype("int32")


def _compute_lookup(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    q, table = inputs
    require(q.dtype in BYTES, f"lookup: does not take {q.dtype}")
    is_table = table.dtype in BYTES and same_shape(table.shape, (VALUES,))
    require(is_table, f"lookup: {table.dtype} {list(table.shape)} is not a table of 8-bit numbers")
    return [te.compute(q.shape, lambda *i: table[place(q[i])], name="lookup")]


def _evaluate_lookup(inputs: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    q, table = inputs
    return [table[q.astype(np.uint8)]]


register(Operator("lookup", _compute_lookup, _evaluate_lookup, "anchor", ("by_channel",)))
