"""The results of tuning, for the compiler; tune/ writes them.

measured   the result of a candidate
database   the file of results
apply      gives kernels the traces of a database
layouts    the layouts that a database has for a model
"""

from .apply import Tuned, applicable, tuned
from .database import Database, PlanRecord, Record, existing, pack
from .layouts import Layouts, digest, known_layouts
from .measured import Measured, Objective, Verdict

__all__ = [
    "Database",
    "Layouts",
    "Measured",
    "Objective",
    "PlanRecord",
    "Record",
    "Tuned",
    "Verdict",
    "applicable",
    "digest",
    "existing",
    "known_layouts",
    "pack",
    "tuned",
]
