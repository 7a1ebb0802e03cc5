"""Gives kernels the best traces that a database has for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mlc_targets import Target

from ..errors import MlcError
from ..graph.lower import KernelSource, unscheduled
from ..ir import PrimFunc, structural_hash
from ..schedule import Schedule
from .database import Database, Record, existing


@dataclass(frozen=True, slots=True)
class Tuned:
    """The kernels of a program; those in `found` have their record's trace. `notes` name records
    that cannot be used, and damage in the database's file."""

    sources: Mapping[str, KernelSource]
    found: Mapping[str, Record]
    notes: tuple[str, ...] = ()


def tuned(
    sources: Mapping[str, KernelSource], target: Target, database: Database | str | Path
) -> Tuned:
    """Kernels by name; each gets the database's best trace for the target, if it has one. Raises
    TuneError if the database is missing or cannot be read."""
    database = existing(database)
    notes = list(database.notes)
    found: dict[str, Record] = {}
    made = dict(sources)
    for name, source in sources.items():
        func = unscheduled(source, target).func
        ranked = database.query(structural_hash(func), str(target))
        skipped: list[str] = []
        best = next(applicable(ranked, func, skipped), None)
        if best is not None:
            found[name], sch = best
            made[name] = replace(source, trace=sch.trace)
        if skipped:
            instead = "the default does" if best is None else "a slower one does"
            notes.append(f"{name}: the tuned schedule does not apply, so {instead}: {skipped[0]}")
    if sources and not found and len(notes) == len(database.notes):
        notes.append(_nothing(target, database))
    return Tuned(made, found, tuple(notes))


def applicable(
    records: Iterable[Record], func: PrimFunc, skipped: list[str] | None = None
) -> Iterator[tuple[Record, Schedule]]:
    """Records with the schedules of `func` that their traces give. A record whose trace fails, or
    gives another program than was measured, is left out, and `skipped` gets the reason."""
    for record in records:
        sch = Schedule(func)
        try:
            record.trace.apply(sch)
        except (MlcError, ValueError) as error:
            why = error.what if isinstance(error, MlcError) else str(error)
        else:
            if structural_hash(sch.func) == record.program:
                yield record, sch
                continue
            why = "its trace leads to another program than was measured"
        if skipped is not None:
            skipped.append(why)


def _nothing(target: Target, database: Database) -> str:
    """Why a database has no record for any kernel."""
    if not len(database):
        return f"{database.path or 'the database'} has no results; try: mlc-deploy tune, with it"
    targets = sorted({record.target for record in database.records})
    if str(target) in targets:
        return "the database has results for this target, but for none of this model's kernels"
    others = "; ".join(targets)
    return (
        f"{database.path or 'the database'} has no results for the target, {target}, only for: "
        f"{others}; try: --target with what it was tuned for"
    )
