"""Tuning: boards find the fastest schedule of each kernel, and a database keeps what they found.

    from mlc_deploy import tune

    database = tune.tune_graph("model.onnx", "aarch64", 2000, work_dir="tuned", runner=board)
    model = mlc.compile("model.onnx", "aarch64", db=database)

records    what passes between searching and measuring
space      schedules that a task may have; rules/, template, postproc: how they come about
search     which of them to try next; mutate, features, cost_model: by what it goes;
           experience: what earlier runs have taught
boards     several boards as one executor; runner: what a candidate costs on one of them
measuring  from candidates to results, on the disk before they count: tuned/ keeps them
extract    a model's kernels as tasks; scheduler: whose turn it is; tune: the whole
api        what users call
"""

from ..driver.builder import build_object
from ..tuned import Database, Measured, Record
from .api import compile_tir, tune_graph, tune_tir
from .boards import BoardPool
from .records import Candidate, Task
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
