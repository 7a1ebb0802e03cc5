"""The compiler's part of what users import; `mlc_deploy` itself imports it late."""

from .build import build, lower
from .codegen import Library
from .compile import CompiledModel, compile
from .graph import get_global_func, register_func
from .instruments import Instrument, PrintInstrument, TimingInstrument
from .ir import IRModule, PrimFunc
from .levels import CompiledLevels, compile_levels
from .pass_context import PassContext
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
