"""Tuning: boards find the fastest schedule of each kernel, and a database keeps what they found.

    from mlc_deploy import tune

    database = tune.tune_graph("model.onnx", "aarch64", 2000, work_dir="tuned", runner=board)
    model = mlc.compile("model.onnx", "aarch64", db=database)

records    what passes between searching and measuring
space      schedules that a task may have; rules/, template, postproc: how they come about
search     which of them to try next; mutate, features, cost_model: by what it goes;
           experience: what earlier runs have taught
builder    candidates to objects, in processes that may fail
boards     several boards as one executor; runner: what a candidate costs on one of them
measuring  from candidates to results, on the disk before they count
database   what was measured, in a file that survives anything; apply: compiling with it
extract    a model's kernels as tasks; scheduler: whose turn it is; tune: the whole
api        what users call
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import compile_tir, tune_graph, tune_tir
    from .boards import BoardPool
    from .builder import build_object
    from .database import Database, Record
    from .records import Candidate, Measured, Task
    from .space import PostOrderApply, ScheduleFn, Union

__all__ = [
    "BoardPool",
    "Candidate",
    "Database",
    "Measured",
    "PostOrderApply",
    "Record",
    "ScheduleFn",
    "Task",
    "Union",
    "build_object",
    "compile_tir",
    "tune_graph",
    "tune_tir",
]

_MODULES = {
    "BoardPool": "boards",
    "Candidate": "records",
    "Database": "database",
    "Measured": "records",
    "PostOrderApply": "space",
    "Record": "database",
    "ScheduleFn": "space",
    "Task": "records",
    "Union": "space",
    "build_object": "builder",
    "compile_tir": "api",
    "tune_graph": "api",
    "tune_tir": "api",
}


def __getattr__(name: str) -> object:
    """Workers, and whoever compiles with a database, do without most of this."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
