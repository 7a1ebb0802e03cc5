"""Converters of torch's control flow: while_loop, cond, scan and map.

torch keeps the functions of such a call as separate graphs. They become the bodies of a loop or a
branch, converted like the program itself (TorchNode.body).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..graph.nodes import Constant, Value, Var
from .layers.loops import ENDLESS, loop
from .layers.shapes import reshape
from .node import shape_of
from .torch_node import Converter, TorchNode

Body = Any  # torch.fx.GraphModule


def _tensors(n: TorchNode, values: Sequence[Any]) -> list[Value]:
    """The operands of a body as tensors. Raises ImporterError for a number known only at run
    time."""
    found: list[Value] = []
    for value in values:
        match value:
            case bool():
                found.append(n.constant(value, "bool"))
            case int():
                found.append(n.constant(value, "int64"))
            case Var() | Constant():
                found.append(value)
            case _:
                raise n.refuse(f"a {type(value).__name__} goes into a loop or branch", "a tensor")
    return found


def _truth(n: TorchNode, found: Any) -> Value:
    (value,) = _tensors(n, found if isinstance(found, list) else [found])
    return reshape(n, n.cast(value, "bool"), ())


def _while_loop(
    n: TorchNode, going: Body, body: Body, carried: Sequence[Any], seen: Sequence[Any]
) -> list[Value]:
    """The condition is computed before each iteration, from the states at its beginning."""
    states, others = _tensors(n, carried), list(seen)

    def turn(_: Value, own: list[Value], __: list[Value]) -> Any:
        after = _tensors(n, n.body(body, *own[1:], *others))
        return [_truth(n, n.body(going, *after, *others)), *after], []

    truth = _truth(n, n.body(going, *states, *others))
    (_, *ends), _ = n.emit_loop(ENDLESS, [truth, *states], turn, conditional=True)
    return ends


def _cond(
    n: TorchNode, condition: Any, then: Body, otherwise: Body, operands: Sequence[Any]
) -> list[Any]:
    """A known condition takes its branch at once."""
    truth = _truth(n, condition)
    if isinstance(truth, Constant):
        return n.body(then if truth.value else otherwise, *operands)

    def of(branch: Body) -> Callable[[], list[Value]]:
        return lambda: _tensors(n, n.body(branch, *operands))

    given: list[Any] = n.emit_branch(truth, of(then), of(otherwise))
    return given


def _scan(
    n: TorchNode, body: Body, states: Sequence[Any], sequences: Sequence[Value], seen: Sequence[Any]
) -> list[Value]:
    """Iteration t reads element t of every sequence. The body gives the states, then the elements
    of results."""
    own, others = _tensors(n, states), list(seen)

    def turn(_: Value, before: list[Value], elements: list[Value]) -> Any:
        given = _tensors(n, n.body(body, *before, *elements, *others))
        return given[: len(own)], given[len(own) :]

    turns = shape_of(sequences[0])[0]
    count = n.results() - len(own)
    read = [(x, False) for x in sequences]
    ends, results = loop(n, turns, own, turn, read=read, written=[False] * count)
    return [*ends, *results]


CONTROL: dict[str, Converter] = {
    "higher_order.cond": _cond,
    "higher_order.map_impl": lambda n, body, sequences, seen: _scan(n, body, [], sequences, seen),
    "higher_order.scan": _scan,
    "higher_order.while_loop": _while_loop,
}
