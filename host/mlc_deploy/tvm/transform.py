"""tvm.transform: contexts and sequences of passes."""

from collections.abc import Callable, Sequence
from typing import Any

from ..passes.context import PassContext
from . import absent

__all__ = ["PassContext", "Sequential"]
Pass = Callable[[Any], Any]


class Sequential:
    """Passes one after the other, as a pass."""

    def __init__(self, passes: Sequence[Pass] = (), opt_level: int = 0, name: str = "") -> None:
        self.passes = tuple(passes)

    def __call__(self, mod: Any) -> Any:
        for one in self.passes:
            mod = one(mod)
        return mod


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.transform.{name}", __all__)
