"""tvm.runtime: modules and arrays."""

from typing import Any

from . import absent, arrays as ndarray
from .arrays import Device, NDArray, array, cpu, device, empty
from .module import Module, load_module

__all__ = [
    "Device", "Module", "NDArray", "array", "cpu", "device", "empty", "load_module", "ndarray",
    "tensor",
]  # fmt: skip
tensor = array


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.runtime.{name}", __all__)
