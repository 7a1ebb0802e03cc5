"""tvm.te: tensor expressions and their schedules."""

from typing import Any

from .. import te as _te
from . import absent
from .module import build, lower

__all__ = [name for name in _te.__all__ if name not in ("build", "lower")] + ["build", "lower"]


def __getattr__(name: str) -> Any:
    if name in _te.__all__:
        return getattr(_te, name)
    raise absent.error(f"tvm.te.{name}", _te.__all__)
