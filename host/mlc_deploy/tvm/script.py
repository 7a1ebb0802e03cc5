"""tvm.script: loops and graphs written in Python."""

import sys
from typing import Any

from .. import script as _script
from ..script import from_script, ir, ir_module, tir
from ..script import graph as relax
from . import absent

__all__ = ["from_script", "from_source", "ir", "ir_module", "relax", "tir"]
__path__: list[str] = []  # `import tvm.script.tir` finds the modules below
for _name, _module in (("ir", ir), ("tir", tir), ("relax", relax)):
    sys.modules[f"{__name__}.{_name}"] = _module


def from_source(input_str: str) -> Any:
    """The function or module of a text."""
    return from_script(input_str)


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.script.{name}", [*__all__, *_script.__all__])
