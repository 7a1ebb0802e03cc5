"""What a cost model begins with: a database's results of other kernels, boards and runs."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from mlc_targets import Target

from ..schedule import Schedule
from ..tuned import Database, Objective, Record
from .cost_model import FEWEST, TreeModel
from .features import Vector, features

MOST_REPLAYED = 320  # results; each takes about ten milliseconds


def experience(database: Database, run: str, target: Target, objective: Objective) -> Any:
    """Trees learnt from a database's results for a target before `run`: the prior of a TreeModel.
    None where the results are too few. Costs are relative to the best of the same kernel on the
    same kind of board, so all kernels and boards count alike."""
    subjects: dict[tuple[str, ...], list[Record]] = {}
    for record in database.before(run):
        if (record.target, record.objective) == (str(target), objective) and not record.final:
            subjects.setdefault(record.subject, []).append(record)
    good = {s: sum(isfinite(r.cost) for r in records) for s, records in subjects.items()}
    learnt = sorted((s for s in good if good[s] >= FEWEST), key=lambda s: -good[s])
    learnt = learnt[: MOST_REPLAYED // FEWEST]
    if not learnt:
        return None
    model = TreeModel()
    share = MOST_REPLAYED // len(learnt)
    for subject in learnt:
        records = subjects[subject]
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
            vector = features(sch.func, target)
        except Exception:  # program and trace may be anyone's, and hold anything
            continue
        yield vector, record.cost
