"""The iterations of a loop whose body computes its condition from the iteration's number.

Exporters of Keras write `while i < length` as a loop without a trip count: the body counts i, an
own state or the loop's number, and gives Less(i + 1, length) as its condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ImporterError
from ..graph.extents import LARGEST
from ..graph.nodes import Constant, Value
from ..ir import Dim, Expr, Var, binary, expr, free_vars
from .extents import Claim, larger, simplified, smaller
from .onnx_node import Given, OnnxNode, TensorList, tensors

CONDITIONS = frozenset({"And", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
Tried = tuple[
    Var, Sequence[Claim], dict[int, Dim]
]  # the iteration's number, its condition, counters


def counted_iterations(
    n: OnnxNode, most: Value | None, going: Value | None, given: Sequence[Given]
) -> Dim | None:
    """The number of iterations of a Loop, by its trip count `most`, its first condition `going` and
    the condition that its body computes; None where no extent says so."""
    if any(v is None or isinstance(v, TensorList) for v in given) or not _computes_condition(n):
        return None
    states = tensors(given)
    limit = None if most is None else _single(n, most)
    if most is not None and limit is None:
        return None
    begins = ((k, _single(n, state)) for k, state in enumerate(states))
    counters = {k: begin for k, begin in begins if begin is not None}
    try:
        while True:  # what is assumed of a counter must hold if it is not of the others
            number, claims, kept = _tried(n, states, counters)
            if len(kept) == len(counters):
                break
            counters = kept
    except (ImporterError, ValueError):
        return None
    ends = [_end(number, claim) for claim in claims]
    last: Dim | None = None
    for end in ends:
        if end is None or not n.extents.are_known(end):
            return None
        last = end if last is None else smaller(last, end)
    count = None if last is None else _begun(n, going, larger(simplified(expr(last) + 1), 1))
    if count is None or limit is None or (isinstance(limit, int) and limit >= LARGEST):
        return count
    return smaller(count, larger(limit, 0))


def _computes_condition(n: OnnxNode) -> bool:
    """Whether a body computes its condition by a comparison, directly or at last."""
    body = n.graph("body")
    makers = {name: node for node in body.node for name in node.output}
    maker = makers.get(body.output[0].name)
    while maker is not None and maker.op_type in ("Cast", "Identity", "Reshape", "Squeeze"):
        maker = makers.get(maker.input[0])
    return maker is not None and maker.op_type in CONDITIONS


def _single(n: OnnxNode, value: Value) -> Dim | None:
    """The extent in a tensor of one integer; None if it is none."""
    found = n.extents.of(value)
    return found.ravel().tolist()[0] if found is not None and found.shape in ((), (1,)) else None


def _tried(n: OnnxNode, states: Sequence[Value], counters: Mapping[int, Dim]) -> Tried:
    """An iteration in which some states, by number, are these extents plus its number. Gives those
    of them that it makes one more."""
    found: list[Tried] = []

    def step(value: Value, own: list[Value], _: list[Value]) -> Any:
        number = n.extents.counting(value)
        for k, begin in counters.items():
            n.extents.assume(own[k], simplified(begin + number))
        condition, *after = n.body("body", value, n.constant(np.True_, "bool"), *own)
        kept = {
            k: begin
            for k, begin in counters.items()
            if isinstance(next_one := after[k], Value)
            and (follows := _single(n, next_one)) is not None
            and n.extents.are_equal(follows, begin + number + 1)
        }
        known = n.extents.claims.get(condition, ()) if isinstance(condition, Value) else ()
        found.append((number, known, kept))
        return own, []

    def once() -> list[Value]:
        n.emit_loop(1, states, step)
        return []

    n.tried(once)
    return found[0]


def _end(number: Var, claim: Claim) -> Dim | None:
    """The number of the iteration in which a claim becomes false; None where it does not say so."""
    apart = _below(claim)
    rest = None if apart is None else simplified(binary("-", expr(apart), number))
    if rest is None or (isinstance(rest, Expr) and number in free_vars(rest)):
        return None
    return simplified(binary("-", 0, expr(rest)))  # number + rest < 0


def _below(claim: Claim) -> Dim | None:
    """What is negative as long as a claim is true; None for other comparisons."""
    a, b = expr(claim.a), expr(claim.b)
    match claim.comparison:
        case "<":
            return simplified(a - b)
        case "<=":
            return simplified(a - b - 1)
        case ">":
            return simplified(b - a)
        case ">=":
            return simplified(b - a - 1)
    return None


def _begun(n: OnnxNode, going: Value | None, some: Dim) -> Dim | None:
    """The iterations of a loop that has some if it has begun; None if that is not known."""
    if going is None or (isinstance(going, Constant) and bool(going.value.all())):
        return some
    claims = n.extents.claims.get(going, ())
    if len(claims) != 1 or (apart := _below(claims[0])) is None:
        return None
    count = larger(simplified(binary("-", 0, expr(apart))), 0)
    return count if n.extents.are_equal(larger(count, 1), some) else None
