"""tvm.te: tensor expressions and their schedules."""

from typing import Any

from .. import te as _te
from ..ir import const as _const
from . import absent
from .module import build, lower

__all__ = [name for name in _te.__all__ if name not in ("build", "lower")] + ["build", "lower"]


def const(value: Any, dtype: str | None = None) -> Any:
    """A number as an expression."""
    return _const(value, dtype)


def size_var(name: str = "n", dtype: str = "int32") -> Any:
    """A variable that is a size, and so not negative."""
    return _te.var(name, dtype)


def __getattr__(name: str) -> Any:
    if name in _te.__all__:
        return getattr(_te, name)
    raise absent.error(f"tvm.te.{name}", _te.__all__)
