"""`I`: modules of functions, written as classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ScriptError
from ..graph import Function
from ..graph.shapeless import Shapeless
from ..graph.specialize import resolve_calls
from ..graph.verify import verify
from ..ir import IRModule, PrimFunc
from .graph_expressions import Primitive

__all__ = ["IRModule", "dummy_global_info", "ir_module", "module_attrs", "module_global_infos",
           "vdevice"]  # fmt: skip
WITHOUT_EFFECT = ("module_attrs", "module_global_infos")


def module_attrs(attrs: Mapping[str, Any]) -> None:
    """Attributes of a module, for TVM's own passes. They change no number here."""


def module_global_infos(infos: Mapping[str, Any]) -> None:
    """TVM's devices of a module. There is one device here."""


def vdevice(*_: Any) -> None:
    """A device of TVM's module_global_infos."""


def dummy_global_info() -> None:
    """An entry of TVM's module_global_infos."""


def ir_module(cls: type) -> IRModule:
    """A class whose attributes are `@T.prim_func` and `@R.function` functions, as an IRModule.

    Other attributes are constants for the functions. (mypy ignores the result of a class decorator
    and takes the name for a class.) Raises ScriptError for a class without functions, for functions
    without a decorator, and for functions that do not fit each other.
    """
    made = (PrimFunc, Function, Primitive, Shapeless)
    plain = [key for key, f in vars(cls).items() if callable(f) and not isinstance(f, made)]
    functions = {
        k: f for k, f in vars(cls).items() if isinstance(f, (PrimFunc, Function, Shapeless))
    }
    if plain or not functions:
        what = f"function '{plain[0]}' is not decorated" if plain else "it has no functions"
        raise ScriptError(
            f"@I.ir_module: {what}",
            where=f"class {cls.__name__}",
            mend="@T.prim_func or @R.function on functions",
        )
    module = resolve_calls(IRModule(functions))
    for key, function in module.functions.items():
        try:
            check(function, module)
        except ValueError as error:
            what, _, line = str(error).partition("\n  in:  ")
            raise ScriptError(
                f"@I.ir_module: {what}", where=f"class {cls.__name__}, {key}\n{line}"
            ) from None
    return module


def check(function: object, module: IRModule) -> None:
    """Compares a graph function with the PrimFuncs that it calls. Raises ValueError."""
    if isinstance(function, Function):
        verify(function, module)
