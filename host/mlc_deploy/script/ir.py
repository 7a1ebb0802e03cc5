"""`I`: modules of functions, written as classes."""

from __future__ import annotations

from ..errors import ScriptError
from ..ir import IRModule, PrimFunc

__all__ = ["IRModule", "ir_module"]


def ir_module(cls: type) -> IRModule:
    """A class whose attributes are `@T.prim_func` functions, as an IRModule.

    Other attributes are constants that the functions may use. (mypy ignores what decorators of
    classes return, and takes the name for a class.) Raises ScriptError for a class
    without functions, or with functions that are not decorated.
    """
    functions = {key: f for key, f in vars(cls).items() if isinstance(f, PrimFunc)}
    plain = [key for key, f in vars(cls).items() if callable(f) and not isinstance(f, PrimFunc)]
    if plain or not functions:
        what = f"function '{plain[0]}' is not decorated" if plain else "it has no functions"
        raise ScriptError(
            f"@I.ir_module: {what}", where=f"class {cls.__name__}", mend="@T.prim_func on functions"
        )
    return IRModule(functions)
