"""Strategies: which implementation of an operator a target takes.

An implementation serves an operator on the machines of a key. A target's keys are tried in their
order, its model and the most specific first (`arm_cpu` before `cpu`), and within a key the highest
level first. The first that makes a plan is taken. If none does, the operator's own definition is
computed under the default schedule.

    class MyDense(Plan): ...

    def plan_my_dense(types, attrs, target):
        return MyDense(...) if types[0].dtype == "float32" else None

    register_implementation("dense", "my_board", "my_dense", plan_my_dense)
    mlc.compile(model, "aarch64 -keys=my_board,arm_cpu,cpu")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mlc_targets import Target

from ..passes.context import PassContext
from .plan import Plan
from .registry import Attrs, TensorType, operator

ANCHORS = ("anchor", "reduction")  # the patterns of operators that decide a kernel's schedule
MakePlan = Callable[[Sequence[TensorType], Attrs, Target], Plan | None]


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an operator on the machines of a key.

    plan makes a plan for plain types and attributes, or None where it does not take them. It may
    ask for packed weights, which have to be constants. needs tells users what it takes; reason,
    where there is one, why it takes or refuses a call. switch is the name by which a PassContext
    leaves it out, if any.
    """

    op: str
    key: str
    name: str
    plan: MakePlan
    level: int = 10
    needs: str = ""
    switch: str = ""
    reason: Callable[[Sequence[TensorType], Attrs, Target], str] | None = None


_IMPLEMENTATIONS: list[Implementation] = []


def register_implementation(
    op: str,
    key: str,
    name: str,
    plan: MakePlan,
    level: int = 10,
    needs: str = "",
    switch: str = "",
    reason: Callable[[Sequence[TensorType], Attrs, Target], str] | None = None,
) -> Implementation:
    """Adds an implementation. Raises ValueError for an unknown operator or one without a kernel of
    its own, and for a name that the operator has under the key already."""
    if operator(op).pattern not in ANCHORS:
        raise ValueError(
            f"register_implementation: {op} is computed in the kernels of its neighbours\n"
            f"  try: an operator of the patterns {' and '.join(ANCHORS)}"
        )
    if any((i.op, i.key, i.name) == (op, key, name) for i in _IMPLEMENTATIONS):
        raise ValueError(f"register_implementation: '{key}' has '{name}' of {op} already")
    added = Implementation(op, key, name, plan, level, needs, switch, reason)
    _IMPLEMENTATIONS.append(added)
    return added


def implementations() -> tuple[Implementation, ...]:
    """All registered implementations, in the order of registration."""
    return tuple(_IMPLEMENTATIONS)


def candidates(op: str, target: Target) -> list[Implementation]:
    """The implementations a target may take, best first."""
    found = [i for i in _IMPLEMENTATIONS if i.op == op]
    return [
        i
        for key in (target.model, *target.keys)
        for i in sorted(found, key=lambda i: -i.level)
        if i.key == key and (not i.switch or PassContext.current().runs(i.switch))
    ]


def plans(op: str, types: Sequence[TensorType], attrs: Attrs, target: Target) -> Iterator[Plan]:
    """The plans of an operator on plain types, best first."""
    made = (i.plan(types, attrs, target) for i in candidates(op, target))
    return (plan for plan in made if plan is not None)


def best_plan(op: str, types: Sequence[TensorType], attrs: Attrs, target: Target) -> Plan | None:
    """The plan that suits the target best, whatever layouts it asks for."""
    return next(plans(op, types, attrs, target), None)


def plain_plan(op: str, types: Sequence[TensorType], attrs: Attrs, target: Target) -> Plan | None:
    """The best plan that takes data and weights as they are."""
    found = plans(op, types, attrs, target)
    return next((p for p in found if not p.data and not p.result and p.packing is None), None)
