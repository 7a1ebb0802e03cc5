"""mlc-deploy: trained models, compiled, deployed, checked and timed on ARM boards.

import mlc_deploy as mlc
from mlc_deploy import te

lib = mlc.build(schedule_or_primfunc, target="armv7a")
with mlc.connect("qemu://cortex-a7") as board:
    board.load(lib)["main"](a, b, c)
"""

from mlc_targets import Target, TargetError

from . import te
from .boards import connect
from .build import build, lower
from .codegen import Library
from .compile import CompiledModel, compile
from .deploy import Deployment, deploy
from .errors import (
    CodegenError,
    DeployError,
    ImporterError,
    InputError,
    InstallError,
    LowerError,
    MlcError,
    PassError,
    ScheduleError,
    ScriptError,
)
from .instruments import Instrument, PrintInstrument, TimingInstrument
from .ir import IRModule, PrimFunc
from .pass_context import PassContext
from .schedule import Schedule
from .script import from_script, ir_module

__all__ = [
    "CodegenError",
    "CompiledModel",
    "DeployError",
    "Deployment",
    "IRModule",
    "ImporterError",
    "InputError",
    "InstallError",
    "Instrument",
    "Library",
    "LowerError",
    "MlcError",
    "PassContext",
    "PassError",
    "PrimFunc",
    "PrintInstrument",
    "Schedule",
    "ScheduleError",
    "ScriptError",
    "Target",
    "TargetError",
    "TimingInstrument",
    "build",
    "compile",
    "connect",
    "deploy",
    "from_script",
    "ir_module",
    "lower",
    "te",
]
