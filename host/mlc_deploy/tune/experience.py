"""What a cost model begins with: what a database has of other kernels, boards and runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from math import isfinite
from typing import Any

from mlc_targets import Target

from ..errors import MlcError
from ..schedule import Schedule
from .cost_model import FEWEST, TreeModel
from .database import Database, Record
from .features import Vector, features
from .records import Objective

MOST_REPLAYED = 320  # results; each takes about ten milliseconds


def experience(database: Database, run: str, target: Target, objective: Objective) -> Any:
    """Trees of what runs before `run` found for a target, as a TreeModel takes them for its prior;
    None where that is too little. Costs of one kernel on one kind of board are seen relative to
    the best of them, so it makes no difference which they were. It depends on nothing that `run`
    adds, so a run that is gone on with begins with the same.
    """
    subjects: dict[tuple[str, ...], list[Record]] = {}
    for record in takewhile(lambda r: r.run != run, database.records):
        if (record.target, record.objective) == (str(target), objective) and not record.final:
            subjects.setdefault(record.subject, []).append(record)
    learnt = {s: rs for s, rs in subjects.items() if sum(isfinite(r.cost) for r in rs) >= FEWEST}
    if not learnt:
        return None
    model = TreeModel()
    share = max(MOST_REPLAYED // len(learnt), FEWEST)
    for subject, records in learnt.items():
        spread = records[:: -(-len(records) // share)]
        model.learn(" ".join(subject), list(_seen(database, spread, target)))
    return model.trees


def _seen(
    database: Database, records: list[Record], target: Target
) -> Iterator[tuple[Vector, float]]:
    """Features and costs of one workload's records, as far as their traces still apply."""
    func = database.workload(records[0].workload)
    if func is None:
        return
    for record in records:
        sch = Schedule(func)
        try:
            record.trace.apply(sch)
        except (MlcError, ValueError):
            continue
        yield features(sch.func, target), record.cost
