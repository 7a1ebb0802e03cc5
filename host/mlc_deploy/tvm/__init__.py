"""TVM's names: `import mlc_deploy.tvm as tvm` in a script for a CPU, which else stays as it is.

    python -m mlc_deploy.tvm run script.py       runs a script that says `import tvm`
    python -m mlc_deploy.tvm check script.py     says which names a script uses that do not exist

Names that do not exist raise AttributeError, or ImportError for modules; the message says what to
write instead. docs/reference/from_tvm.md lists the differences that stay.
"""

from importlib import import_module
from typing import Any

from ..errors import MlcError as TVMError
from ..graph import get_global_func, register_func
from ..ir import IRModule
from . import absent, alias
from . import arrays as nd
from .arrays import Device, NDArray, cpu, device
from .module import build, lower

__version__ = "0.18.0"  # whose names these are
SUBMODULES = (
    "autotvm", "contrib", "driver", "ir", "meta_schedule", "relax", "rpc", "runtime", "script",
    "target", "te", "testing", "tir", "topi", "transform",
)  # fmt: skip
__all__ = [
    "Device", "IRModule", "NDArray", "TVMError", "build", "cpu", "device", "get_global_func",
    "lower", "nd", "register_func", *SUBMODULES,
]  # fmt: skip

alias.explain()


def compile(mod: Any, target: Any = None, **_: Any) -> Any:
    """A module of loops, or of a graph, compiled for a target."""
    relax = import_module(f"{__name__}.relax")
    return relax.build(mod, target) if relax.is_graph(mod) else build(mod, target=target)


def convert(value: Any) -> Any:
    """A value of Python's, as it is."""
    return value


def context(dev_type: Any = "cpu", dev_id: int = 0) -> Device:
    """tvm.device, as TVM called it before 0.8."""
    return device(dev_type, dev_id)


def __getattr__(name: str) -> Any:
    if name in SUBMODULES:
        return import_module(f"{__name__}.{name}")
    raise absent.error(f"tvm.{name}", __all__)
