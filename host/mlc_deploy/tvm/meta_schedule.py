"""tvm.meta_schedule: tuning."""

from typing import Any

from ..tune import Database, PostOrderApply, ScheduleFn, Union
from ..tune import compile_tir as _compile
from ..tune import tune_tir as _tune
from . import absent

__all__ = ["Database", "compile_tir", "tir_integration", "tune_tir"]


class space_generator:
    """Where schedules come from."""

    PostOrderApply, ScheduleFn, SpaceGeneratorUnion = PostOrderApply, ScheduleFn, Union


def tune_tir(
    mod: Any,
    target: Any,
    work_dir: str | None = None,
    max_trials_global: int = 64,
    *,
    num_trials_per_iter: int = 64,
    space: Any = None,
    strategy: str = "evolutionary",
    **_: Any,
) -> Database:
    """Tunes on this machine. Other options of TVM's have no effect here."""
    space = None if isinstance(space, str) else space
    every = min(num_trials_per_iter, max_trials_global)
    how: dict[str, Any] = {"strategy": "random"} if strategy.startswith("replay") else {}
    return _tune(mod, target, max_trials_global, every, work_dir=work_dir, space=space, **how)


def compile_tir(database: Any, mod: Any, target: Any = None) -> Any:
    """The best schedule."""
    return _compile(database, mod, target)


class tir_integration:
    """`ms.tir_integration.compile_tir`."""

    compile_tir, tune_tir = staticmethod(compile_tir), staticmethod(tune_tir)


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.meta_schedule.{name}", __all__)
