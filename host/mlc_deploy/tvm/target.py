"""tvm.target: what kernels are compiled for."""

from collections.abc import Mapping
from typing import Any

import mlc_targets
from mlc_targets import TargetError

from . import absent

__all__ = ["Target", "TargetError", "arm_cpu", "create"]


class Kind(str):
    """`target.kind.name`: "llvm" or "c"."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self)


class Target(mlc_targets.Target):
    """A target by TVM's names of the arguments. `kind` has a name."""

    def __init__(
        self,
        target: str | Mapping[str, object] | mlc_targets.Target,
        host: str | Mapping[str, object] | mlc_targets.Target | None = None,
    ) -> None:
        super().__init__(target, host)
        object.__setattr__(self, "kind", Kind(self.kind))

    @staticmethod
    def list_kinds() -> list[str]:
        return ["llvm", "c"]


def create(target: Any) -> Target:
    """A target by its string or dict, as TVM made it before 0.8."""
    return Target(target)


def arm_cpu(model: str = "unknown", options: Any = None) -> Target:
    """The target of a board by its name: "rasp4b64"."""
    return Target(model if options is None else f"{model} {options}")


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.target.{name}", __all__)
