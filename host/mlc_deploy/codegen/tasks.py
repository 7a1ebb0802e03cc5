"""Tasks, which the runtime counts and cuts into ranges, as turns of the parallel loop.

If the extent is constant or a symbolic dimension, there is a task per turn. The runtime knows
dimensions, but computes nothing from them. So if the extent is f(n), such as (n + 15) // 16, there
are n tasks, and tasks [b, e) are the turns [f(b), f(e)).
"""

from __future__ import annotations

from ..arith import Linear, linear
from ..arith.linear import Atom, Product, Quotient
from ..ir import SCALARS, Const, Expr, For, Var, const, substitute, walk
from ..lower import Kernel


def task_loop(kernel: Kernel) -> For | None:
    """The kernel's parallel loop, if tasks can stand for its turns."""
    loop = kernel.parallel
    if SCALARS in kernel.body.attrs:
        return loop
    return loop if loop is not None and _counted(loop.extent) is not None else None


def tasks(kernel: Kernel) -> int | Var:
    """The number of tasks, or the symbolic dimension that equals it."""
    loop = task_loop(kernel)
    found = None if loop is None else _counted(loop.extent)
    return 1 if found is None else found


def turn_of(loop: For, task: Var) -> Expr:
    """The turn that a task begins at."""
    counted = _counted(loop.extent)
    return substitute(loop.extent, {counted: task}) if isinstance(counted, Var) else task


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
