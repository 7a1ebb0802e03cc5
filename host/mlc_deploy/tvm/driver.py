"""tvm.driver: building."""

from typing import Any

from . import absent
from .module import build, lower

__all__ = ["build", "lower"]


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.driver.{name}", __all__)
