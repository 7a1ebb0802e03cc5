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
from .build import build
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
    ScheduleError,
)
from .ir import IRModule, PrimFunc
from .lower import lower
from .schedule import Schedule

__all__ = [
    "CodegenError",
    "CompiledModel",
    "DeployError",
    "Deployment",
    "IRModule",
    "ImporterError",
    "InputError",
    "InstallError",
    "Library",
    "LowerError",
    "MlcError",
    "PrimFunc",
    "Schedule",
    "ScheduleError",
    "Target",
    "TargetError",
    "build",
    "compile",
    "connect",
    "deploy",
    "lower",
    "te",
]
