"""Random inputs for a model, from a fixed seed, by their dtypes and uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SEED = 0
SMALL = 16  # integers that are not indices lie in [-SMALL, SMALL), unsigned ones in [0, SMALL)


def draw(
    name: str, shape: Sequence[int], dtype: str, extent: int | None = None, seed: int = SEED
) -> Array:
    """A random input: floats in [-1, 1), integers near 0; indices below `extent`.

    It depends on the seed, the name and the type alone, not on other inputs.
    """
    rng = np.random.default_rng([seed, *name.encode()])
    to = np.dtype(dtype)
    if to.kind == "f":
        return rng.uniform(-1, 1, shape).astype(to)
    if to.kind == "b":
        return rng.integers(0, 2, shape).astype(to)
    low = -SMALL if to.kind == "i" and extent is None else 0
    return rng.integers(low, extent or SMALL, shape).astype(to)
