"""tvm.testing: comparisons of arrays."""

from typing import Any

import numpy as np

from . import absent

__all__ = ["assert_allclose"]


def assert_allclose(
    actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7, verbose: bool = True
) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(desired), rtol, atol)


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.testing.{name}", __all__)
