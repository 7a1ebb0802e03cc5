"""tvm.target: what kernels are compiled for."""

from typing import Any

from mlc_targets import Target, TargetError

from . import absent

__all__ = ["Target", "TargetError", "arm_cpu", "create"]


def create(target: Any) -> Target:
    """A target by its string or dict, as TVM made it before 0.8."""
    return Target(target)


def arm_cpu(model: str = "unknown", options: Any = None) -> Target:
    """The target of a board by its name: "rasp4b64"."""
    spec = model if options is None else f"{model} {options}"
    return Target(spec)


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.target.{name}", __all__)
