"""The compiler's part of the public names; `mlc_deploy` imports it at first use."""

from .codegen import Library
from .driver.build import build, lower
from .driver.compile import CompiledModel, compile
from .driver.levels import CompiledLevels, compile_levels
from .graph import get_global_func, register_func
from .ir import IRModule, PrimFunc
from .passes.context import PassContext
from .passes.instruments import Instrument, PrintInstrument, TimingInstrument
from .schedule import Schedule
from .script import from_script, ir_module

__all__ = [
    "CompiledLevels",
    "CompiledModel",
    "IRModule",
    "Instrument",
    "Library",
    "PassContext",
    "PrimFunc",
    "PrintInstrument",
    "Schedule",
    "TimingInstrument",
    "build",
    "compile",
    "compile_levels",
    "from_script",
    "get_global_func",
    "ir_module",
    "lower",
    "register_func",
]
