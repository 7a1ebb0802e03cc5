"""What integers and conversions give where machines differ, on arrays: docs/reference/numbers.md.

Every back end gives what these functions give. The interpreter, constant folding, and the numpy
definitions of operators call them. `<<` and `>>` are numpy's own: an amount that is negative, or no
less than the number of bits, moves every bit out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NARROW = np.dtype(np.int32)  # floats become integers of 8 and 16 bits by way of this dtype


def floor_quotient(a: Any, b: Any) -> Any:
    """a // b, rounded down: 0 where b is 0; the least number where it is divided by -1."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else 0
    with np.errstate(all="ignore"):
        return np.floor_divide(a, b)


def floor_remainder(a: Any, b: Any) -> Any:
    """a - b * (a // b), of b's sign: 0 where b is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else 0
    with np.errstate(all="ignore"):
        return np.remainder(a, b)


def quotient(a: Any, b: Any) -> Any:
    """a / b, rounded towards zero: 0 where b is 0; the least number where it is divided by -1."""
    if isinstance(a, int) and isinstance(b, int):
        return int_quotient(a, b)
    down = floor_quotient(a, b)
    with np.errstate(all="ignore"):
        up = (np.multiply(down, b) != a) & (np.less(a, 0) != np.less(b, 0)) & np.not_equal(b, 0)
        return down + up.astype(np.asarray(down).dtype)


def remainder(a: Any, b: Any) -> Any:
    """a - b * (a / b), of a's sign: 0 where b is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b * int_quotient(a, b) if b else 0
    with np.errstate(all="ignore"):
        return np.fmod(a, b)


def int_quotient(a: int, b: int) -> int:
    """`quotient` of Python's integers."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0


def converted(x: Any, dtype: Any) -> NDArray[Any]:
    """x as another dtype. A float that becomes an integer is truncated; one beyond the range gives
    the end of the range, and NaN gives 0. The range is int32's where the integer has 8 or 16 bits:
    of that, the lowest bits are taken."""
    given, to = np.asarray(x), np.dtype(dtype)
    if given.dtype.kind != "f" or to.kind not in "iu":
        with np.errstate(all="ignore"):
            plain: NDArray[Any] = given.astype(to)
        return plain
    wide = to if to.itemsize >= NARROW.itemsize else NARROW
    ends = np.iinfo(wide)
    whole = np.trunc(given)
    low, above = float(ends.min), 2.0 ** (ends.bits - (wide.kind == "i"))
    if given.dtype.itemsize == 2:  # float16 has neither
        whole = whole.astype(np.float32)
    inside = (whole >= low) & (whole < above)
    if inside.all():
        return np.asarray(whole.astype(wide).astype(to))
    found = np.asarray(np.where(inside, whole, 0).astype(wide))
    found[np.asarray(whole >= above)] = ends.max
    found[np.asarray(whole < low)] = ends.min
    return found.astype(to)
