"""What tuning found, as compiling uses it: tune/ writes it.

measured   what came of a candidate
database   what was measured, in a file that survives anything
apply      kernels with the traces that a database has for them
layouts    the layouts that a database knows for a model
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
