"""Tuning: boards find the fastest schedule of each kernel, and a database keeps what they found.

    from mlc_deploy import tune

    database = tune.tune_graph("model.onnx", "aarch64", 2000, work_dir="tuned", runner=board)
    model = mlc.compile("model.onnx", "aarch64", db=database)

records    what passes between searching and measuring
space      schedules that a task may have; rules/, template, postproc make and check them
search     which of them to try next, by mutate, features and cost_model;
           experience: what earlier runs taught
boards     several boards as one executor; runner: the cost of a candidate on one of them
measuring  from candidates to results, on the disk before they count: tuned/ keeps them
extract    a model's kernels as tasks; scheduler: the order of tasks; tune: the whole loop
api        the functions for users
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
