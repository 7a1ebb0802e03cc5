"""tvm.ir: modules of functions."""

import sys
from typing import Any

from ..ir import IRModule, PrimFunc, structural_equal, structural_hash
from . import absent, transform

__all__ = ["IRModule", "PrimFunc", "structural_equal", "structural_hash", "transform"]


__path__: list[str] = []  # `from tvm.ir.module import IRModule` finds it here
sys.modules[f"{__name__}.module"] = sys.modules[__name__]
sys.modules[f"{__name__}.transform"] = transform


def assert_structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> None:
    """Raises ValueError unless two functions or modules are the same program."""
    for name, one in _functions(lhs).items():
        other = _functions(rhs).get(name)
        if other is None or not structural_equal(one, other):
            raise ValueError(f"the functions '{name}' differ:\n{one}\n{other}")
    if len(_functions(lhs)) != len(_functions(rhs)):
        raise ValueError("the modules have other functions")


def _functions(node: Any) -> dict[str, Any]:
    return dict(node.functions) if isinstance(node, IRModule) else {"": node}


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.ir.{name}", __all__)
