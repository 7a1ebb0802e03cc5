"""Operators as a target would rather have them: by plan, with data and weights in its layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from mlc_deploy.ops import TensorType
from mlc_deploy.ops.layout import pack
from mlc_deploy.ops.plan import Plan
from mlc_deploy.ops.strategy import plans
from mlc_targets import Target

Array = NDArray[Any]


def types_of(arrays: Sequence[Array]) -> list[TensorType]:
    return [TensorType(a.shape, str(a.dtype)) for a in arrays]


def plan_for(
    op: str,
    types: Sequence[TensorType],
    attrs: Mapping[str, Any],
    target: Target,
    planes: bool = False,
) -> Plan | None:
    """The best plan that states the operator as it is (none of Winograd's); for data in planes
    where so asked."""
    found = (p for p in plans(op, types, attrs, target) if p.op == op)
    return next((p for p in found if not planes or not (p.data or p.result)), None)


def laid_out(plan: Plan, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Plain data and weights as a plan takes them."""
    found = list(arrays)
    if plan.data:
        found[0] = pack(found[0], "NCHW", plan.data)
    return (found[0], *plan.packed(found[1:]))
