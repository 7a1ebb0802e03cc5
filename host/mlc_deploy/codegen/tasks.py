"""Tasks, which the runtime counts and cuts into ranges, as iterations of the parallel loop.

If the extent is constant or a symbolic dimension, there is a task per iteration. The runtime knows
dimensions, but computes nothing from them. So if the extent is f(n), such as (n + 15) // 16, there
are n tasks, and tasks [b, e) are the iterations [f(b), f(e)). Both back ends, and the metadata that
the runtime reads, take this from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arith import Linear, linear
from ..arith.linear import Atom, Product, Quotient
from ..ir import SCALARS, Const, Expr, For, Var, const, substitute, walk
from ..lower import Kernel


@dataclass(frozen=True, slots=True)
class TaskRange:
    """The parallel loop whose iterations tasks are. counted: the number of tasks, or the dimension
    that equals it; None where the caller knows the tasks by other means (shared kernels, whose
    tasks are iterations)."""

    loop: For
    counted: int | Var | None

    def begins_at(self, task: Var) -> Expr:
        """The iteration that a task begins at, which is where the task before it ends."""
        extent = self.loop.extent
        return substitute(extent, {self.counted: task}) if isinstance(self.counted, Var) else task


def task_range(kernel: Kernel) -> TaskRange | None:
    """What the kernel's tasks are. None for a kernel of one task, whose body runs once whatever
    range it is called with: it has no parallel loop, or none that tasks can stand for."""
    loop = kernel.parallel
    if loop is None:
        return None
    if SCALARS in kernel.body.attrs:
        return TaskRange(loop, None)
    counted = _counted(loop.extent)
    return None if counted is None else TaskRange(loop, counted)


def tasks(kernel: Kernel) -> int | Var:
    """The number of tasks, or the symbolic dimension that equals it."""
    found = task_range(kernel)
    if found is None:
        return 1
    return 1 if found.counted is None else found.counted


def _counted(extent: Expr) -> int | Var | None:
    """The number, or the dimension n such that extent(n) starts at 0 and never falls."""
    if isinstance(extent, Const):
        return int(extent)
    if not _rises(linear(extent, {})):
        return None
    for v in (n for n in walk(extent) if isinstance(n, Var)):
        nothing = linear(substitute(extent, {v: const(0, v.dtype)}), {})
        if nothing.is_constant and nothing.constant == 0:
            return v
    return None


def _rises(form: Linear) -> bool:
    """Whether the form never falls when a dimension grows; no dimension is negative."""
    return form.constant >= 0 and all(c > 0 and _atom_rises(atom) for atom, c in form.terms.items())


def _atom_rises(atom: Atom) -> bool:
    match atom:
        case Var():
            return True
        case Quotient(form, _):
            return _rises(form)
        case Product(factors):
            return all(_atom_rises(a) for a in factors)
    return False
