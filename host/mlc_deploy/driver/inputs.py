"""Inputs for a model that was given none: drawn from a seed, as its dtypes and uses ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SEED = 0
SMALL = 16  # integers that are no indices lie within [-SMALL, SMALL), unsigned ones from 0


def draw(
    name: str, shape: Sequence[int], dtype: str, extent: int | None = None, seed: int = SEED
) -> Array:
    """An input by name: floats in [-1, 1), small integers; indices below `extent`.

    The same for a seed, a name and a type whatever other inputs there are.
    """
    rng = np.random.default_rng([seed, *name.encode()])
    to = np.dtype(dtype)
    if to.kind == "f":
        return rng.uniform(-1, 1, shape).astype(to)
    if to.kind == "b":
        return rng.integers(0, 2, shape).astype(to)
    low = -SMALL if to.kind == "i" and extent is None else 0
    return rng.integers(low, extent or SMALL, shape).astype(to)
