"""mlc-deploy: trained models, compiled, deployed, checked and timed on ARM boards.

import mlc_deploy as mlc
from mlc_deploy import te

lib = mlc.build(schedule_or_primfunc, target="armv7a")
with mlc.connect("qemu://cortex-a7") as board:
    board.load(lib)["main"](a, b, c)
"""

import sys
from types import ModuleType

# Almost nothing is imported here: the command installs its signal handlers before slow imports.
# Type checkers know the name TYPE_CHECKING, so `typing` need not be imported.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from mlc_targets import Target, TargetError

    from . import graph, te, tune
    from ._compiler import (
        CompiledLevels,
        CompiledModel,
        Instrument,
        IRModule,
        Library,
        PassContext,
        PrimFunc,
        PrintInstrument,
        Schedule,
        TimingInstrument,
        build,
        compile,
        compile_levels,
        from_script,
        get_global_func,
        ir_module,
        lower,
        register_func,
    )
    from .artifact import SavedModel, load_model
    from .board.connect import connect
    from .decode.api import Decoder, generate, load_decoder
    from .decode.speech import Transcriber, load_transcriber, transcribe
    from .decode.text import Text
    from .driver.deploy import deploy
    from .driver.deployment import Deployment
    from .driver.virtual_machine import VirtualMachine
    from .errors import (
        ArtifactError,
        CodegenError,
        DecodeError,
        DeployError,
        ExternalError,
        GraphError,
        ImporterError,
        InputError,
        InstallError,
        LowerError,
        MlcError,
        PassError,
        QuantizeError,
        ScheduleError,
        ScriptError,
        TuneError,
    )
    from .quantize.api import Quantized, quantize

__all__ = [
    "ArtifactError",
    "CodegenError",
    "CompiledLevels",
    "CompiledModel",
    "DecodeError",
    "Decoder",
    "DeployError",
    "Deployment",
    "ExternalError",
    "GraphError",
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
    "QuantizeError",
    "Quantized",
    "SavedModel",
    "Schedule",
    "ScheduleError",
    "ScriptError",
    "Target",
    "TargetError",
    "Text",
    "TimingInstrument",
    "Transcriber",
    "TuneError",
    "VirtualMachine",
    "build",
    "compile",
    "compile_levels",
    "connect",
    "deploy",
    "from_script",
    "generate",
    "get_global_func",
    "graph",
    "ir_module",
    "load_decoder",
    "load_model",
    "load_transcriber",
    "lower",
    "quantize",
    "register_func",
    "te",
    "transcribe",
    "tune",
]


_HOMES = {
    "Decoder": ".decode.api",
    "Deployment": ".driver.deployment",
    "SavedModel": ".artifact",
    "Text": ".decode.text",
    "Target": "mlc_targets",
    "TargetError": "mlc_targets",
    "VirtualMachine": ".driver.virtual_machine",
    "connect": ".board.connect",
    "deploy": ".driver.deploy",
    "Quantized": ".quantize.api",
    "quantize": ".quantize.api",
    "generate": ".decode.api",
    "load_decoder": ".decode.api",
    "load_model": ".artifact",
    "Transcriber": ".decode.speech",
    "load_transcriber": ".decode.speech",
    "transcribe": ".decode.speech",
}


class _FrontDoor(ModuleType):
    """This package. Its functions `lower` and `quantize` have the names of subpackages. The import
    of a subpackage must not replace the function."""

    def __getattr__(self, name: str) -> object:
        """Imports each name at first use. Boards and saved models do not need the compiler, and the
        command handles Ctrl-C from its first moment on."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        if name in ("graph", "te", "tune"):
            return importlib.import_module(f".{name}", __name__)
        home = ".errors" if name.endswith("Error") else "._compiler"
        module = importlib.import_module(_HOMES.get(name, home), __name__)
        return getattr(module, name)

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in ("lower", "quantize")):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontDoor
