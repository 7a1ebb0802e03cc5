"""tvm.runtime: modules and arrays."""

from typing import Any

from . import absent
from . import arrays as ndarray
from .arrays import Device, NDArray, array, cpu, device, empty
from .module import Module, load_module

__all__ = [
    "Device", "Module", "NDArray", "array", "convert", "cpu", "device", "empty", "load_module",
    "ndarray", "tensor",
]  # fmt: skip
tensor = array


def convert(value: Any) -> Any:
    """A value of Python's, as it is."""
    return value


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.runtime.{name}", __all__)
