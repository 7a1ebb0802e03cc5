"""tvm.tir: loops, expressions and schedules."""

from typing import Any

from .. import ir as _ir
from .. import te as _te
from ..ir import IRModule, PrimFunc, Var, const
from ..ir.build import all_of, any_of, if_then_else, select
from ..schedule import Schedule
from ..schedule.tensor_intrin import TensorIntrin as _Intrin
from ..schedule.tensor_intrin import register_intrin
from . import absent
from .module import build

_EXPRESSIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp",
    "floor", "floordiv", "floormod", "fmod", "indexdiv", "indexmod", "isfinite", "isinf", "isnan",
    "log", "log10", "log1p", "log2", "max_value", "min_value", "nearbyint", "popcount", "pow",
    "power", "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "truncdiv",
    "truncmod",
)  # fmt: skip
_NODES = ("Block", "Buffer", "For", "IterVar")
__all__ = [
    "IRModule", "PrimFunc", "Schedule", "Select", "TensorIntrin", "Var", "all", "any", "build",
    "call_extern", "const", "decl_buffer", "if_then_else", *_EXPRESSIONS, *_NODES,
]  # fmt: skip

Select, all, any = select, all_of, any_of
call_extern, decl_buffer = _te.call_extern, _te.decl_buffer


class TensorIntrin:
    """TensorIntrin.register(name, description, implementation), both PrimFuncs."""

    @staticmethod
    def register(name: str, desc: PrimFunc, impl: PrimFunc, override: bool = False) -> Any:
        every: frozenset[str] = frozenset()
        machines = {"aarch64": every, "arm": every, "x86_64": every}
        return register_intrin(_Intrin(name, desc, impl, machines), override)


def __getattr__(name: str) -> Any:
    if name in _EXPRESSIONS:
        return getattr(_te, name)
    if name in _NODES:
        return getattr(_ir, name)
    raise absent.error(f"tvm.tir.{name}", __all__)
